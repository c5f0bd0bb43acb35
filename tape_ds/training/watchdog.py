"""A rank that makes no progress: noticed on every rank, named, every rank's stacks written, and the job ended.

A rank that hangs (a disk that does not answer, a loader's worker, a GPU) leaves all the others inside a collective,
where they wait for half an hour or for ever, and nothing says for whom. So each rank says at every phase of a step that
it goes on; a thread beside it pins the newest word up in the job's store, and when nothing has come for too long reads
there who is behind.

A thread needs the interpreter: code that never gives its lock back also stops this rank's watchdog. The other ranks'
name it all the same.
"""

import contextlib
import dataclasses
import faulthandler
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from torch import distributed

from tape_ds import storage

EXIT_CODE = 4
"""Exit code of a job that got stuck."""
LOST_EXIT_CODE = 1
"""Exit code when another rank's process is gone: that one's own end is what there is to look at."""
LONGER = {"saving": 4.0}
"""Phases that may take so many times longer than others."""
TICK = 1.0
"""Seconds between two looks."""
LOST_SECONDS = 10.0
"""How long another rank's process may be gone before this one ends: a collective may yet notice it, and say more."""
GRACE_SECONDS = 5.0
"""How long the ranks of a stuck job wait for each other before it ends; twice that for a store that does not answer."""
NAMED = 4
"""Missing ranks that a message describes one by one."""


@dataclass(frozen=True)
class Beat:
    """The last word of a rank."""

    step: int
    """The optimizer step it was in."""
    count: int
    """Its words in that step before this one: how far it had come, also where phases come again (accumulation)."""
    phase: str
    """What it was about to do."""
    time: float
    """When, in seconds since the epoch."""
    waits: bool = False
    """Whether it was found inside a collective."""
    process: int = 0
    """Process id."""
    host: str = ""
    """Name of its machine."""

    @property
    def place(self) -> tuple[int, int, bool]:
        """How far the rank had come. Ranks run the same program, so that these compare: of two that were about to do
        the same, the one that already waits for the other is ahead."""
        return self.step, self.count, self.waits

    def __str__(self) -> str:
        ago = max(0.0, time.time() - self.time)
        return (
            f"last seen in {self.phase!r} of step {self.step} {ago:.0f} s ago (process {self.process} on {self.host})"
        )


@dataclass(frozen=True)
class Verdict:
    """Whom the others wait for."""

    behind: list[int]
    """Ranks that had come least far; none when all are at the same place, or nothing is known."""
    text: str
    """In words, from the point of view of one rank."""
    speaker: bool
    """Whether that rank says it on the terminal: those that are behind, and one of the others."""


def judge(rank: int, beats: Sequence[Beat | None] | None) -> Verdict:
    """Say who is behind.

    Args:
        rank: this one.
        beats: the last word of every rank, by rank, None from a rank that was never heard of; None when the store that
            holds them does not answer, or was never there.
    """
    if beats is None:
        text = "the job's store does not answer: rank 0, which holds it, is stopped or gone, or never came"
        return Verdict([], text, True)
    places = [(-1, -1, False) if beat is None else beat.place for beat in beats]
    least = min(places)
    if max(places) == least and None not in beats:
        if len(beats) == 1:
            return Verdict([], "there is no other rank", True)
        text = "all ranks are at the same place: a deadlock, a dead network, or work that takes longer than this"
        return Verdict([], text, rank == 0)
    behind = [number for number, place in enumerate(places) if place == least]
    if rank in behind:
        return Verdict(behind, "the other ranks wait for this one", True)
    described = [f"rank {number} is missing: {beats[number] or 'never seen'}" for number in behind[:NAMED]]
    if len(behind) > NAMED:
        described.append(f"{len(behind) - NAMED} more ranks are missing")
    first = next(number for number in range(len(beats)) if number not in behind)
    return Verdict(behind, "; ".join(described), rank == first)


