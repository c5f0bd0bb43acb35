"""Runs and commands of an experiment, each in its own process: complete ones are not repeated, interrupted ones resume.

A run is started as a user would start it, by its launcher; a single process without DeepSpeed's launcher, which would
take seconds.
"""

import itertools
import json
import shlex
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils.other import get_free_port

from tape_ds import installation, results, storage
from tape_ds.cli import plan as planner
from tape_ds.config.kinds import RENAMED
from tape_ds.config.recipe import Recipe
from tape_ds.errors import Problem, collecting, raise_if_any
from tape_ds.fields import COMPARED
from tape_ds.installation import ROOT
from tools.experiment import readings, table
from tools.experiment.table import Experiment

# In a run's folder: the recipe that it was started with, so that no other is resumed; the commands that ended
RECIPE = "recipe.json"
STEPS = "steps.json"


@dataclass(frozen=True)
class PlannedRun:
    """One arm with one seed."""

    arm: str
    label: str
    """For messages."""
    recipe: Recipe
    arguments: list[str]
    """Of the launcher, which load to the recipe."""
    folder: Path
    seed: int
    """Of the initial weights and the order of the sequences."""
    depends_on_seed: bool
    """Whether another seed can give other figures: something is trained, or prompts are drawn."""

    def stored(self) -> dict[str, Any]:
        """Return the recipe as a result holds it, without credentials."""
        plain: dict[str, Any] = json.loads(json.dumps(self.recipe.as_dict(), default=str))
        return results.redact(plain)

    def result(self) -> results.Result | None:
        """Return its stored result; None if it is missing, unfinished, or of another recipe."""
        file = self.folder / "results" / "run.json"
        result = results.load(file) if file.is_file() else None
        if result is not None and result.finished and self.is_same(result.config):
            return result
        return None

    def is_same(self, config: Mapping[str, Any]) -> bool:
        """Return whether a stored configuration is this run's, wherever it ran. A missing field, which did not exist
        yet, counts as its default; a field that the recipe leaves to the plan may have any value."""
        chosen = self.recipe.open
        if "activation_checkpointing" in chosen:
            chosen |= {"checkpoint_layers", "activation_checkpointing_kwargs"}
        mine = self.stored()
        other = {RENAMED.get(name, name): value for name, value in config.items()}
        for fields in (mine, other):
            for name in ("output_dir", "resume_from_checkpoint", *chosen):
                fields.pop(name, None)
        known = self.recipe.fields()
        for name in (mine.keys() - other.keys()) & known.keys():
            other[name] = known[name].get_default(call_default_factory=True)
        return mine == other


@dataclass(frozen=True)
class Starting:
    """How processes are started."""

    processes: int
    """Of each run, and of a command that begins with ``launch``."""
    launcher: str = ""
    """Words before a script, such as ``deepspeed --hostfile hosts``; default: processes of this machine."""

    def typed(self, words: Sequence[str]) -> list[str]:
        """Return a command as a user types it."""
        if words[0] != "launch":
            return list(words)
        own = self.launcher or (
            "python" if self.processes == 1 else f"deepspeed --num_accelerators {self.processes}"
        )
        module = ["-m"] if own == "python" and words[1] == "--module" else [words[1]]
        return [*shlex.split(own), *module, *words[2:]]

    def line(self, words: Sequence[str]) -> list[str]:
        """Return a command with this Python and the scripts of this installation, on a free port."""
        line = [
            str(ROOT / word)
            if word.startswith(("launchers/", "tools/")) and word.endswith(".py")
            else word
            for word in self.typed(words)
        ]
        if line[0] == "python":
            return [sys.executable, *line[1:]]
        if line[0] != "deepspeed":
            return line
        port = (
            []
            if {"--hostfile", "-H", "--master_port"} & set(line)
            else ["--master_port", str(get_free_port())]
        )
        return [sys.executable, "-m", "deepspeed.launcher.runner", *port, *line[1:]]

    def run_command(self, words: Sequence[str], log: Path) -> int:
        """Run a command to its end with its output in ``log``; return its exit code."""
        environment = installation.environment()
        if words[0] == "launch" and not torch.cuda.is_available():
            environment.setdefault("DS_ACCELERATOR", "cpu")
            # processes would compete for the cores
            environment.setdefault("OMP_NUM_THREADS", "1")
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "w", encoding="utf-8") as file:
            return subprocess.run(
                self.line(words), stdout=file, stderr=file, env=environment
            ).returncode


