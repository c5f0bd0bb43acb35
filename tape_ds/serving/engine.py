"""One thread that answers one request after another, and drops those whose client left."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from tape_ds.errors import redacted
from tape_ds.serving.refusal import RefusalError

MOST_WAITING = 256
"""Requests that wait for their turn."""
log = logging.getLogger(__name__)


class ClientLeftError(Exception):
    """Raised in the thread of a job whose client has left."""


class AnswerJob:
    """A request's work, and the way of its results to the event loop.

    Args:
        work: is called in the engine's thread with the job; it calls :meth:`put` and :meth:`check`.
    """

    def __init__(self, work: Callable[["AnswerJob"], None]):
        self.work = work
        self._loop = asyncio.get_running_loop()
        self._results: asyncio.Queue[Any] = asyncio.Queue()
        self._left = threading.Event()

    def put(self, result: Any) -> None:
        """Hand over a result, an exception to raise, or None at the end; from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._results.put_nowait, result)
        except RuntimeError:
            # the loop is closed: the server ends
            self._left.set()

    async def next(self) -> Any:
        """Return the next result, or None after the last one; raise what the work raised."""
        result = await self._results.get()
        if isinstance(result, Exception):
            raise result
        return result

    def leave(self) -> None:
        """Say that the client has left."""
        self._left.set()

    @property
    def is_left(self) -> bool:
        return self._left.is_set()

    def check(self) -> None:
        if self.is_left:
            raise ClientLeftError


class AnswerEngine:
    """The thread. Start it once, close it once."""

    def __init__(self) -> None:
        self._jobs: deque[AnswerJob] = deque()
        self._changed = threading.Condition()
        """Held where the jobs, the running one and ``_closed`` are looked at."""
        self._running: AnswerJob | None = None
        self._ending = False
        self._closed = False
        # a daemon: nothing can interrupt a forward pass, and a server that is stopping must not wait for a long one
        self._thread = threading.Thread(target=self._answer, name="tape-ds serve", daemon=True)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def has_started(self) -> bool:
        return self._thread.ident is not None

    @property
    def waiting(self) -> int:
        with self._changed:
            return sum(not job.is_left for job in self._jobs)

    def start(self) -> None:
        self._thread.start()

    def submit(self, work: Callable[[AnswerJob], None]) -> AnswerJob:
        """Return the job of some work, which waits for its turn."""
        job = AnswerJob(work)
        with self._changed:
            if self._ending:
                raise _ending()
            # a client that gives up and asks again must not fill the queue with its old requests
            self._jobs = deque(waiting for waiting in self._jobs if not waiting.is_left)
            if len(self._jobs) >= MOST_WAITING:
                wrong = f"{MOST_WAITING} requests are waiting already: try again later."
                raise RefusalError(wrong, status=503, code="server_overloaded")
            self._jobs.append(job)
            self._changed.notify()
        return job

    def end(self) -> None:
        """Refuse the running job, those that wait, and those to come."""
        with self._changed:
            self._ending = True
            running = [] if self._running is None else [self._running]
            for job in (*running, *self._jobs):
                job.put(_ending())
                job.leave()

    def close(self, seconds: float) -> bool:
        """Drop all jobs; return whether the thread ended within some seconds."""
        with self._changed:
            self._closed = True
            # it looks whether its client is there before each token
            if self._running is not None:
                self._running.leave()
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _next(self) -> AnswerJob | None:
        """Wait for a job; None: the engine is closed."""
        with self._changed:
            self._running = None
            self._changed.wait_for(lambda: self._closed or self._jobs)
            if not self._closed:
                self._running = self._jobs.popleft()
            return self._running

    def _answer(self) -> None:
        while True:
            job = self._next()
            if job is None:
                return
            try:
                job.check()
                job.work(job)
                job.put(None)
            except ClientLeftError:
                pass
            except RefusalError as refusal:
                job.put(refusal)
            except BaseException as error:
                # of one request; a panic of a Rust library is no Exception
                log.exception("a request failed")
                job.put(_failed(error))
            # or its results would be held until the next one comes
            del job


def _ending() -> RefusalError:
    return RefusalError("The server is ending.", status=503, code="server_ending")


def _failed(error: BaseException) -> RefusalError:
    if isinstance(error, torch.OutOfMemoryError):
        return RefusalError(
            "The device's memory is not enough for this request.", status=500, code="out_of_memory"
        )
    what = " ".join(redacted(str(error)).split())[:300]
    return RefusalError(
        f"The model failed: {type(error).__name__}: {what}", status=500, code="model_failed"
    )
