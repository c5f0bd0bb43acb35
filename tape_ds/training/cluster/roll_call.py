"""The ranks of a job on several machines call each other before there is a process group.

A process group waits half an hour for a rank that never comes, and says nothing. A machine that ends beforehand, since
its recipe is another, a file is missing there or a library is broken, leaves all the others waiting so. On one machine
the launcher ends them; here they tell each other: through the store that the process group will use as well, at rank 0
(or at torchrun's agent beside it), from the first moment on.

    @command
    @roll_call.answering          # an error before the job has joined is told to all ranks, and rank 0 says it
    def main() -> int: ...

    roll_call.attend(600)         # all are there, or one message says who is not, or what they say; at once on all
"""

import contextlib
import functools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, NoReturn

from tape_ds.errors import GRACE_SECONDS, Problem, UserError, is_main_process, raise_if_any, redacted
from tape_ds.training import verdict
from tape_ds.training.cluster import place as places
from tape_ds.training.cluster.place import Place, ranges

JOIN_SECONDS = 600.0
"""How long the others may take to start; a cold disk that all machines read from is slow."""
DECLINE_SECONDS = 60.0
"""How long a rank that cannot start looks for the others to tell them."""
LINGER_SECONDS = 30.0
"""How long rank 0, which holds the store, waits for the others to hear that nothing starts."""
LEAVE_SECONDS = 2.0
"""How long one that was asked to stop waits for the others to hear it: those who are here look all the time."""
ANSWER_SECONDS = 60.0
"""How long who listens at the store's port may take for its first word."""
NOTICE_SECONDS = 30.0
"""After how long rank 0 says for whom it waits, and again after each of them."""
POLL_SECONDS = 0.2
NAMED = 8
"""Machines that a message names one by one."""


class NotTogether(UserError):  # noqa: N818 - the machines are to blame
    """Raised where machines do not come, or break down: no recipe is wrong, and another start may go well."""


