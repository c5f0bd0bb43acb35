"""A rank that makes no progress: noticed on every rank, named, every rank's stacks written, and the job ended.

A rank that hangs (a disk that does not answer, a loader's worker, a GPU) leaves all the others inside a collective,
where they wait for half an hour or for ever, and nothing says for whom. So each rank notes at every phase of a step
that it goes on; a thread beside it puts the newest note into the job's store, and when nothing has come for too long
reads there who is behind. Code that never gives the interpreter's lock back also stops this rank's threads; the other
ranks' name it all the same.
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
"""Phases that may take so many times longer than others."""
TICK = 1.0
"""Seconds between two looks."""
GRACE_SECONDS = 5.0
"""How long the ranks of a stuck job wait for each other before it ends."""


class Beat(NamedTuple):
    """The last note of a rank."""

    step: int
    """The optimizer step it was in."""
    notes: int
    """Its notes in that step before this one: how far it had come, also where phases come again (accumulation)."""
    waits: bool
    """Whether it was found inside a collective: of two ranks about to do the same, this one is ahead."""
    phase: str
    """What it was about to do."""
    time: float
    """When, in seconds since the epoch."""
    process: str = ""
    """Its process and machine."""


def who_is_behind(rank: int, beats: Sequence[Beat | None]) -> str | None:
    """Return whom the others wait for, in words; None where another rank says it.

    Args:
        rank: this one.
        beats: the last note of every rank, by rank; None of one that was never heard of. Empty: the store that holds
            them does not answer.
    """
    if not beats:
        return "the job's store does not answer: rank 0, which holds it, is stopped or gone, or never came"
    places = [(-1, -1, False) if beat is None else beat[:3] for beat in beats]
    behind = [number for number, place in enumerate(places) if place == min(places)]
    if len(behind) == len(beats):
        text = "all ranks are at the same place: a deadlock, a dead network, or work that takes longer than this"
        return text if rank == 0 else None
    if rank in behind:
        return "the other ranks wait for this one"
    if any(number < rank and number not in behind for number in range(len(beats))):
        return None
    described = []
    for number in behind[:4]:
        beat = beats[number]
        where = "never seen"
        if beat is not None:
            ago = max(0.0, time.time() - beat.time)
            where = f"last seen in {beat.phase!r} of step {beat.step} {ago:.0f} s ago ({beat.process})"
        described.append(f"rank {number} is missing: {where}")
    more = f"; {len(behind) - 4} more ranks are missing" if len(behind) > 4 else ""
    return "; ".join(described) + more


class Watchdog:
    """Ends this rank's process when it has made no progress for ``seconds``, after it has said why.

    A context manager. Leave it before ranks may end one by one, or stop taking part in each other's work.

    Args:
        folder: gets ``rank-R.txt``, the stacks of all threads.
        rank: of this process.
        world: number of ranks.
        seconds: without progress, after which the job is ended; 0: never.
        work: grows while this rank's data are prepared, perhaps by other processes, which is progress of the whole job:
            the other ranks wait for it.
        store: of the job; by default the one of its process group, as soon as there is one.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        world: int,
        seconds: float,
        *,
        work: Callable[[], int] = lambda: 0,
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
        """How often a rank's work was seen to have grown."""
        self._store = store
        self._joined: Any = None
        """The store over a connection of its own, so that no lock is shared with training."""
        self._alarm, self._closed = threading.Event(), threading.Event()
        self._beat = Beat(0, 0, False, "start", time.time(), self._name)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._watch, self._publish)]

    def __enter__(self) -> "Watchdog":
        self.beat(0, "start")
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join(2 * TICK)  # one that waits for a store that is gone must not hold anything up

    def beat(self, step: int, phase: str) -> None:
        """Note that this rank goes on: it is about to do ``phase`` of ``step``. Touches nothing but memory.

        All ranks note the same in the same order; what one does alone (writing a file) gets no note.
        """
        last = self._beat
        notes = last.notes + 1 if step == last.step else 0
        self._beat = Beat(step, notes, False, phase, time.time(), self._name)

    def _watch(self) -> None:
        """The thread that counts the seconds without progress."""
        seen, stalled, last = self._progress(), 0.0, time.monotonic()
        while not self._closed.wait(self._tick):
            now = time.monotonic()
            # a process that was stopped (Ctrl-Z) did not hang all that time
            passed, last = min(now - last, 3 * self._tick), now
            if self._alarm.is_set():
                return self._end(stalled)
            if (progress := self._progress()) != seen:
                seen, stalled = progress, 0.0
                continue
            stalled += passed
            if self.seconds and stalled >= self.seconds * LONGER.get(self._beat.phase, 1.0):
                return self._end(stalled)

    def _progress(self) -> tuple[Beat, int, int]:
        return self._beat, self._work(), self._job_work

    def _publish(self) -> None:
        """The thread that tells the other ranks, and hears their alarm. A store that is gone ends it, and nothing else:
        then either the job is about to end, or the other thread will see that nothing goes on."""
        published, worked, wait = None, 0, 0.0  # the first note goes out at once
        with contextlib.suppress(RuntimeError, OSError, ValueError):
            while self.world > 1 and not self._closed.wait(wait):
                wait = self._tick
                if self._joined is None:
                    if self._store is None and not distributed.is_initialized():
                        continue
                    store: Any = self._store or distributed.distributed_c10d._get_default_store()
                    self._joined = distributed.PrefixStore("watchdog", store.clone())
                if self._beat is not published:
                    published = self._beat
                    self._joined.set(f"rank-{self.rank}", json.dumps(published))
                before, worked = worked, self._work()
                self._job_work = self._joined.add("work", int(worked > before))
                if self._joined.check(["alarm"]):
                    self._alarm.set()

    def _end(self, stalled: float) -> None:
        """Write the stacks, say who is behind, and end; give the others a little time to do the same."""
        beat = self._beat._replace(waits=_in_collective())
        head = f"no progress for {stalled:.0f} s at step {beat.step} in {beat.phase}"
        stacks = self._write_stacks(f"rank {self.rank} ({self._name}): {head}")
        if self.world == 1:
            who_waits: str | None = "there is no other rank"
        else:
            who_waits = who_is_behind(self.rank, _within(2 * GRACE_SECONDS, lambda: self._collect(beat)) or [])
        if who_waits is not None:
            who = f"watchdog on rank {self.rank}" if self.world > 1 else "watchdog"
            # past the locks and buffers that a stuck thread may hold; then what was printed before
            with contextlib.suppress(OSError):
                os.write(2, f"\n{who}: {head}; {who_waits}; stacks: {stacks}\n".encode())
            _within(1.0, sys.stdout.flush)
        _within(2.0, lambda: self._meet("leaving", 1.0))  # the store goes with rank 0
        os._exit(ExitCode.WATCHDOG)

    def _collect(self, beat: Beat) -> list[Beat | None]:
        """Have every rank end, and return the notes they end with, of those that can still write one."""
        store = self._joined
        if store is None:
            return []
        store.set("alarm", "1")
        store.set(f"rank-{self.rank}", json.dumps(beat))
        self._meet("conferring", GRACE_SECONDS)
        names = [f"rank-{rank}" for rank in range(self.world)]
        return [Beat(*json.loads(store.get(name))) if store.check([name]) else None for name in names]

    def _meet(self, where: str, seconds: float) -> None:
        """Wait until all ranks have come here, or so long."""
        if self._joined is None:
            return
        limit = time.monotonic() + seconds
        self._joined.add(where, 1)
        while self._joined.add(where, 0) < self.world and time.monotonic() < limit:
            time.sleep(0.05)

    def _write_stacks(self, head: str) -> str:
        """Write what every thread is doing; return where."""
        path = self.folder / f"rank-{self.rank}.txt"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {head}\n\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
            return str(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                faulthandler.dump_traceback(2, all_threads=True)
            return f"above ({storage.explain(error, self.folder)})"


def _in_collective() -> bool:
    """Return whether the main thread is inside a collective, as far as its Python frames tell."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("torch.distributed"):
            return True
        frame = frame.f_back
    return False


def _within(seconds: float, work: Callable[[], Any]) -> Any | None:
    """Return what ``work`` returns, or None if it has not by then, or failed as a store or a stream fails."""
    found: list[Any] = []

    def run() -> None:
        with contextlib.suppress(RuntimeError, OSError, ValueError):
            found.append(work())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None