def plan(
    asked: Experiment, passed_on: Sequence[str], output: Path, processes: int
) -> list[PlannedRun]:
    """Return a run of each arm for each seed, each checked as the launcher would check it.

    Seed by seed, over all arms: if the experiment is stopped, the complete runs can be paired. An arm that no seed
    changes is run once. The folder of a run in ``output`` is named after its arm, and its seed unless that is the
    recipe's own.

    Args:
        asked: the experiment.
        passed_on: arguments for every launcher, which override the experiment's fields but not the arms'.
        output: folder of the runs' folders.
        processes: of each run.
    """
    names = {word[2:].split("=")[0] for word in passed_on if word.startswith("--")}
    wrong = [name for name in table.OWN if name in names]
    raise_if_any(
        [Problem(name, "after --", "decided by the runner", "remove it") for name in wrong]
    )

    def flags(values: Mapping[str, Any]) -> list[str]:
        texts = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items()
        }
        return [word for name, text in texts.items() for word in (f"--{name}", text)]

    def load(arm: str, extra: Sequence[str]) -> tuple[Recipe, list[str]]:
        own = dict(asked.arms[arm])
        name = own.pop("recipe", asked.recipe)
        words = [*flags(asked.fields), *passed_on, *flags(own), *extra]
        return planner.load(name, words, processes), ["--recipe", name, *words]

    own_seeds: dict[str, int] = {}
    problems: list[Problem] = []
    for arm in asked.arms:
        with collecting(problems):
            own_seeds[arm] = load(arm, [])[0].trainer_value("seed")
    # of several arms once
    raise_if_any(list({str(problem): problem for problem in problems}.values()))

    seeds: Sequence[int | None] = asked.seeds or [None]
    planned = []
    for seed, arm in itertools.product(seeds, asked.arms):
        folder = output / table.folder_of(arm)
        if seed not in (None, own_seeds[arm]):
            folder = folder.with_name(f"{folder.name}_seed_{seed}")
        extra = [] if seed is None else ["--seed", str(seed)]
        recipe, words = load(arm, [*extra, "--output_dir", str(folder)])
        depends_on_seed = recipe.trains or bool(recipe.as_dict().get("passkey_lengths"))
        if depends_on_seed or seed == seeds[0]:
            label = f"{arm}, seed {seed}" if asked.seeds else arm
            run_seed = int(recipe.trainer_value("seed"))
            planned.append(PlannedRun(arm, label, recipe, words, folder, run_seed, depends_on_seed))
    raise_if_any(list(_check(asked, planned)))
    return planned


def _check(asked: Experiment, planned: Sequence[PlannedRun]) -> Iterator[Problem]:
    """Find runs that would share a folder, and differences that would make the rows of one table not comparable."""
    owners: dict[Path, list[str]] = {}
    for run in planned:
        owners.setdefault(run.folder, []).append(run.label)
    for folder, labels in owners.items():
        if len(labels) > 1:
            yield Problem(
                "arms",
                " and ".join(labels),
                f"would share the folder {folder}",
                "name them otherwise",
            )

    recipes = {run.arm: run.recipe for run in planned}
    fields = {name: field for each in recipes.values() for name, field in each.fields().items()}
    compared = sorted(name for name, field in fields.items() if COMPARED in field.metadata)
    values = {
        name: {arm: recipe.as_dict().get(name) for arm, recipe in recipes.items()}
        for name in compared
    }
    values["tokens"] = {
        arm: recipe.trainer_value("max_steps") * recipe.global_batch_size * recipe.window
        for arm, recipe in recipes.items()
        if recipe.trains and recipe.trainer_value("max_steps") > 0
    }
    for name, by_arm in values.items():
        if (
            name not in asked.may_differ
            and len({json.dumps(value, default=str) for value in by_arm.values()}) > 1
        ):
            shown = ", ".join(f"{arm}: {value}" for arm, value in by_arm.items())
            remedy = f"give all the same, or may_differ: [{name}]"
            yield Problem(name, shown, "differs between arms that are compared", remedy)