class RollCall:
    """One process's part in it. All that stands in the store stands behind a prefix.

    Args:
        store: the job's.
        place: this process's.
        say: shows a line to a person, on rank 0.
    """

    def __init__(self, store: Any, place: Place, say: Callable[[str], None]):
        self.store = store
        self.place = place
        self.say = say
        self.over = False
        """Whether it has ended: this process has said, or heard, that the job does not start."""
        self.is_told = False
        """Whether this process has heard that rank 0 has said why."""
        self._number = 0
        self._is_broken = False
        store.set(f"host/{place.rank}", place.machine)

    def attend(self, seconds: float) -> None:
        """Wait until all ranks are here, for the same time.

        Raises:
            UserError: some did not come, or one cannot start; on all ranks, with their reasons on rank 0.
        """
        with self._store_may_go():
            if self._number == 0:
                self._enter()
            self._number += 1
            stage, place = f"attend-{self._number}", self.place
            self.store.set(f"{stage}/{place.rank}", "here")
            self.store.add(stage, 1)
            self._until(lambda: self.store.add(stage, 0) >= place.world, seconds, stage)

    def exchange(self, own: str, judge: Callable[[list[str]], str], seconds: float) -> str:
        """What rank 0 makes of every rank's text.

        Args:
            own: this rank's.
            judge: called on rank 0 with all of them, by rank.
            seconds: that it may take.
        """
        with self._store_may_go():
            self._number += 1
            stage, rank = f"exchange-{self._number}", self.place.rank
            self.store.set(f"{stage}/{rank}", own)
            self.store.add(stage, 1)
            if rank == 0:
                self._until(lambda: self.store.add(stage, 0) >= self.place.world, seconds, stage)
                names = [f"{stage}/{number}" for number in range(self.place.world)]
                self.store.set(f"{stage}/judged", judge([text.decode() for text in self.store.multi_get(names)]))
            self._until(lambda: self.store.check([f"{stage}/judged"]), seconds, stage)
            return str(self.store.get(f"{stage}/judged").decode())

    def decline(self, problems: Sequence[Problem], broken: bool = False) -> list[Problem]:
        """Tell the others that this rank cannot start; returns what there is to say, on rank 0 of all ranks that
        cannot, when the others have heard it.

        Args:
            problems: why.
            broken: whether something broke down, that is nobody's mistake.
        """
        self.over = True
        if broken:
            self.store.add("broken", 1)
        counted = [each for each in self._miscounted() if each not in problems]  # may be why: say that as well
        self._tell([*problems, *counted])
        return self._conclude(problems)

    def end(self) -> None:
        """Every rank knows by now why nothing starts: return when all have heard it, so that none is cut short."""
        self.over = True
        self._conclude([])

    def _tell(self, problems: Sequence[Problem]) -> None:
        """Under a number of its own: two may have one rank, and a rank may be one that rank 0 does not count."""
        said = [[each.field, redacted(str(each.value)), each.wrong, each.remedy] for each in problems]
        number = self.store.add("declining", 1)
        self.store.set(f"declined/{number}", json.dumps([self.place.rank, said]))
        self.store.add("declined", 1)

    def _enter(self) -> None:
        """Be the only one of this number, in a job that all count alike.

        Raises:
            UserError: the machines were not started as one job.
        """
        place = self.place
        if self.store.add(f"entered/{place.rank}", 1) > 1:
            wrong = f"another process is rank {place.rank} already"
            raise UserError(
                Problem("--node_rank", place.node, wrong, "give every machine a number of its own, from 0 on")
            )
        raise_if_any(self._miscounted())

    def _miscounted(self) -> list[Problem]:
        """What is wrong where this machine counts other ranks than the first that counted."""
        place = self.place
        counted = self.store.compare_set("world", "", str(place.world)).decode()
        if counted == str(place.world):
            return []
        wrong = f"{place.machine} counts so many ranks, another machine {counted}"
        remedy = "start all machines with the same hostfile, --include and --num_nodes, or --nnodes"
        return [Problem("ranks", place.world, wrong, remedy)]

    def _until(self, done: Callable[[], bool], seconds: float, stage: str) -> None:
        """Wait for it; ends with all the others where one has declined, and with who is missing."""
        began = noticed = time.monotonic()
        while not done():
            if self.store.add("declined", 0):
                self.over = True
                found = self._conclude([])
                raise (NotTogether if self._is_broken else UserError)(found)
            if (reason := _asked()) is not None:
                self._leave(reason)
            now = time.monotonic()
            if now - began > seconds:
                self.over = True
                error = NotTogether(self._never_came(stage, now - began))
                error.on_one_rank = self.place.leads and not self.store.check([f"{stage}/0"])
                raise error
            if self.place.rank == 0 and now - noticed > NOTICE_SECONDS:
                noticed = now
                self.say(f"waiting for {self._missing(stage)} since {now - began:.0f} s")
            time.sleep(POLL_SECONDS)

    def _leave(self, reason: str) -> NoReturn:
        """Have the others end with this one, which was asked to stop; nothing has begun."""
        self.over = True
        problem = _stopped(self.place, reason)
        self.store.add("broken", 1)
        self._tell([problem])
        error = NotTogether(self._conclude([problem], LEAVE_SECONDS))
        error.on_one_rank = self.place.leads and not self.is_told
        raise error

    @contextlib.contextmanager
    def _store_may_go(self) -> Iterator[None]:
        """Rank 0 may end at any moment, and the store with it."""
        try:
            yield
        except RuntimeError as error:
            self.over = True
            wrong = f"rank 0, which holds the job's store, is gone ({_first_line(error)})"
            problem = Problem("start", self.place.machine, wrong, "see what the first machine says")
            raise _of_each_machine(problem) from error

    def _conclude(self, own: Sequence[Problem], seconds: float | None = None) -> list[Problem]:
        """Nothing starts: have all ranks hear it before the first of them ends, and collect what they say."""
        world, rank = self.place.world, self.place.rank
        with contextlib.suppress(RuntimeError):  # a store that is gone is heard as well
            self._is_broken = bool(self.store.add("broken", 0))
            self.store.add("heard", 1)
            linger = LINGER_SECONDS if seconds is None else seconds
            until = time.monotonic() + linger + (LEAVE_SECONDS if rank else 0)  # rank 0 may have begun a little later
            heard = (lambda: self.store.add("heard", 0) >= world) if rank == 0 else lambda: self.store.check(["said"])
            while not (is_heard := heard()) and time.monotonic() < until:
                time.sleep(POLL_SECONDS)
            if rank == 0:
                found = self._declined()
                self.store.set("said", "1")
                return found or list(own)
            self.is_told = is_heard
        self._point_to_rank_0()
        return list(own)

    def _declined(self) -> list[Problem]:
        """What the ranks say that cannot start, each thing once; where not all say it, with their machines."""
        said: dict[tuple[str, ...], set[int]] = {}
        for number in range(1, self.store.add("declining", 0) + 1):
            if self.store.check([f"declined/{number}"]):
                rank, problems = json.loads(self.store.get(f"declined/{number}"))
                for each in problems:
                    said.setdefault(tuple(each), set()).add(rank)
        found = []
        for (field, value, wrong, remedy), ranks in sorted(said.items(), key=lambda item: min(item[1])):
            where = "" if ranks >= set(range(self.place.world)) else f" on {self._machines(sorted(ranks))}"
            found.append(Problem(f"{field}{where}", value, wrong, remedy))
        return found

    def _never_came(self, stage: str, seconds: float) -> list[Problem]:
        wrong = f"{self._missing(stage)} did not come within {seconds:.0f} s"
        remedy = (
            "see what was said there; that the same command was started there, with the same machines and its own "
            "--node_rank; and that a firewall lets --master_port through"
        )
        return [Problem("start", self.place.machine, wrong, remedy)]

    def _missing(self, stage: str) -> str:
        absent = [rank for rank in range(self.place.world) if not self.store.check([f"{stage}/{rank}"])]
        return self._machines(absent)

    def _machines(self, ranks: Iterable[int]) -> str:
        """The machines of ranks in words: by what they said of themselves, else by how ranks are dealt out."""
        found: dict[str, list[int]] = {}
        for rank in ranks:
            found.setdefault(self._machine(rank), []).append(rank)
        shown = [f"{name}, {'rank' if len(own) == 1 else 'ranks'} {ranges(own)}" for name, own in found.items()]
        more = f" and {len(shown) - NAMED} more machines" if len(shown) > NAMED else ""
        return "; ".join(shown[:NAMED]) + more

    def _machine(self, rank: int) -> str:
        if self.store.check([f"host/{rank}"]):
            return str(self.store.get(f"host/{rank}").decode())
        node = self.place.node_of(rank)
        return "an unknown machine" if node is None else f"node_rank {node}"

    def _point_to_rank_0(self) -> None:
        """One line at each other machine: with ``--no_ssh`` its terminal shows nothing else."""
        place = self.place
        if place.leads and place.rank != 0:
            where = "the first machine says why" if self.is_told else "the first machine has not said why"
            print(f"\n{place.machine}: the run does not start; {where}", file=sys.stderr, flush=True)


