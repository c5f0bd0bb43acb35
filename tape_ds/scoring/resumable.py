"""Run an evaluation as jobs on one or several processes, resume it when it was killed, and store its result.

The result of a job is written to a journal, and synced to the disk, before the next job starts. A restarted evaluation
repeats no finished job, on any number of processes, and ends with the same result. Everything that decides the numbers
is the evaluation's *identity*: the model's hash, the data's fingerprints, the configuration, the seed, and the versions
of the packages that compute. A folder holds one result for each name.
"""

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from tape_ds import building, results
from tape_ds.arguments import without_local_rank
from tape_ds.data import cache
from tape_ds.distributed import processes
from tape_ds.distributed.processes import leave_process_group, share_cores
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import Problem, UserError, check_folder, is_main_process, raise_if_any
from tape_ds.mappings import without
from tape_ds.resilience.watchdog import Watchdog
from tape_ds.run_folder import EVALUATION, STACKS, TRAINED

if TYPE_CHECKING:
    from tape_ds.scoring.models import FoundModel

Job = TypeVar("Job")
Made = TypeVar("Made")

PATIENCE = timedelta(weeks=1)
"""Timeout of the process group: the shares of the processes may differ much."""
STUCK_SECONDS = 7200.0
"""Without a finished job on any process, an evaluation on several processes ends: one of them hangs."""
COMPUTING = ("tape_ds", "torch", "transformers", "lm-eval", "rouge-score")
"""Packages another version of which may compute other numbers."""


