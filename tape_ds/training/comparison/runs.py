"""Runs as a user would start them, through DeepSpeed's launcher: not repeated when complete, resumed when cut short."""

import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tape_ds import results, storage
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.training.recipe.recipe import Recipe

ROOT = Path(__file__).resolve().parents[3]
RECIPE = "recipe.json"
"""In a run's folder: the recipe it was started with, so that nothing else is resumed there."""


@dataclass(frozen=True)
class Planned:
    """A run that a comparison needs."""

    label: str
    """How tables and messages call it."""
    launcher: Path
    """The script that carries it out."""
    arguments: list[str]
    """The launcher's command line, ``--output_dir`` included."""
    recipe: Recipe
    """What those arguments load to."""
    ignored: tuple[str, ...] = ()
    """Fields in which a stored result may differ and still be this run's."""

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
    arguments: Mapping[str, list[str]],
    launcher: Path,
    load: Callable[[list[str]], Recipe],
    ignored: tuple[str, ...] = (),
) -> list[Planned]:
    """The runs with these command lines, by label, each checked as the launcher would.

    Raises:
        UserError: everything wrong with any of them, a problem that several share once.
    """
    planned: list[Planned] = []
    problems: list[Problem] = []
    for label, own in arguments.items():
        try:
            planned.append(Planned(label, launcher, own, load(own), ignored))
        except UserError as error:
            known = {str(problem) for problem in problems}
            problems += [problem for problem in error.problems if str(problem) not in known]
    raise_if_any(problems)
    return planned


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
    """DeepSpeed's launcher, on a free port, so that comparisons can share a machine."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    runner = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_accelerators", str(count)]
    whole = [*runner, "--master_port", str(port), *words]
    with open(log, "w", encoding="utf-8") as file:
        return subprocess.run(whole, stdout=file, stderr=file, env=environment()).returncode


def environment() -> dict[str, str]:
    """This process's environment, with this checkout's modules to be found, and DeepSpeed told of a CPU where there is
    nothing else."""
    import torch

    found = dict(os.environ)
    if not torch.cuda.is_available():
        found.setdefault("DS_ACCELERATOR", "cpu")
        found.setdefault("OMP_NUM_THREADS", "1")
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), found.get("PYTHONPATH")]))
    found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), found.get("PATH", "")])
    return found


def default_processes() -> int:
    """Processes of each run where nobody says: every GPU, or 2 on a CPU."""
    import torch

    return torch.cuda.device_count() or 2