def _nobody_asks() -> str | None:
    return None


_asked: Callable[[], str | None] = _nobody_asks
"""Why this process was asked to stop, if it was."""
_call: RollCall | None = None
"""This process's."""
_gave_up = False
"""Whether it could not be joined."""


def current(seconds: float = JOIN_SECONDS) -> RollCall | None:
    """This process's, joined by now; None where the whole job is on one machine, or nobody says where rank 0 is.

    Raises:
        UserError: rank 0 cannot be reached, or its port is taken.
    """
    global _call, _gave_up
    place = places.here()
    if _call is None and not place.is_alone and {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        _gave_up = True
        store = _store(place, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), seconds)
        _call, _gave_up = RollCall(store, place, lambda text: print(text, flush=True)), False
    return _call


def leave_when(asked: Callable[[], str | None]) -> None:
    """End the waiting, here and on all ranks, as soon as ``asked`` gives a reason to stop: a signal, or a launcher that
    is gone. Whoever answers those otherwise, at the end of a step, is not there yet."""
    global _asked
    _asked = asked


def attend(seconds: float = JOIN_SECONDS) -> None:
    """:meth:`RollCall.attend`, where there are several machines."""
    call = current(seconds)
    if call is not None:
        call.attend(seconds)


def answering(main: Callable[..., int | None]) -> Callable[..., int | None]:
    """Wrap a launcher's ``main``: what keeps this rank from starting is told to the others while they wait for it."""

    @functools.wraps(main)
    def wrapped(*args: Any, **kwargs: Any) -> int | None:
        try:
            return main(*args, **kwargs)
        except NotTogether as error:
            return _end(error)
        except UserError as error:
            verdict.leave(verdict.MEND)
            said = _decline(error.problems)
            if said is None:
                raise
            told = UserError(said)
            told.on_one_rank = places.here().leads and not (_call is not None and _call.is_told)
            raise told from error
        except Exception as error:
            wrong = f"ended with {type(error).__name__}: {_first_line(error)}"
            _decline([Problem("start", places.here().host, wrong, "see its traceback, on that machine")], broken=True)
            raise

    return wrapped


