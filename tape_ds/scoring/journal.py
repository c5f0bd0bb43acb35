"""One evaluation's folder: what decides its numbers, the pieces that are finished, and the result.

An evaluation is a list of jobs that do not depend on each other, each with a key. What a job finds is written down at
once, a line of JSON that is on the disk before the next job starts. So a killed evaluation goes on where it was, on any
number of processes, and its result is the one it would have had.

Everything that decides the numbers is the evaluation's *identity*: the model's hash, the data's fingerprints, the
configuration, the seed, and the versions of what computes. A folder holds one result of a name. The same evaluation is
not repeated there, and another one does not replace it unless ``--overwrite`` says so.
"""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from tape_ds import results
from tape_ds.arguments import without_local_rank
from tape_ds.data import cache
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import Problem, UserError, check_folder, disk_error, is_main_process, raise_if_any
from tape_ds.resilience.watchdog import Watchdog
from tape_ds.run_folder import STACKS, TRAINED
from tape_ds.scoring import job

if TYPE_CHECKING:
    from tape_ds.scoring.models import FoundModel

Job = TypeVar("Job")

COMPUTING = ("tape_ds", "torch", "transformers", "lm-eval", "rouge-score")
"""Packages another version of which may compute other numbers."""
STUCK_SECONDS = 7200.0
"""Without a finished piece on any process, after which a job of several ends: one of them hangs."""
HERE = "evaluation"
"""Folder of the results inside a run's folder, and of all others below ``runs``."""


class Evaluation:
    """An evaluation that is about to be carried out, or was.

    Args:
        name: of the command; names the result's file.
        folder: made when there is something to write.
        model: what results say of the model, see :meth:`FoundModel.about`.
        config: every option that decides numbers.
        data: fingerprint of each data source, by its spec.
        seed: None where nothing is drawn.
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
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        self.started = results.collect(
            command=_typed(sys.argv),
            seed=seed,
            model=model,
            config={"evaluation": name, **config},
            data=data,
            processes=processes,
        )
        self.identity = _identity(self.started)

    @property
    def path(self) -> Path:
        """The result's file."""
        return self.folder / f"{self.name}.json"

    @property
    def journal(self) -> Path:
        """Folder of the finished pieces; gone when the result is written."""
        return self.folder / f".{cache.key(self.name, identity=self.identity)}"

    def run(
        self,
        work: Callable[[], Mapping[str, Any]],
        show: Callable[[Mapping[str, Any]], None],
        *,
        overwrite: bool,
        beside: Sequence[Path] = (),
    ) -> int:
        """Carry the evaluation out, unless the folder holds its result, and show the figures once for a job.

        Args:
            work: gives the figures; every process calls it.
            show: prints them, and writes what people read.
            overwrite: another result in the folder may be replaced.
            beside: files without which the result is not whole.

        Raises:
            UserError: the folder cannot take the result.
        """
        with job.joined():
            # a disk that not all see must not send them different ways
            stored = job.from_first(lambda: self.stored(overwrite, beside))
            figures = work() if stored is None else stored.figures
            if stored is None:
                self.finish(figures)
            if is_main_process():
                show(figures)
                print(f"{'complete already' if stored is not None else 'written'}: {self.path}", flush=True)
        return 0

    def stored(self, overwrite: bool = False, beside: Sequence[Path] = ()) -> results.Result | None:
        """Return the finished result of this very evaluation, if the folder holds it; see :meth:`run`.

        Raises:
            UserError: the folder may not be written to, or holds something else of this name.
        """
        raise_if_any(_unwritable(self.folder))
        if not self.path.exists():
            return None
        try:
            found = results.load(self.path)
            stored = _identity(found)
            names = sorted({*stored, *self.identity})
            differing = [name for name in names if stored.get(name) != self.identity.get(name)]
            wrong = f"it holds the result of another {self.name} evaluation (other: {', '.join(differing[:8])})"
        except UserError:
            found, differing, wrong = None, ["all"], f"{self.path.name} in it is no result"
        if differing and not overwrite:
            remedy = "name another folder, or replace it: --overwrite"
            raise UserError(Problem("--output", str(self.folder), wrong, remedy))
        whole = found is not None and found.finished and not differing and all(path.is_file() for path in beside)
        return found if whole else None

    def run_jobs(self, jobs: Sequence[tuple[str, Job]], work: Callable[[Job], Any]) -> dict[str, Any]:
        """Return what ``work`` finds for every job, by key; every process must call it and gets all of it.

        Args:
            jobs: pairs of key and job, the longest first where they differ: they are dealt out in turn.
            work: gives plain JSON data for a job. What it gives must follow from the job and the identity alone.

        Raises:
            UserError: another process evaluates the same thing in this folder.
            DiskError: the disk is full or read-only; what was found until then stays.
        """
        keys = [key for key, _ in jobs]
        assert len(set(keys)) == len(keys), "every job has a key of its own"
        ranks = RankSync()
        with contextlib.ExitStack() as held:
            known = job.from_first(lambda: self._load(held))
            pending = [(key, each) for key, each in jobs if key not in known]
            if len(pending) < len(keys) and ranks.rank == 0:
                print(f"{self.name}: {len(keys) - len(pending):,} of {len(keys):,} pieces are known", flush=True)
            own = tqdm(
                pending[ranks.rank :: ranks.world], desc=self.name, disable=ranks.rank > 0 or not sys.stderr.isatty()
            )
            mine: dict[str, Any] = {}
            page = held.enter_context(self._page(ranks.rank))
            stacks = self.folder / STACKS
            dog = Watchdog(stacks, ranks.rank, ranks.world, STUCK_SECONDS if ranks.world > 1 else 0, work=mine.__len__)
            held.enter_context(dog)
            for key, each in own:
                dog.beat(len(mine), "scoring")
                line = json.dumps([key, work(each)])
                mine[key] = json.loads(line)[1]
                self._append(page, f"{line}\n")
            dog.beat(len(jobs), "waiting for the other processes")
            for others in ranks.objects(mine):
                known |= others
        return {key: known[key] for key in keys}

    def finish(self, figures: Mapping[str, Any]) -> None:
        """Write the result and remove the journal; rank 0 alone.

        Args:
            figures: the same for the same identity, but for what stands under ``cost``.
        """
        if is_main_process():
            with self._disk():
                results.save(self.started.finish(figures), self.path)
            shutil.rmtree(self.journal, ignore_errors=True)

    def lock(self, held: contextlib.ExitStack) -> None:
        """Make the journal this job's until ``held`` is left.

        Raises:
            UserError: another process evaluates the same thing in this folder.
        """
        with self._disk():
            self.journal.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(FileLock(self.journal / "lock").acquire(timeout=0))
            except Timeout as error:
                wrong = "another process carries out this very evaluation there"
                remedy = "wait for it, or name another folder"
                raise UserError(Problem("--output", str(self.folder), wrong, remedy)) from error

    def _load(self, held: contextlib.ExitStack) -> dict[str, Any]:
        """Return what earlier starts found; a line that was being written when its process was killed is ignored."""
        self.lock(held)
        with self._disk():
            known: dict[str, Any] = {}
            for file in sorted(self.journal.glob("*.jsonl")):
                for line in file.read_text(encoding="utf-8").splitlines():
                    with contextlib.suppress(ValueError):
                        key, value = json.loads(line)
                        known[key] = value
            return known

    def _page(self, rank: int) -> BinaryIO:
        """This process's file of the journal, behind the last whole line of an earlier start."""
        path = self.journal / f"{rank:04}.jsonl"
        with self._disk():
            self.journal.mkdir(parents=True, exist_ok=True)  # where the first process's disk is not this one's
            page = path.open("ab", buffering=0)
            page.truncate(path.read_bytes().rfind(b"\n") + 1)
        return page

    def _append(self, page: BinaryIO, text: str) -> None:
        """Text that is on the disk before the next piece of work begins."""
        raw = memoryview(text.encode())
        with self._disk():
            while raw:
                raw = raw[page.write(raw) :]
            os.fsync(page.fileno())

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        """What the disk refuses becomes a message; wraps nothing of the work, whose errors are others."""
        try:
            yield
        except OSError as error:
            remedy = "start the same command again: it goes on behind the pieces that were finished"
            refused = disk_error(error, "--output", self.folder, remedy)
            if refused is None:
                raise
            raise refused from error


