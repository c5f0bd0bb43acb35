"""Bring the ranks of a job on several machines together before there is a process group.

torch waits for a rank that never comes and does not name it; a machine that fails before it joins leaves the others
waiting. So the ranks meet at the store that the process group will use, at rank 0 or torchrun's agent there, and
exchange their failures through it.

    @command
    @rendezvous.report_failures      # a rank that cannot start ends all ranks; rank 0 prints the reason
    def main() -> int: ...

    rendezvous.current(600).barrier("", 600)      # all are here; or all ranks end, and rank 0 names the missing ones
"""

import contextlib
import functools
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tape_ds import exit_codes
from tape_ds.distributed import process_info
from tape_ds.distributed.process_info import ProcessInfo
from tape_ds.errors import Problem, UserError, redacted
from tape_ds.exit_codes import ExitCode

JOIN_SECONDS = 600.0
"""How long the other ranks may take to start; a cold disk that all machines read from is slow."""
LINGER_SECONDS = 30.0
"""How long rank 0, which holds the store, waits for the others to learn that the run does not start."""
LEAVE_SECONDS = 2.0
"""The same if some ranks may never come."""
ANSWER_SECONDS = 60.0
"""How long rank 0 may take to answer a rank that has failed."""
NOTICE_SECONDS = 30.0
"""Interval of rank 0's messages about missing ranks."""
POLL_SECONDS = 0.2


class NotTogether(UserError):  # noqa: N818 - the machines are to blame
    """Raised if the ranks did not meet: the recipe is not at fault, and another start may succeed."""

    exit_code = ExitCode.FAILURE


@dataclass
class Rendezvous:
    """One rank at the job's ``store``."""

    store: Any
    process: ProcessInfo
    _stage: int = 0

    def barrier(self, text: str, seconds: float) -> list[str]:
        """Wait until all ranks are here; return every rank's text, by rank.

        Goes through the store: machines with and without a GPU, or with another torch, could not form a group.

        Raises:
            UserError: some did not come, one cannot start, or they were not started as one job; on all ranks.
        """
        process = self.process
        notice = NOTICE_SECONDS
        try:
            if self._stage == 0:
                world = self.store.compare_set("world", "", str(process.world)).decode()
                if world != str(process.world):
                    wrong = (
                        f"it is {process.world} on {process.machine} and {world} on another machine"
                    )
                    remedy = "start all machines with the same hostfile, --include and --num_nodes, or --nnodes"
                    raise UserError(Problem("WORLD_SIZE", process.world, wrong, remedy))
                if self.store.add(f"entered/{process.rank}", 1) > 1:
                    wrong = f"another process is rank {process.rank} already"
                    remedy = "number the machines from 0"
                    raise UserError(Problem("--node_rank", process.node, wrong, remedy))
            self._stage += 1
            keys = [f"{self._stage}/{rank}" for rank in range(process.world)]
            self.store.set(keys[process.rank], text)
            self.store.add(f"{self._stage}", 1)
            for waited in _poll(process, seconds):
                if self.store.add(f"{self._stage}", 0) >= process.world:
                    return [value.decode() for value in self.store.multi_get(keys)]
                if self.store.check(["failed"]):
                    # `end` reports the others' problems
                    raise NotTogether([])
                if process.rank == 0 and waited > notice:
                    print(f"waiting for {self._missing()} since {waited:.0f} s", flush=True)
                    notice += NOTICE_SECONDS
            remedy = (
                "see the output there; check that the same command was started there, with the same machines and its "
                "own --node_rank, and that a firewall lets --master_port through"
            )
            raise NotTogether(
                Problem(
                    "start", None, f"{self._missing()} did not come within {seconds:g} s", remedy
                )
            )
        except RuntimeError as error:
            wrong = f"rank 0, which holds the job's store, is gone ({_first_line(error)})"
            raise NotTogether(
                Problem("start", process.machine, wrong, "see the first machine's output")
            ) from error

    def _missing(self) -> str:
        here = self.process
        machines: dict[str, list[str]] = {}
        for rank in range(here.world):
            if not self.store.check([f"{self._stage}/{rank}"]):
                machine = "an unknown machine"
                # equally many on each
                if here.on_node and here.nodes and here.on_node * here.nodes == here.world:
                    machine = f"node_rank {rank // here.on_node}"
                machines.setdefault(machine, []).append(str(rank))
        return "; ".join(
            f"{machine}, rank {', '.join(ranks)}" for machine, ranks in machines.items()
        )

    def end(self, error: UserError) -> UserError:
        """End all ranks with the error of the first that failed; return the error to report here.

        Rank 0 prints it and waits until all ranks know. A rank that rank 0 did not answer, or that failed in another
        way, prints its own.
        """
        # as JSON has them, to be compared with what comes back
        problems = [
            [problem.field, redacted(str(problem.value)), problem.wrong, problem.remedy]
            for problem in error.problems
        ]
        first_problems = problems
        holds_store = self.process.rank == 0
        answered = False
        linger = LEAVE_SECONDS if problems and isinstance(error, NotTogether) else LINGER_SECONDS
        # rank 0 answers at the end of its time at the latest
        if not holds_store:
            linger += LEAVE_SECONDS
        until = time.monotonic() + linger
        # the store is gone, and rank 0 with it
        with contextlib.suppress(RuntimeError):
            # the first rank that fails sets it, and every rank reads that one's
            if problems:
                report = json.dumps([self.process.machine, error.exit_code, problems])
                report = self.store.compare_set("failed", "", report).decode()
            else:
                report = self.store.get("failed").decode()
            machine, code, first_problems = json.loads(report)
            if problems != first_problems:
                all_problems = [*error.problems]
                for field, *others in first_problems:
                    all_problems.append(Problem(f"{field} on {machine}", *others))
                error = UserError(all_problems)
            error.exit_code = code
            self.store.add("ended", 1)
            while not answered and time.monotonic() < until:
                if holds_store:
                    answered = self.store.add("ended", 0) >= self.process.world
                else:
                    answered = self.store.check(["reported"])
                time.sleep(POLL_SECONDS)
            # a launcher may end everything with the first process that exits
            if holds_store:
                self.store.set("reported", "")
                # the store ends with this process
                time.sleep(2 * POLL_SECONDS)
        is_printed_there = answered and problems in ([], first_problems)
        error.on_one_rank = self.process.leads_node and not is_printed_there
        return error