def _end(error: NotTogether) -> int:
    """Say it, if it is this process's to say, and give the exit code: not that of a mistake, so that what keeps a run
    alive tries again."""
    if is_main_process() or error.on_one_rank:
        print(f"\nerror: {redacted(str(error))}", file=sys.stderr, flush=True)
    else:
        time.sleep(GRACE_SECONDS)
    return 1


def _decline(problems: Sequence[Problem], broken: bool = False) -> list[Problem] | None:
    """Tell the others; None where nobody waits for it, or nobody can be told: this rank then speaks for itself."""
    place = places.here()
    if place.is_alone or _gave_up or (_call is not None and _call.over):
        return None
    from torch import distributed  # not needed where a job is alone, which may be here to be told of a typo

    if distributed.is_initialized():
        return None
    try:
        call = current(DECLINE_SECONDS)
        return None if call is None else call.decline(problems, broken)
    except (UserError, RuntimeError):
        if place.leads and place.rank != 0:
            print(f"\nerror: {redacted(str(UserError(problems)))}", file=sys.stderr, flush=True)
        return None


def _store(place: Place, address: str, port: int, seconds: float) -> Any:
    """The job's store; rank 0 begins it, unless torchrun's agent has."""
    from torch import distributed

    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    host = place.rank == 0 and not by_agent
    if not host:
        _reach(place, address, port, seconds)

    def join() -> Any:
        # as torch's own rendezvous makes it, which finds this one when the process group is joined
        timeout = timedelta(seconds=max(seconds, 30.0))
        return distributed.TCPStore(
            address, port, is_master=host, timeout=timeout, wait_for_workers=False, multi_tenant=True
        )

    try:
        store = join() if host else _within(ANSWER_SECONDS, join)
    except (RuntimeError, TimeoutError) as error:
        if host and "EADDRINUSE" in str(error):
            raise UserError(Problem("--master_port", port, "taken on this machine", "give another one")) from error
        if host:
            wrong = f"rank 0 cannot be reached by it ({_first_line(error)})"
            raise UserError(Problem("--master_addr", address, wrong, "give an address of the first machine")) from error
        wrong = f"what answers at {address} is not this job's rank 0"
        raise _of_each_machine(
            Problem("--master_port", port, wrong, "give another one, the same everywhere")
        ) from error
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return distributed.PrefixStore(f"roll_call-{attempt}", store)


def _within(seconds: float, make: Callable[[], Any]) -> Any:
    """What ``make`` returns, on a thread: torch waits for the first word of a store without end, and whatever listens
    there may not speak.

    Raises:
        TimeoutError: it took longer; the thread is left to itself.
    """
    made: Future[Any] = Future()

    def work() -> None:
        try:
            made.set_result(make())
        except Exception as error:
            made.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return made.result(seconds)


def _reach(place: Place, address: str, port: int, seconds: float) -> None:
    """Wait until somebody answers there; torch would wait as well, and fill the terminal with its stack."""
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((address, port), timeout=5).close()
            return
        except OSError as error:  # a name that is not known may become known: containers come up one by one
            if (reason := _asked()) is not None:
                raise _of_each_machine(_stopped(place, reason)) from error
            if time.monotonic() > until:
                why = f"within {seconds:.0f} s ({error.strerror or error})"
                wrong = f"rank 0 did not answer {place.machine} at port {port} {why}"
                remedy = "see that it was started there, and that a firewall lets the port through"
                raise _of_each_machine(Problem("--master_addr", address, wrong, remedy)) from error
        time.sleep(POLL_SECONDS)


def _stopped(place: Place, reason: str) -> Problem:
    return Problem("start", reason, f"{place.machine} was stopped while it waited for the others", "start it again")


def _of_each_machine(problem: Problem) -> NotTogether:
    """What rank 0 cannot say for the others: the first rank of each machine does."""
    error = NotTogether(problem)
    error.on_one_rank = places.here().leads
    return error


def _first_line(error: BaseException) -> str:
    return redacted(next(iter(str(error).strip().splitlines()), type(error).__name__))[:200]