def _typed(words: Sequence[str]) -> list[str]:
    """Return the command as it was typed: Python gives the path of a module that ``-m`` ran."""
    if Path(words[0]).parts[-2:] != ("evaluation", "__main__.py"):
        return list(words)
    return ["python", "-m", "evaluation", *without_local_rank(words[1:])]


def folder(output: str | None, model: "FoundModel") -> Path:
    """Return where results of a model go: where ``--output`` says, or to a folder that is named after the model."""
    if output is not None:
        return Path(output)
    if model.record is not None:
        run = model.folder.parent / HERE
        return run if model.folder.name == TRAINED else run / model.folder.name
    name = model.name_or_path.strip("/").removesuffix(".gguf").replace("/", "--").lstrip(".-")
    return Path("runs") / HERE / name


def _unwritable(folder: Path) -> list[Problem]:
    """Why no file can be written to a folder that need not be there yet."""
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not there.is_dir() or os.access(there, os.W_OK | os.X_OK):
        return check_folder("--output", folder)
    return [Problem("--output", str(folder), f"{there} may not be written to", "name another folder")]


def _identity(result: results.Result) -> dict[str, Any]:
    """Return what decides a result's figures, by section and name."""
    model = {key: value for key, value in (result.model or {}).items() if key not in ("address", "kind")}
    versions = {name: version for name, version in result.versions.items() if name in COMPUTING}
    sections = {"model": model, "config": result.config, "data": result.data, "versions": versions}
    flat = {f"{section}.{name}": value for section, each in sections.items() for name, value in each.items()}
    return flat | {"seed": result.seed}