class Board:
    """Where ranks pin up their last words for each other: the job's store, over a connection of its own, so that no
    lock is shared with training. Every method may wait for the store, and raise what it raises."""

    def __init__(self, store: Any, rank: int, world: int):
        self.store = distributed.PrefixStore("watchdog", store.clone())
        self.rank = rank
        self.world = world

    def pin(self, beat: Beat) -> None:
        """Put this rank's word up."""
        own = dataclasses.replace(beat, process=os.getpid(), host=socket.gethostname())
        self.store.set(f"rank-{self.rank}", json.dumps(dataclasses.asdict(own)))

    def read(self) -> list[Beat | None]:
        """Every rank's word, by rank."""
        names = [f"rank-{rank}" for rank in range(self.world)]
        return [Beat(**json.loads(self.store.get(name))) if self.store.check([name]) else None for name in names]

    def confer(self, beat: Beat) -> list[Beat | None]:
        """Have every rank end, wait until all that can have pinned up the word they end with, and :meth:`read`."""
        self.store.set("alarm", "1")
        self.pin(beat)
        self._meet("conferring", GRACE_SECONDS)
        return self.read()

    def alarmed(self) -> bool:
        """Whether some rank has raised the alarm."""
        return bool(self.store.check(["alarm"]))

    def leave(self) -> None:
        """Wait until all ranks have read: the store goes with rank 0."""
        self._meet("leaving", 1.0)

    def _meet(self, where: str, seconds: float) -> None:
        """Wait until all ranks have come here, or so long."""
        limit = time.monotonic() + seconds
        self.store.add(where, 1)
        while self.store.add(where, 0) < self.world and time.monotonic() < limit:
            time.sleep(0.05)


