"""The ranks of a job on several machines meet before there is a process group.

torch waits for a rank that never comes, and does not name it; a machine that fails beforehand leaves the others
waiting. So the ranks meet at the store that the process group will use, at rank 0 or torchrun's agent beside it, and
tell each other there.

    @command
    @rendezvous.report_failures      # what keeps this rank from starting ends all ranks, and rank 0 says it
    def main() -> int: ...

    rendezvous.current(600).barrier("", 600)      # all are here; or all ranks end, and rank 0 says who is not
"""

import contextlib
import functools
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from tape_ds.distributed import place as places
from tape_ds.distributed.place import Place
from tape_ds.errors import EXIT_CODE, Problem, UserError, redacted
from tape_ds.resilience import exit_code_file

JOIN_SECONDS = 600.0
"""How long the others may take to start; a cold disk that all machines read from is slow."""
LINGER_SECONDS = 30.0
"""How long rank 0, which holds the store, waits for the others to learn that nothing starts."""
LEAVE_SECONDS = 2.0
"""The same where those who are here wait anyway, and the others may never come."""
ANSWER_SECONDS = 60.0
"""How long rank 0 may take to answer a rank that has failed."""
NOTICE_SECONDS = 30.0
"""After how long rank 0 says for whom it waits, and again after each of them."""
POLL_SECONDS = 0.2


class NotTogether(UserError):  # noqa: N818 - the machines are to blame
    """Raised where the ranks did not meet: no recipe is wrong, and another start may go well."""

    exit_code = 1


class Rendezvous:
    """One rank's part in it.

    Args:
        store: the job's.
        place: this process's.
    """

    def __init__(self, store: Any, place: Place):
        self.store = store
        self.place = place
        self._stage = 0

    def barrier(self, own: str, seconds: float) -> list[str]:
        """Wait until all ranks are here, for the same time; returns every rank's text, by rank. Machines with and
        without a GPU, or with another torch, could form no group to gather by.

        Raises:
            UserError: some did not come, one cannot start, or they were not started as one job; on all ranks.
        """
        try:
            if self._stage == 0:
                self._enter()
            self._stage += 1
            self.store.set(f"{self._stage}/{self.place.rank}", own)
            self.store.add(f"{self._stage}", 1)
            self._wait(seconds)
            keys = [f"{self._stage}/{rank}" for rank in range(self.place.world)]
            return [text.decode() for text in self.store.multi_get(keys)]
        except RuntimeError as error:
            wrong = f"rank 0, which holds the job's store, is gone ({_first_line(error)})"
            raise NotTogether(Problem("start", self.place.machine, wrong, "see what the first machine says")) from error

    def end(self, error: UserError) -> UserError:
        """Have all ranks end with the first that failed; returns what there is to say. Rank 0 says it, and waits until
        all know; a rank that it does not hear, or that failed otherwise, speaks for itself."""
        own = [[each.field, redacted(str(each.value)), each.wrong, each.remedy] for each in error.problems]
        first, is_first, heard = own, self.place.rank == 0, False
        linger = LEAVE_SECONDS if own and isinstance(error, NotTogether) else LINGER_SECONDS
        until = time.monotonic() + linger + (0 if is_first else LEAVE_SECONDS)
        with contextlib.suppress(RuntimeError):  # the store is gone, and rank 0 with it
            report = json.dumps([self.place.machine, error.exit_code, own])
            report = (self.store.compare_set("failed", "", report) if own else self.store.get("failed")).decode()
            machine, code, first = json.loads(report)
            if own != first:
                problems = [Problem(f"{field} on {machine}", *others) for field, *others in first]
                error = UserError([*error.problems, *problems])
            error.exit_code = code
            self.store.add("ended", 1)
            while not heard and time.monotonic() < until:
                heard = self.store.add("ended", 0) >= self.place.world if is_first else self.store.check(["reported"])
                time.sleep(POLL_SECONDS)
            if is_first:  # a launcher may end everything with the first process that ends
                self.store.set("reported", "")
                time.sleep(2 * POLL_SECONDS)  # the store goes with this process
        error.on_one_rank = self.place.leads and not (heard and own in ([], first))
        return error

    def _enter(self) -> None:
        """Be the only one of this number, in a job that all count alike."""
        place, counted = self.place, self.store.compare_set("world", "", str(self.place.world)).decode()
        if counted != str(place.world):
            wrong = f"{place.machine} counts so many ranks, another machine {counted}"
            remedy = "start all machines with the same hostfile, --include and --num_nodes, or --nnodes"
            raise UserError(Problem("ranks", place.world, wrong, remedy))
        if self.store.add(f"entered/{place.rank}", 1) > 1:
            wrong, remedy = f"another process is rank {place.rank} already", "number the machines from 0 on"
            raise UserError(Problem("--node_rank", place.node, wrong, remedy))

    def _wait(self, seconds: float) -> None:
        notice = NOTICE_SECONDS
        for waited in _looks(self.place, seconds):
            if self.store.add(f"{self._stage}", 0) >= self.place.world:
                return
            if self.store.check(["failed"]):
                raise NotTogether([])  # `end` says what the others said
            if self.place.rank == 0 and waited > notice:
                print(f"waiting for {self._missing()} since {waited:.0f} s", flush=True)
                notice += NOTICE_SECONDS
        remedy = (
            "see what was said there; that the same command was started there, with the same machines and its own "
            "--node_rank; and that a firewall lets --master_port through"
        )
        raise NotTogether(Problem("start", None, f"{self._missing()} did not come within {seconds:g} s", remedy))

    def _missing(self) -> str:
        machines: dict[str, list[str]] = {}
        for rank in range(self.place.world):
            if not self.store.check([f"{self._stage}/{rank}"]):
                machines.setdefault(self.place.machine_of(rank), []).append(str(rank))
        return "; ".join(f"{machine}, rank {', '.join(ranks)}" for machine, ranks in machines.items())