_meeting: Rendezvous | None = None
_stop_reason: Callable[[], str | None] | None = None


def leave_when(stop_reason: Callable[[], str | None]) -> None:
    """Stop waiting for other machines as soon as ``stop_reason`` returns one: a signal, or a dead launcher."""
    global _stop_reason
    _stop_reason = stop_reason


def report_failures(main: Callable[..., int | None]) -> Callable[..., int | None]:
    """Wrap a launcher's ``main``: a rank that cannot start ends all ranks, and rank 0 prints the reason."""

    @functools.wraps(main)
    def wrapped(*args: Any, **kwargs: Any) -> int | None:
        try:
            return main(*args, **kwargs)
        except UserError as error:
            reported = _report(error)
            process = process_info.current()
            if reported.exit_code == ExitCode.USER_ERROR:
                exit_codes.leave(ExitCode.USER_ERROR)
            if process.leads_node and process.rank != 0 and not reported.on_one_rank:
                print(
                    f"\n{process.machine}: the run does not start; see the first machine's output",
                    file=sys.stderr,
                )
            raise reported from error
        except Exception as error:
            wrong = f"ended with {type(error).__name__}: {redacted(_first_line(error))}"
            remedy = "see its traceback, on that machine"
            crash = UserError(Problem("start", process_info.current().host, wrong, remedy))
            crash.exit_code = ExitCode.FAILURE
            _report(crash)
            raise

    return wrapped


def _report(error: UserError) -> UserError:
    """Pass the error on to ranks that wait for this one; return the error to print here."""
    process = process_info.current()
    if process.is_single_node:
        return error
    # slow to import, and a single machine may only have a typo to report
    from torch import distributed

    # the others wait in a collective, and see it break
    if distributed.is_initialized():
        return error
    error.on_one_rank = process.leads_node
    # rank 0 was not reached
    if _meeting is None and isinstance(error, NotTogether):
        return error
    try:
        meeting = current(ANSWER_SECONDS)
    except UserError:
        return error
    if meeting is None:
        return error
    return meeting.end(error)


def current(seconds: float) -> Rendezvous | None:
    """Return this process's rendezvous, connected to the job's store; None for a job on one machine, or if no variable
    names rank 0. The store is made as torch does, which finds this one when it joins the process group.

    Raises:
        UserError: rank 0 cannot be reached, or its port is taken or not set.
    """
    global _meeting
    process = process_info.current()
    if _meeting is not None or process.is_single_node or "MASTER_ADDR" not in os.environ:
        return _meeting
    # see `_report`
    from torch import distributed

    address = os.environ["MASTER_ADDR"]
    port_text = os.environ.get("MASTER_PORT", "")
    if not port_text.isdecimal():
        remedy = "set it, to the same free port on all machines"
        raise UserError(
            Problem("MASTER_PORT", port_text, "not a port number, and MASTER_ADDR is set", remedy)
        )
    port = int(port_text)
    holds_store = process.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if not holds_store:
        # torch would wait for rank 0 as well, but ignore signals and fill the terminal with stacks
        reason = ""
        for _ in _poll(process, seconds):
            try:
                socket.create_connection((address, port), timeout=5).close()
                break
            except OSError as error:
                # also an unknown name, which may become known: containers start one by one
                reason = str(error)
        else:
            wrong = f"rank 0 did not answer {process.machine} at port {port} within {seconds:g} s ({reason})"
            remedy = "check that it was started there, and that a firewall lets the port through"
            raise NotTogether(Problem("--master_addr", address, wrong, remedy))
    timeout = timedelta(seconds=max(seconds, 30))
    try:
        store = distributed.TCPStore(
            address, port, None, holds_store, timeout, wait_for_workers=False, multi_tenant=True
        )
    except RuntimeError as error:
        if "EADDRINUSE" not in str(error):
            raise
        remedy = "give another one, the same everywhere"
        raise UserError(Problem("--master_port", port, "taken on this machine", remedy)) from error
    # an agent keeps its store when it starts the ranks again: keys of an earlier start must not count
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    _meeting = Rendezvous(distributed.PrefixStore(f"rendezvous-{attempt}", store), process)
    return _meeting


def _poll(process: ProcessInfo, seconds: float) -> Iterator[float]:
    """Yield the seconds waited so far, every :data:`POLL_SECONDS`, until the time is over.

    Raises:
        NotTogether: this process should stop.
    """
    began = time.monotonic()
    while (waited := time.monotonic() - began) <= seconds:
        if _stop_reason is not None and (reason := _stop_reason()) is not None:
            wrong = f"{process.machine} was stopped while it waited for the others"
            raise NotTogether(Problem("start", reason, wrong, "start it again"))
        yield waited
        time.sleep(POLL_SECONDS)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200]