@dataclass(frozen=True)
class ExperimentWork:
    """An experiment as a command line asks for it: its runs and commands, and their folders."""

    name: str
    """Of its page, and of its folder in ``output``."""
    experiment: Experiment
    output: Path
    """Folder of the runs, which another experiment may share."""
    starting: Starting
    jobs: int = 1
    """Runs at a time."""

    @property
    def own(self) -> Path:
        """Folder of what belongs to no single run."""
        return self.output / self.name

    def commands(self, texts: Sequence[str], run: PlannedRun | None = None) -> list[list[str]]:
        """Return the words of the experiment's commands."""
        values = {"output": self.output, "own": self.own} | (
            {} if run is None else {"run": run.folder, "arm": run.arm}
        )
        return [table.filled(text, values) for text in texts]

    def training(self, run: PlannedRun) -> list[str]:
        return ["launch", f"launchers/{run.recipe.LAUNCHER}.py", *run.arguments, "--resume", "auto"]

    def scored(self, run: PlannedRun) -> str | None:
        """Return when a run was trained and scored by every command; None if it has yet to be."""
        result = run.result()
        if result is None:
            return None
        return all_ended(
            run.folder, self.commands(self.experiment.score, run), str(result.finished)
        )

    def all_scored(self, planned: Sequence[PlannedRun]) -> str | None:
        """Return when the last of the runs was :meth:`scored`; None if one has yet to be."""
        when = [ended for run in planned if (ended := self.scored(run)) is not None]
        if len(when) == len(planned):
            return max(when, default="")
        return None

    def run_one(self, run: PlannedRun) -> Path | None:
        """Train and score a run as far as needed; return the log of the command that failed."""
        if self.scored(run) is not None:
            print(f"{run.label}: complete, not repeated", flush=True)
            return None
        result = run.result()
        if result is None:
            # a folder that holds anything but this recipe's run is moved away under a number
            if run.folder.is_dir() and any(run.folder.iterdir()):
                try:
                    begun = run.is_same(
                        json.loads((run.folder / RECIPE).read_text(encoding="utf-8"))
                    )
                except (OSError, ValueError):
                    begun = False  # a run that somebody started by hand
                if not begun:
                    names = (f"{run.folder.name}.{number}" for number in itertools.count(1))
                    free = next(
                        path for path in map(run.folder.with_name, names) if not path.exists()
                    )
                    run.folder.rename(free)
                    print(
                        f"{run.label}: its folder held a run of another recipe, now in {free}",
                        flush=True,
                    )
            run.folder.mkdir(parents=True, exist_ok=True)
            storage.write_json(run.folder / RECIPE, run.stored())

            log = run.folder / "log.txt"
            print(f"{run.label}: training, see {log}", flush=True)
            if (
                self.starting.run_command(self.training(run), log) != 0
                or (result := run.result()) is None
            ):
                return log
        commands = self.commands(self.experiment.score, run)
        return self.run_steps(run.label, commands, run.folder, str(result.finished))

    def run_all(self, planned: Sequence[PlannedRun]) -> Iterator[tuple[PlannedRun, Path | None]]:
        """Run everything, some at a time; yield each run in order when it has ended, with the log of what failed."""
        # a pool would begin the next run while the caller writes the page of this one
        if self.jobs == 1:
            yield from ((run, self.run_one(run)) for run in planned)
            return
        pool = ThreadPoolExecutor(self.jobs)
        try:
            yield from zip(planned, pool.map(self.run_one, planned), strict=True)
        finally:
            # after an error nothing more begins
            pool.shutdown(cancel_futures=True)

    def run_steps(
        self, label: str, commands: Sequence[Sequence[str]], folder: Path, since: str
    ) -> Path | None:
        """Run commands in order, from the first that has not ended since ``since`` or since the command before it;
        return the log of the one that failed."""
        done = _steps(folder)
        current, _ = _current(done, folder, commands, since)
        for words in commands[current:]:
            # named after the program and a digest of the whole command
            program = [word for word in words[1:] if word not in ("--module", "-m")]
            named = list(itertools.takewhile(lambda word: not word.startswith("-"), program))[:2]
            kind = "_".join(Path(word).stem for word in named)
            typed = shlex.join(words)
            log = folder / f"{kind}_{zlib.crc32(typed.encode()):08x}.txt"
            print(f"{label}: {shlex.join(self.starting.typed(words))}, see {log}", flush=True)
            # the command would refuse to replace it
            for name in done.get(typed, {}).get("left", ()):
                (folder / name).unlink(missing_ok=True)
            before = _results(folder)
            if self.starting.run_command(words, log) != 0:
                return log
            done[typed] = {
                "ended": results.now(),
                "left": sorted(name for name, _ in _results(folder) - before),
            }
            storage.write_json(folder / STEPS, done)
        return None


def all_ended(folder: Path, commands: Sequence[Sequence[str]], since: str) -> str | None:
    """Return when the last of a folder's commands ended, each since the one before it; None if one must be repeated."""
    current, ended = _current(_steps(folder), folder, commands, since)
    if current == len(commands):
        return ended
    return None


def _current(
    done: Mapping[str, dict[str, Any]], folder: Path, commands: Sequence[Sequence[str]], since: str
) -> tuple[int, str]:
    """Return how many of the commands, in order, need not be repeated, and when the last of these ended."""
    for number, words in enumerate(commands):
        step = done.get(shlex.join(words))
        if (
            step is None
            or step["ended"] < since
            or not all((folder / name).is_file() for name in step["left"])
        ):
            return number, since
        since = step["ended"]
    return len(commands), since


def _steps(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the commands that have ended in a folder: when, and which results each has left."""
    try:
        found = json.loads((folder / STEPS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    # an earlier version stored the time alone
    return {
        typed: {"ended": step, "left": []} if isinstance(step, str) else step
        for typed, step in found.items()
    }


def _results(folder: Path) -> set[tuple[str, int]]:
    """Return the results that pages read from a folder, and when each was written."""
    paths = [*folder.glob("*.*"), *folder.glob("evaluation/**/*.*")]
    return {
        (str(path.relative_to(folder)), path.stat().st_mtime_ns)
        for path in paths
        if readings.is_read(path)
    }
