"""Detect a rank that makes no progress: name it, write every rank's stacks, and end the job.

A rank that hangs (a disk, a data-loader worker, a GPU) leaves all the others inside a collective, where they wait for
half an hour or forever, and nothing names the rank. So each rank records a beat at every phase of a step; a thread
publishes the newest one in the job's store, and compares all of them if nothing has changed for too long. A rank whose
code never releases the interpreter's lock cannot run these threads; the other ranks still name it.
"""

import contextlib
import faulthandler
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import distributed

from tape_ds import storage
from tape_ds.exit_codes import ExitCode

LONGER = {"saving": 4.0}
"""Factors of the limit for phases that may take longer."""
TICK = 1.0
"""Seconds between two checks."""
GRACE_SECONDS = 5.0
"""How long the ranks of a stuck job wait for each other before it ends."""


class Beat(NamedTuple):
    """The last sign of progress of a rank."""

    step: int
    """Optimizer step."""
    notes: int
    """Number of earlier beats in this step: phases repeat under gradient accumulation."""
    waits: bool
    """Whether it was inside a collective: of two ranks at the same phase, it is the one ahead."""
    phase: str
    """The work it was about to do."""
    time: float
    """Seconds since the epoch."""
    process: str = ""
    """Its process and machine."""


def who_is_behind(rank: int, beats: Sequence[Beat | None]) -> str | None:
    """Describe the ranks that the others wait for; None if another rank than ``rank`` reports it. ``beats`` are the
    last of every rank, None for one that never had any; empty if the store does not answer."""
    if not beats:
        return "the job's store does not answer: rank 0, which holds it, is stopped or gone, or never came"
    # a rank that was never seen is before all others
    places = [(-1, -1, False) if beat is None else beat[:3] for beat in beats]
    behind = [number for number, place in enumerate(places) if place == min(places)]
    if len(behind) == len(beats):
        text = "all ranks are at the same place: a deadlock, a dead network, or work that takes longer than this"
        if rank == 0:
            return text
        return None
    if rank in behind:
        return "the other ranks wait for this one"
    # the first rank that is not missing reports for all
    if any(number not in behind for number in range(rank)):
        return None
    described = []
    for number in behind[:4]:
        where = "never seen"
        beat = beats[number]
        if beat is not None:
            ago = max(0.0, time.time() - beat.time)
            where = (
                f"last seen in {beat.phase!r} of step {beat.step} {ago:.0f} s ago ({beat.process})"
            )
        described.append(f"rank {number} is missing: {where}")
    more = ""
    if len(behind) > 4:
        more = f"; {len(behind) - 4} more ranks are missing"
    return "; ".join(described) + more


