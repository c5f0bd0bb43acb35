"""One thread that answers one request after another, and drops those whose client left."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

import torch

from tape_ds.errors import redacted
from tape_ds.serving.refusal import RefusalError

MOST_WAITING = 256
"""Requests that wait for their turn."""
log = logging.getLogger(__name__)


class ClientLeftError(Exception):
    """Raised in the thread of a job that nobody waits for."""


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
        except RuntimeError:  # the loop is closed: the server ends
            self._left.set()

    async def next(self) -> Any:
        """Return the next result, or None after the last one; raise what the work raised."""
        result = await self._results.get()
        if isinstance(result, Exception):
            raise result
        return result

    def leave(self) -> None:
        """Say that nobody waits for results any more."""
        self._left.set()

    def check(self) -> None:
        if self._left.is_set():
            raise ClientLeftError


class AnswerEngine:
    """The thread. Start it once, close it once."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[AnswerJob] = queue.Queue(maxsize=MOST_WAITING)
        self._running: AnswerJob | None = None
        self._closed = threading.Event()
        # a daemon: nothing can interrupt a forward pass, and a server that is told to end must not wait for a long one
        self._thread = threading.Thread(target=self._answer, name="tape-ds serve", daemon=True)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def has_started(self) -> bool:
        return self._thread.ident is not None

    @property
    def waiting(self) -> int:
        return self._jobs.qsize()

    def start(self) -> None:
        self._thread.start()

    def submit(self, work: Callable[[AnswerJob], None]) -> AnswerJob:
        """Return the job of some work, which waits for its turn."""
        job = AnswerJob(work)
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            wrong = f"{MOST_WAITING} requests are waiting already: try again later."
            raise RefusalError(wrong, status=503, code="server_overloaded") from None
        return job

    def close(self, seconds: float) -> bool:
        """Drop all jobs; return whether the thread ended within some seconds."""
        self._closed.set()
        running = self._running
        if running is not None:
            running.leave()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _answer(self) -> None:
        while not self._closed.is_set():
            try:
                job = self._jobs.get(timeout=0.2)
            except queue.Empty:
                continue
            self._running = job
            try:
                job.check()
                job.work(job)
                job.put(None)
            except ClientLeftError:
                pass
            except RefusalError as refusal:
                job.put(refusal)
            except Exception as error:  # of one request: the next one may be answered
                log.exception("a request failed")
                job.put(_failed(error))
            finally:
                self._running = None
                del job


def _failed(error: Exception) -> RefusalError:
    if isinstance(error, torch.OutOfMemoryError):
        return RefusalError("The device's memory is not enough for this request.", status=500, code="out_of_memory")
    what = " ".join(redacted(str(error)).split())[:300]
    return RefusalError(f"The model failed: {type(error).__name__}: {what}", status=500, code="model_failed")