class Watchdog:
    """Ends this rank's process when it has made no progress for ``seconds``, after it has said why.

    Between :meth:`start` and :meth:`close`, or as a context manager. Close it before ranks may end one by one, or stop
    taking part in each other's work.

    Args:
        folder: gets ``rank-R.txt``, the stacks of all threads.
        rank: of this process.
        world: number of ranks.
        seconds: without progress, after which the job is ended; 0: never.
        store: of the job; by default the one of its process group, as soon as there is one.
        siblings: host name and process id of every rank. One on this host that is gone for ``LOST_SECONDS``, in which
            this rank did not come on, ends it: some backends wait for a dead rank for ever.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        world: int,
        seconds: float,
        *,
        store: Any = None,
        siblings: Mapping[int, tuple[str, int]] | None = None,
    ):
        self.folder = folder
        self.rank = rank
        self.world = world
        self.seconds = seconds
        self._store = store
        self._siblings = _processes(siblings or {})
        self._beat = Beat(0, 0, "start", time.time())
        self._pauses = 0
        self._board: Board | None = None
        self._alarm = threading.Event()
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=work.__name__, daemon=True) for work in (self._watch, self._publish)
        ]

    def start(self) -> "Watchdog":
        """Begin to watch."""
        self.beat(self._beat.step, self._beat.phase)
        for thread in self._threads:
            thread.start()
        return self

    def close(self) -> None:
        """Stop watching; may be called again."""
        self._closed.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(2 * TICK)  # one that waits for a store that is gone must not hold anything up

    def __enter__(self) -> "Watchdog":
        return self.start()

    def __exit__(self, *_: Any) -> None:
        self.close()

    def beat(self, step: int, phase: str) -> None:
        """Say that this rank goes on: it is about to do ``phase`` of ``step``. Touches nothing but memory.

        All ranks say the same words in the same order; what one does alone (writing a file) is no word of its own.
        """
        last = self._beat
        self._beat = Beat(step, last.count + 1 if step == last.step else 0, phase, time.time())

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Work whose length nobody knows. All ranks must pause together, or the others end while they wait."""
        self._pauses += 1
        try:
            yield
        finally:
            self._beat = dataclasses.replace(self._beat, time=time.time())
            self._pauses -= 1

    def _watch(self) -> None:
        """The thread that counts the seconds without progress."""
        seen, stalled, lost = self._beat, 0.0, 0.0
        last = time.monotonic()
        tick = self._tick()
        while not self._closed.wait(tick):
            now = time.monotonic()
            # a process that was stopped (Ctrl-Z) did not hang all that time
            passed, last = min(now - last, 3 * tick), now
            if self._alarm.is_set():
                return self._end(stalled)
            if self._beat is not seen or self._pauses:
                seen, stalled, lost = self._beat, 0.0, 0.0
                continue
            stalled += passed
            gone = [rank for rank, process in self._siblings.items() if not _lives(process)]
            lost = lost + passed if gone else 0.0
            if gone and lost >= LOST_SECONDS:
                return self._end_without(gone)
            if self.seconds and stalled >= self.seconds * LONGER.get(seen.phase, 1.0):
                return self._end(stalled)

    def _publish(self) -> None:
        """The thread that tells the other ranks, and hears their alarm. A store that is gone ends it, and nothing else:
        then either the job is about to end, or the other thread will see that nothing goes on."""
        pinned, wait = None, 0.0  # the first word goes up at once
        while self.world > 1 and not self._closed.wait(wait):
            wait = self._tick()
            try:
                self._board = self._board or self._join()
                if self._board is None:
                    continue
                beat = self._beat
                if beat is not pinned:
                    self._board.pin(beat)
                    pinned = beat
                if self._board.alarmed():
                    self._alarm.set()
            except (RuntimeError, OSError, ValueError):
                return

    def _join(self) -> Board | None:
        """The board of the job; None while the job has no process group yet."""
        store = _job_store() if self._store is None else self._store
        return None if store is None else Board(store, self.rank, self.world)

    def _tick(self) -> float:
        return min(TICK, self.seconds / 5) if self.seconds else TICK

    def _end(self, stalled: float) -> None:
        """Stacks, the verdict, and out; the others a little time to do the same."""
        beat, board = self._beat, self._board
        head = f"no progress for {stalled:.0f} s at step {beat.step} in {beat.phase}"
        stacks = self._write_stacks(f"rank {self.rank} (process {os.getpid()} on {socket.gethostname()}): {head}")

        beats: list[Beat | None] | None = [beat] if self.world == 1 else None
        if board is not None:
            last = dataclasses.replace(beat, waits=_in_collective())
            beats = _within(2 * GRACE_SECONDS, lambda: board.confer(last))
        verdict = judge(self.rank, beats)
        if verdict.speaker:
            self._say(f"{head}; {verdict.text}; stacks: {stacks}")
        _within(1.0, sys.stdout.flush)
        if board is not None:
            _within(2.0, board.leave)
        os._exit(EXIT_CODE)

    def _end_without(self, gone: list[int]) -> None:
        beat = self._beat
        names = ", ".join(f"rank {rank} (process {self._siblings[rank].pid})" for rank in gone)
        self._say(f"{names} is gone, and this rank waits at step {beat.step} in {beat.phase}: ending")
        _within(1.0, sys.stdout.flush)
        os._exit(LOST_EXIT_CODE)

    def _write_stacks(self, head: str) -> str:
        """Write what every thread is doing; returns where."""
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

    def _say(self, text: str) -> None:
        """On stderr, past the locks and buffers that a stuck thread may hold."""
        who = f"watchdog on rank {self.rank}" if self.world > 1 else "watchdog"
        with contextlib.suppress(OSError):
            os.write(2, f"\n{who}: {text}\n".encode())


def _job_store() -> Any | None:
    """The store of the job's process group, if it has joined one."""
    return distributed.distributed_c10d._get_default_store() if distributed.is_initialized() else None


def _in_collective() -> bool:
    """Whether the main thread is inside a collective, as far as its Python frames tell."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("torch.distributed"):
            return True
        frame = frame.f_back
    return False


def _within(seconds: float, work: Callable[[], Any]) -> Any | None:
    """What ``work`` returns, or None if it has not by then, or failed as a store or a stream fails."""
    found: list[Any] = []

    def run() -> None:
        with contextlib.suppress(RuntimeError, OSError, ValueError):
            found.append(work())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def _processes(siblings: Mapping[int, tuple[str, int]]) -> dict[int, psutil.Process]:
    """Processes of the other ranks on this host. psutil knows each by its start as well: ids are given again."""
    found = {}
    for rank, (host, process) in siblings.items():
        if host == socket.gethostname() and process != os.getpid():
            with contextlib.suppress(psutil.Error):
                found[rank] = psutil.Process(process)
    return found


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # there, but not ours to ask
        return True