class Evaluation:
    """One evaluation with its folder of results.

    Args:
        name: of the command; names the result's file.
        folder: made when there is something to write.
        model, config, data, seed: see :class:`tape_ds.results.Result`; ``config`` has all that decides numbers.
    """

    def __init__(
        self,
        name: str,
        folder: str | Path,
        *,
        model: Mapping[str, Any] | None,
        config: Mapping[str, Any],
        data: Mapping[str, str],
        seed: int | None,
    ):
        self.name = name
        self.folder = Path(folder)
        self.path = self.folder / f"{name}.json"
        words = list(sys.argv)
        # Python's path of a module that -m ran
        if Path(words[0]).parts[-2:] == ("evaluation", "__main__.py"):
            words = ["python", "-m", "evaluation", *without_local_rank(words[1:])]
        self.started = results.collect(
            command=words,
            seed=seed,
            model=model,
            config={"evaluation": name, **config},
            data=data,
            processes=int(os.environ.get("WORLD_SIZE", "1")),
        )
        self.identity = _identity(self.started)
        self.journal = self.folder / f".{cache.key(name, identity=self.identity)}"
        """Folder of the finished jobs; removed when the result is written."""

    def run(
        self,
        work: Callable[[], Mapping[str, Any]],
        show: Callable[[Mapping[str, Any]], None],
        *,
        overwrite: bool,
        required: Sequence[Path] = (),
        tables: Sequence[Path] = (),
    ) -> int:
        """Evaluate, unless the folder holds the result already, and show the figures on the first process.

        Args:
            work: returns the figures; every process calls it.
            show: prints the figures and writes tables and pictures.
            overwrite: replace another result in the folder.
            required: files without which the result is incomplete.
            tables: files that ``show`` writes. Without the result that they go with, they are a person's.
        """
        world = int(os.environ.get("WORLD_SIZE", "1"))
        # started by torchrun, deepspeed or accelerate; only small Python objects are exchanged
        if world > 1:
            # as DeepSpeed's launcher does
            os.environ.setdefault("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))
            share_cores()
            torch.distributed.init_process_group("gloo", timeout=PATIENCE)
        # processes that see different disks must take the same branch
        stored = from_first(lambda: self.stored(overwrite, required, tables))
        figures = work() if stored is None else stored.figures
        if is_main_process():
            if stored is None:
                self.finish(figures)
            show(figures)
            state = "written" if stored is None else "complete already"
            print(f"{state}: {self.path}", flush=True)
        if world > 1:
            leave_process_group()
        return 0

    def stored(
        self, overwrite: bool = False, required: Sequence[Path] = (), tables: Sequence[Path] = ()
    ) -> results.Result | None:
        """Return the folder's result if it is complete and of this evaluation, else None. Raises UserError where
        something else would be replaced without ``overwrite``."""
        raise_if_any(check_folder("--output", self.folder))
        remedy = "name another folder, or replace it: --overwrite"
        if not os.path.lexists(self.path):
            there = filter(os.path.lexists, (*required, *tables))
            foreign = ", ".join(str(path.relative_to(self.folder)) for path in there)
            # it was killed between these files and its result
            was_begun = self.journal.exists()
            if foreign and not overwrite and not was_begun:
                reason = (
                    f"{foreign} in it would be replaced, and no result of this evaluation is there"
                )
                raise UserError(Problem("--output", str(self.folder), reason, remedy))
            return None
        try:
            result = results.load(self.path)
            theirs = _identity(result)
            names = sorted(self.identity.keys() | theirs.keys())
            differing = [name for name in names if self.identity.get(name) != theirs.get(name)]
            reason = f"it holds the result of another {self.name} evaluation (other: {', '.join(differing[:8])})"
        except UserError:
            result = None
            differing = ["all"]
            reason = f"{self.path.name} in it is not a result"
        if differing and not overwrite:
            raise UserError(Problem("--output", str(self.folder), reason, remedy))
        if result is None or not result.finished or differing:
            return None
        # a picture that was deleted is drawn again
        if all(map(Path.is_file, required)):
            return result
        return None

    def run_jobs(
        self, jobs: Sequence[tuple[str, Job]], work: Callable[[Job], Any]
    ) -> dict[str, Any]:
        """Return the result of every job by its key; every process must call this and gets all results.

        Args:
            jobs: pairs of a unique key and a job, the longest first: they are dealt out in turn.
            work: returns plain JSON data that follows from the job and the identity alone.
        """
        keys = list(map(itemgetter(0), jobs))
        assert len(set(keys)) == len(keys), "the keys of jobs are unique"
        ranks = RankSync()
        with contextlib.ExitStack() as held:

            def load_journal() -> dict[str, Any]:
                self.lock(held)
                known: dict[str, Any] = {}
                with self._disk():
                    for file in sorted(self.journal.glob("*.jsonl")):
                        for line in file.read_text(encoding="utf-8").splitlines():
                            # the process was killed while it wrote the line
                            with contextlib.suppress(ValueError):
                                key, value = json.loads(line)
                                known[key] = value
                return known

            known = from_first(load_journal)
            pending = [(key, job) for key, job in jobs if key not in known]
            if len(pending) < len(keys) and ranks.rank == 0:
                done_already = len(keys) - len(pending)
                print(
                    f"{self.name}: {done_already:,} of {len(keys):,} jobs are done already",
                    flush=True,
                )
            # None: where no person sees it
            hidden = ranks.rank > 0 or None
            share = tqdm(pending[ranks.rank :: ranks.world], desc=self.name, disable=hidden)
            page = self.journal / f"{ranks.rank:04}.jsonl"
            with self._disk():
                # the first process may have another disk
                self.journal.mkdir(parents=True, exist_ok=True)
                journal = held.enter_context(page.open("ab", buffering=0))
                # after the last complete line
                journal.truncate(page.read_bytes().rfind(b"\n") + 1)

            done: dict[str, Any] = {}
            stuck_after = STUCK_SECONDS if ranks.world > 1 else 0
            dog = Watchdog(
                self.folder / STACKS, ranks.rank, ranks.world, stuck_after, work=done.__len__
            )
            held.enter_context(dog)
            for key, job in share:
                dog.beat(len(done), "scoring")
                line = json.dumps([key, work(job)])
                # the same types as after a resume
                done[key] = json.loads(line)[1]
                raw = memoryview(f"{line}\n".encode())
                with self._disk():
                    # an unbuffered write may take only a part
                    while raw:
                        raw = raw[journal.write(raw) :]
                    os.fsync(journal.fileno())
            dog.beat(len(jobs), "waiting for the other processes")
            for others in ranks.objects(done):
                known |= others
        return {key: known[key] for key in keys}

    def finish(self, figures: Mapping[str, Any]) -> None:
        """Write the result and remove the journal."""
        with self._disk():
            results.save(self.started.finish(figures), self.path)
        shutil.rmtree(self.journal, ignore_errors=True)

    def lock(self, held: contextlib.ExitStack) -> None:
        """Lock the journal until ``held`` is closed; another process with the same evaluation is refused."""
        with self._disk():
            self.journal.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(FileLock(self.journal / "lock").acquire(timeout=0))
            except Timeout as error:
                wrong = "another process is running this evaluation there"
                remedy = "wait for it, or name another folder"
                raise UserError(Problem("--output", str(self.folder), wrong, remedy)) from error

    def _disk(self) -> contextlib.AbstractContextManager[None]:
        """Report what the disk refuses; encloses no work, whose errors are others."""
        return building.disk("--output", self.folder, "start the same command again: it resumes")


class Cost:
    """The seconds since it was created, and the memory of the process that needed most."""

    def __init__(self, device: torch.device):
        self.device = device
        self.started = time.monotonic()
        processes.reset_peak_memory(device)

    def taken(self, **counts: int) -> dict[str, Any]:
        """Return the ``cost`` of a result; every process must call this."""
        peak = max(RankSync().objects(processes.peak_memory_bytes(self.device)))
        return {"seconds": time.monotonic() - self.started, "peak_memory_bytes": peak, **counts}


def from_first(make: Callable[[], Made]) -> Made:
    """Call ``make`` on the first process and return its result, or raise its error, on all; all must call this."""
    ranks = RankSync()
    outcome: tuple[Made | None, UserError | None] = (None, None)
    if ranks.rank == 0:
        try:
            outcome = (make(), None)
        except UserError as error:
            outcome = (None, error)
    made, mistake = ranks.first(outcome)
    if mistake is not None:
        # else all have it now
        mistake.on_one_rank = mistake.on_one_rank and ranks.world == 1
        raise mistake
    return cast(Made, made)


def folder(output: str | None, model: "FoundModel") -> Path:
    """Return the folder of a model's results: ``--output``, one in the run's folder, or one named after the model."""
    if output is not None:
        return Path(output)
    if model.record is not None:
        run = model.folder.parent / EVALUATION
        if model.folder.name == TRAINED:
            return run
        return run / model.folder.name
    name = model.name_or_path.strip("/").removesuffix(".gguf").replace("/", "--").lstrip(".-")
    return Path("runs") / EVALUATION / name


def _identity(result: results.Result) -> dict[str, Any]:
    """Return what decides a result's figures, by section and name."""
    # the folder of a model changes no number
    model = without(result.model or {}, ("address", "kind"))
    versions = {name: version for name, version in result.versions.items() if name in COMPUTING}
    sections = {"model": model, "config": result.config, "data": result.data, "versions": versions}
    flat = {}
    for section, entries in sections.items():
        for name, value in entries.items():
            flat[f"{section}.{name}"] = value
    return flat | {"seed": result.seed}