_met: Rendezvous | None = None
_asked: Callable[[], str | None] | None = None


def leave_when(asked: Callable[[], str | None]) -> None:
    """End the waiting as soon as ``asked`` gives a reason to stop: a signal, or a launcher that is gone."""
    global _asked
    _asked = asked


def report_failures(main: Callable[..., int | None]) -> Callable[..., int | None]:
    """Wrap a launcher's ``main``: what keeps this rank from starting ends all ranks, and rank 0 says it."""

    @functools.wraps(main)
    def wrapped(*args: Any, **kwargs: Any) -> int | None:
        try:
            return main(*args, **kwargs)
        except UserError as error:
            reported, place = _report(error), places.here()
            if reported.exit_code == EXIT_CODE:
                exit_code_file.leave(EXIT_CODE)
            if place.leads and place.rank != 0 and not reported.on_one_rank:
                print(f"\n{place.machine}: the run does not start; the first machine says why", file=sys.stderr)
            raise reported from error
        except Exception as error:
            wrong = f"ended with {type(error).__name__}: {redacted(_first_line(error))}"
            broken = UserError(Problem("start", places.here().host, wrong, "see its traceback, on that machine"))
            broken.exit_code = NotTogether.exit_code
            _report(broken)
            raise

    return wrapped


def _report(error: UserError) -> UserError:
    """Tell the others, where they wait for this rank; returns what it has to say itself."""
    place = places.here()
    if place.is_alone:
        return error
    from torch import distributed  # slow, and not needed where a job is alone, which may only report a typo

    if distributed.is_initialized():  # they wait in a collective, and see it break
        return error
    error.on_one_rank = place.leads
    if _met is None and isinstance(error, NotTogether):  # there is no rank 0 to tell
        return error
    try:
        met = current(ANSWER_SECONDS)
    except UserError:
        return error
    return error if met is None else met.end(error)


def current(seconds: float) -> Rendezvous | None:
    """This process's, at the job's store by now; None where the whole job is on one machine, or no variable says
    where rank 0 is. The store is made as torch does itself, which finds this one when the process group is joined.

    Raises:
        UserError: rank 0 cannot be reached, its port is taken, or no variable says which it is.
    """
    global _met
    place = places.here()
    if _met is not None or place.is_alone or "MASTER_ADDR" not in os.environ:
        return _met
    from torch import distributed

    address, given = os.environ["MASTER_ADDR"], os.environ.get("MASTER_PORT", "")
    if not given.isdecimal():
        remedy = "set it, to the same free port on all machines"
        raise UserError(Problem("MASTER_PORT", given, "not the number of a port, and MASTER_ADDR is set", remedy))
    port = int(given)
    is_here = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if not is_here:
        _reach(place, address, port, seconds)
    timeout = timedelta(seconds=max(seconds, 30))
    try:
        store = distributed.TCPStore(address, port, None, is_here, timeout, wait_for_workers=False, multi_tenant=True)
    except RuntimeError as error:
        if "EADDRINUSE" not in str(error):
            raise
        remedy = "give another one, the same everywhere"
        raise UserError(Problem("--master_port", port, "taken on this machine", remedy)) from error
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    _met = Rendezvous(distributed.PrefixStore(f"rendezvous-{attempt}", store), place)
    return _met


def _reach(place: Place, address: str, port: int, seconds: float) -> None:
    """Wait until rank 0 answers there; torch would as well, deaf to signals, and fill the terminal with stacks."""
    trouble = ""
    for _ in _looks(place, seconds):
        try:
            socket.create_connection((address, port), timeout=5).close()
            return
        except OSError as error:  # a name that is not known may become known: containers come up one by one
            trouble = str(error)
    wrong = f"rank 0 did not answer {place.machine} at port {port} within {seconds:g} s ({trouble})"
    remedy = "see that it was started there, and that a firewall lets the port through"
    raise NotTogether(Problem("--master_addr", address, wrong, remedy))


def _looks(place: Place, seconds: float) -> Iterator[float]:
    """Moments to look again, as seconds since the first, until the time is over.

    Raises:
        NotTogether: this process should stop.
    """
    began = time.monotonic()
    while (waited := time.monotonic() - began) <= seconds:
        if _asked is not None and (reason := _asked()) is not None:
            wrong = f"{place.machine} was stopped while it waited for the others"
            raise NotTogether(Problem("start", reason, wrong, "start it again"))
        yield waited
        time.sleep(POLL_SECONDS)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200]
