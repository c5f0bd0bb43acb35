"""One persistent group of ranks, which live as long as the test session and compute any case that they are sent.

Starting ranks costs a quarter of a minute, a case a fraction of a second. A case is a function of a module that the
ranks import by its name: all ranks call it with the same arguments, and each gives back what can be pickled. A case
that fails on some rank leaves the others waiting for it, so the group is then ended, and the next case gets a new one.
"""

import contextlib
import importlib
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.processes import ROOT, free_port, server, set_environment, settle, variables

RANKS = 4
SECONDS = 600
"""Longer than any case takes on a busy machine."""


class CaseFailed(AssertionError):  # noqa: N818 - a test that failed
    """A case raised on some rank; the message has the traceback."""


class Group:
    """Ranks that wait for cases.

    Args:
        ranks: how many.
    """

    def __init__(self, ranks: int = RANKS):
        self.ranks = ranks
        self._log = tempfile.NamedTemporaryFile(suffix=".log")  # noqa: SIM115 - lives as long as the ranks
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def run(self, case: Callable[..., Any], *arguments: Any, **named: Any) -> list[Any]:
        """What ``case(*arguments, **named)`` gives on each rank, by rank.

        Raises:
            CaseFailed: it raised on some rank, a rank died, or nothing came for :data:`SECONDS`.
        """
        if not self._processes:
            self._start()
        request = (case.__module__, case.__qualname__, arguments, named)
        for pipe in self._pipes:
            pipe.send(request)
        results: dict[int, Any] = {}
        deadline = time.monotonic() + SECONDS
        while len(results) < self.ranks:
            waiting = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in results}
            ready = multiprocessing.connection.wait(
                list(waiting), timeout=max(0.0, deadline - time.monotonic())
            )
            if not ready:
                self._fail(
                    f"{case.__qualname__}: no answer from ranks {sorted(waiting.values())} in {SECONDS} s"
                )
            for pipe in ready:
                rank = waiting[pipe]
                try:
                    succeeded, results[rank] = pipe.recv()
                except (EOFError, OSError):
                    self._fail(f"{case.__qualname__}: rank {rank} has died")
                if not succeeded:
                    self._fail(f"{case.__qualname__} on rank {rank}:\n{results[rank]}")
        return [results[rank] for rank in range(self.ranks)]

    def _fail(self, message: str) -> None:
        printed = Path(self._log.name).read_text(encoding="utf-8", errors="replace")[-2000:]
        self.end()
        raise CaseFailed(f"{message}\nthe ranks printed last:\n{printed}")

    def _start(self) -> None:
        job = {
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_SIZE": str(self.ranks),
            "MASTER_ADDR": "127.0.0.1",
        }
        job |= {"MASTER_PORT": str(free_port()), "HF_HUB_OFFLINE": "1"}
        context = server()
        for rank in range(self.ranks):
            ours, theirs = context.Pipe()
            environment = variables() | job | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = context.Process(
                target=_be_a_rank, args=(theirs, environment, self._log.name), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def end(self) -> None:
        """Let the ranks go."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._pipes = [], []


def _be_a_rank(pipe: Connection, environment: dict[str, str], log: str) -> None:
    """Compute cases until nobody sends any more."""
    settle()
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    set_environment(environment)
    os.chdir(ROOT)
    _join()
    while True:
        try:
            module, name, arguments, named = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        try:
            answer = True, getattr(importlib.import_module(module), name)(*arguments, **named)
        except BaseException:
            answer = False, traceback.format_exc()
        with contextlib.suppress(BrokenPipeError):
            pipe.send(answer)


def _join() -> None:
    import torch
    from accelerate.state import PartialState

    from tape_ds.training.environment import prepare_process

    prepare_process()
    torch.set_num_threads(1)
    PartialState(cpu=True, timeout=timedelta(seconds=SECONDS))
