"""Runs as a user would start them, through DeepSpeed's launcher: not repeated when complete, resumed when cut short.

A single process is started without that launcher, which would take longer to start it than to know what to do.
"""

import dataclasses
import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tape_ds import installation, results, storage
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.recipe.recipe import Recipe
from tape_ds.training.comparison.arms import Arm

RECIPE = "recipe.json"
"""In a run's folder: the recipe it was started with, so that nothing else is resumed there."""


@dataclass(frozen=True)
class Planned:
    """A run that a comparison needs."""

    label: str
    """How messages call it."""
    launcher: Path
    """The script that carries it out."""
    arguments: list[str]
    """The launcher's command line, ``--output_dir`` included."""
    recipe: Recipe
    """What those arguments load to."""
    ignored: tuple[str, ...] = ()
    """Fields in which a stored result may differ and still be this run's."""
    arm: str = ""
    """How tables call what it is a run of."""
    again: bool = False
    """Whether it repeats another run, seed and all, to show what of a figure is noise."""

    @property
    def seed(self) -> int:
        """Decides the weights that it starts from and the rows that it sees."""
        return int(self.recipe.trainer_value("seed"))

    @property
    def folder(self) -> Path:
        """What the run writes to."""
        return Path(self.recipe.trainer_value("output_dir"))

    @property
    def log(self) -> Path:
        """What the run prints goes there."""
        return self.folder / "log.txt"

    def result(self) -> results.Result | None:
        """Its stored result; None where there is none, where it is unfinished, or of another recipe.

        Raises:
            UserError: the file is no result.
        """
        file = self.folder / "results" / "run.json"
        found = results.load(file) if file.is_file() else None
        return found if found is not None and found.finished and self._is_same(found.config) else None

    def _is_same(self, config: Mapping[str, Any]) -> bool:
        """Whether a stored configuration is this run's, wherever it ran."""
        skipped = {"output_dir", "resume_from_checkpoint", *self.ignored}
        mine, theirs = ({k: v for k, v in each.items() if k not in skipped} for each in (_plain(self.recipe), config))
        return mine == theirs

    def prepare_folder(self) -> None:
        """Make the folder; one that holds anything but this recipe's run is set aside first, under a number."""
        if self.folder.is_dir() and any(self.folder.iterdir()) and not self._is_begun():
            aside = next(path for n in itertools.count(1) if not (path := self._aside(n)).exists())
            self.folder.rename(aside)
            print(f"{self.label}: what lay in its folder is of another recipe, now in {aside}", flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        storage.write_json(self.folder / RECIPE, _plain(self.recipe))

    def _is_begun(self) -> bool:
        """Whether the folder says that this recipe's run was begun there; one that says nothing is somebody else's."""
        try:
            return self._is_same(json.loads((self.folder / RECIPE).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return False

    def _aside(self, number: int) -> Path:
        return self.folder.with_name(f"{self.folder.name}.{number}")


def _plain(recipe: Recipe) -> dict[str, Any]:
    """A recipe as a stored result gives it back, without credentials."""
    plain: dict[str, Any] = json.loads(json.dumps(recipe.as_dict(), default=str))
    return results.redact(plain)


def check_processes(count: int | None) -> list[Problem]:
    """What is wrong with a number of processes that somebody gave."""
    wrong = count is not None and count < 1
    return [Problem("processes", count, "too few", "give 1 or more")] if wrong else []


def plan_all(
    arms: Sequence[Arm],
    launcher: Path,
    load: Callable[[list[str]], Recipe],
    *,
    passed_on: Sequence[str],
    output: Path,
    seeds: Sequence[int] | None = None,
    again: str | None = None,
    ignored: tuple[str, ...] = (),
) -> list[Planned]:
    """A run of each arm for each seed, each checked as the launcher would.

    Seed by seed, over all arms: whatever stops the comparison, what is complete can be paired. A run lies in a folder
    of ``output`` called as its arm; where its seed is not the recipe's own, the name says it.

    Args:
        arms: without an ``output_dir``.
        launcher: carries them out.
        load: its recipe from a command line.
        passed_on: arguments of every run.
        output: folder of the runs' folders.
        seeds: None: the recipe's own, and no other.
        again: label of the arm whose first run is repeated.
        ignored: fields in which a stored result may differ and still be the run's.

    Raises:
        UserError: everything wrong with any of them, a problem that several share once.
    """
    own: dict[str, int] = {}
    problems: dict[str, list[Problem]] = {}
    for arm in arms:
        try:
            own[arm.label] = load(arm.arguments(passed_on)).trainer_value("seed")
        except UserError as error:
            problems[arm.label] = error.problems
    raise_if_any(_merged(problems, len(arms)))

    def run(arm: Arm, seed: int | None, repeats: bool = False) -> Planned:
        other = [] if seed in (None, own[arm.label]) else [f"seed_{seed}"]
        folder = "_".join([arm.folder, *other, *(["again"] if repeats else [])])
        arguments = arm.arguments(passed_on) + ([] if seed is None else ["--seed", str(seed)])
        arguments += ["--output_dir", str(output / folder)]
        label = arm.label + (f", seed {seed}" if seeds else "") + " again" * repeats
        return Planned(label, launcher, arguments, load(arguments), ignored, arm.label, repeats)

    planned = []
    for number, seed in enumerate(seeds or [None]):
        planned += [run(arm, seed) for arm in arms]
        planned += [run(arm, seed, True) for arm in arms if number == 0 and arm.label == again]
    raise_if_any(_sharing(planned))
    return planned


def _sharing(planned: Sequence[Planned]) -> list[Problem]:
    """Runs that would lie in one folder, as those of an arm that is called as another's seed."""
    whose: dict[Path, list[str]] = {}
    for run in planned:
        whose.setdefault(run.folder, []).append(run.label)
    return [
        Problem("arms", " and ".join(labels), f"would share the folder {folder}", "name them otherwise")
        for folder, labels in whose.items()
        if len(labels) > 1
    ]


def _merged(problems: Mapping[str, Sequence[Problem]], count: int) -> list[Problem]:
    """Problems by label, those that all ``count`` labels share once, the others with whose they are."""
    whose: dict[str, list[str]] = {}
    kept: dict[str, Problem] = {}
    for label, found in problems.items():
        for problem in found:
            kept[str(problem)] = problem
            whose.setdefault(str(problem), []).append(label)
    return [
        each if len(whose[key]) == count else dataclasses.replace(each, wrong=f"{', '.join(whose[key])}: {each.wrong}")
        for key, each in kept.items()
    ]


def compare(
    planned: Sequence[Planned], jobs: int, work: Callable[[Planned], Path | None], write: Callable[[], str]
) -> int:
    """Carry out runs in their order, ``jobs`` at a time, and write the page after each that was not complete before,
    and in the end; the exit code.

    Args:
        planned: the runs.
        jobs: 1 or more.
        work: carries one out; returns the log of what failed.
        write: the page of all that is complete, and what to say of it in the end.

    Raises:
        UserError: a stored result that is none.
    """
    before = {run.label for run in planned if run.result() is not None}
    failed: dict[str, Path] = {}
    said, is_stale = "", False
    pool = ThreadPoolExecutor(jobs)
    try:
        outcomes: Iterator[Path | None] = pool.map(work, planned) if jobs > 1 else map(work, planned)
        for run, log in zip(planned, outcomes, strict=True):
            if log is not None:
                failed[run.label] = log
            elif run.label in before:
                is_stale = True
            else:
                said, is_stale = write(), False
    finally:  # whatever went wrong, what has not begun stays undone
        pool.shutdown(cancel_futures=True)
    if said or is_stale:
        print(write() if is_stale else said, flush=True)
    for label, log in failed.items():
        print(f"FAILED: {label}, see {log}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def complete(planned: Sequence[Planned]) -> list[tuple[Planned, results.Result]]:
    """The runs that are complete, with their results."""
    return [(run, result) for run in planned if (result := run.result()) is not None]


def train(run: Planned) -> Path | None:
    """Carry a run out that is only trained; the log of one that failed."""
    return None if carry_out(run) else run.log


def carry_out(run: Planned) -> bool:
    """Whether the run is complete, now if not before; what it prints goes to its log.

    Raises:
        UserError: a stored result that is none.
    """
    if run.result() is not None:
        print(f"{run.label}: complete, not repeated", flush=True)
        return True
    run.prepare_folder()
    arguments = [*run.arguments, "--resume", "auto"]
    print(f"{run.label}: training, see {run.log}", flush=True)
    return launch(run.launcher, arguments, run.recipe.world_size, run.log) == 0 and run.result() is not None


def launch(launcher: Path, arguments: Sequence[str], count: int, log: Path) -> int:
    """Run a launcher on ``count`` processes to its end and return its exit code; its output goes to ``log``."""
    return _launch([str(launcher), *arguments], count, log)


def launch_module(name: str, arguments: Sequence[str], count: int, log: Path) -> int:
    """:func:`launch` for what ``python -m`` runs, of this checkout wherever it is started from."""
    return _launch(["--module", name, *arguments], count, log)


def _launch(words: Sequence[str], count: int, log: Path) -> int:
    """On a free port, so that comparisons can share a machine, and runs of one."""
    if count == 1:
        whole = [sys.executable, *(["-m", *words[1:]] if words[0] == "--module" else words)]
    else:
        with socket.socket() as free:
            free.bind(("", 0))
            port = str(free.getsockname()[1])
        runner = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_accelerators", str(count)]
        whole = [*runner, "--master_port", port, *words]
    with open(log, "w", encoding="utf-8") as file:
        return subprocess.run(whole, stdout=file, stderr=file, env=environment()).returncode


def environment() -> dict[str, str]:
    """This process's environment, with this checkout's modules to be found, and DeepSpeed told of a CPU where there is
    nothing else."""
    import torch

    found = installation.environment()
    if not torch.cuda.is_available():
        found.setdefault("DS_ACCELERATOR", "cpu")
        found.setdefault("OMP_NUM_THREADS", "1")
    return found


def default_processes() -> int:
    """Processes of each run where nobody says: every GPU, or 2 on a CPU."""
    import torch

    return torch.cuda.device_count() or 2