class Watchdog:
    """Context manager that ends this rank's process if it makes no progress for ``seconds``, after naming the reason.

    Leave it before ranks may end one by one, or no longer take part in each other's work.

    Args:
        folder: gets ``rank-R.txt``, the stacks of all threads.
        rank: of this process.
        world: number of ranks.
        seconds: limit without progress; 0: none.
        work: a counter that grows while this rank's data are prepared, which is progress of the whole job.
        store: of the job; default: the process group's, as soon as there is one.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        world: int,
        seconds: float,
        *,
        work: Callable[[], int] = int,
        store: Any = None,
    ):
        self.folder = folder
        self.rank = rank
        self.world = world
        self.seconds = seconds
        self._name = f"process {os.getpid()} on {socket.gethostname()}"
        self._tick = min(TICK, seconds / 5) if seconds else TICK
        self._work = work
        self._job_work = 0
        """How often some rank's work had grown."""
        self._store = store
        self._connection: Any = None
        """A second connection to the store: it shares no lock with training."""
        self._alarm = threading.Event()
        self._closed = threading.Event()
        self._beat = Beat(0, 0, False, "start", time.time(), self._name)
        # two, since the store may not answer, which the one that watches must notice
        self._threads = [
            threading.Thread(target=loop, daemon=True) for loop in (self._watch, self._publish)
        ]

    def __enter__(self) -> "Watchdog":
        self.beat(0, "start")
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._closed.set()
        for thread in self._threads:
            # one may wait for a store that is gone
            thread.join(2 * TICK)

    def beat(self, step: int, phase: str) -> None:
        """Record that this rank is about to do ``phase`` of ``step``; costs no communication.

        All ranks record the same phases in the same order; work of one rank alone (writing a file) is not recorded.
        """
        notes = self._beat.notes + 1 if step == self._beat.step else 0
        self._beat = Beat(step, notes, False, phase, time.time(), self._name)

    def _watch(self) -> None:
        seen = None
        stalled = 0.0
        last = time.monotonic()
        while not self._closed.wait(self._tick):
            now = time.monotonic()
            # a process that was stopped (Ctrl-Z) was not stuck all that time
            passed = min(now - last, 3 * self._tick)
            last = now
            if self._alarm.is_set():
                return self._end(stalled)
            progress = (self._beat, self._work(), self._job_work)
            if progress != seen:
                seen = progress
                stalled = 0.0
                continue
            stalled += passed
            if self.seconds and stalled >= self.seconds * LONGER.get(self._beat.phase, 1.0):
                return self._end(stalled)

    def _publish(self) -> None:
        """Publish beats and listen for another rank's alarm, until the store is gone: then either the job is about to
        end, or the other thread notices."""
        # the first beat is published at once
        published = None
        worked = 0
        wait = 0.0
        with contextlib.suppress(RuntimeError, OSError, ValueError):
            while self.world > 1 and not self._closed.wait(wait):
                wait = self._tick
                if self._connection is None:
                    if self._store is None and not distributed.is_initialized():
                        continue
                    store: Any = self._store or distributed.distributed_c10d._get_default_store()
                    self._connection = distributed.PrefixStore("watchdog", store.clone())
                if self._beat is not published:
                    published = self._beat
                    self._connection.set(f"rank-{self.rank}", json.dumps(published))
                before = worked
                worked = self._work()
                self._job_work = self._connection.add("work", int(worked > before))
                if self._connection.check(["alarm"]):
                    self._alarm.set()

    def _end(self, stalled: float) -> None:
        """Write the stacks, report who is behind, wait for the other ranks to do the same, and exit."""
        # inside a collective, judged by the Python frames of the main thread
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None and not str(frame.f_globals.get("__name__")).startswith(
            "torch.distributed"
        ):
            frame = frame.f_back
        beat = self._beat._replace(waits=frame is not None)
        head = f"no progress for {stalled:.0f} s at step {beat.step} in {beat.phase}"

        path = self.folder / f"rank-{self.rank}.txt"
        stacks = str(path)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as file:
                file.write(
                    f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} rank {self.rank} ({self._name}): {head}\n\n"
                )
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
        except OSError as error:
            stacks = f"above ({storage.explain(error, self.folder)})"
            with contextlib.suppress(OSError):
                faulthandler.dump_traceback(2, all_threads=True)

        def confer() -> list[Beat | None]:
            """Alarm every rank, and return the last beats of those that can still publish one."""
            store = self._connection
            if store is None:
                return []
            store.set("alarm", "1")
            store.set(f"rank-{self.rank}", json.dumps(beat))
            self._meet("conferring", GRACE_SECONDS)
            beats: list[Beat | None] = [None] * self.world
            for rank in range(self.world):
                # `get` would wait for a rank that has never published one
                if store.check([f"rank-{rank}"]):
                    beats[rank] = Beat(*json.loads(store.get(f"rank-{rank}")))
            return beats

        reason: str | None = "there is no other rank"
        if self.world > 1:
            reason = who_is_behind(self.rank, _within(2 * GRACE_SECONDS, confer) or [])
        if reason is not None:
            who = "watchdog"
            if self.world > 1:
                who = f"watchdog on rank {self.rank}"
            # not through sys.stderr: a stuck thread may hold its lock. Then what was printed before
            with contextlib.suppress(OSError):
                os.write(2, f"\n{who}: {head}; {reason}; stacks: {stacks}\n".encode())
            _within(1.0, sys.stdout.flush)
        # the store ends with rank 0
        _within(2.0, lambda: self._meet("leaving", 1.0))
        os._exit(ExitCode.WATCHDOG)

    def _meet(self, where: str, seconds: float) -> None:
        if self._connection is None:
            return
        limit = time.monotonic() + seconds
        self._connection.add(where, 1)
        while self._connection.add(where, 0) < self.world and time.monotonic() < limit:
            time.sleep(0.05)


def _within(seconds: float, work: Callable[[], Any]) -> Any | None:
    """Return the result of ``work``; None if it takes longer, or if the store or stream fails."""
    results: list[Any] = []

    def run() -> None:
        with contextlib.suppress(RuntimeError, OSError, ValueError):
            results.append(work())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if results:
        return results[0]
    return None
