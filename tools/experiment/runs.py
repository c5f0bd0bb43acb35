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
from collections import defaultdict
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

    def make_room(self) -> None:
        """Make its folder and note the recipe in it; a folder that holds another recipe's run is moved away."""
        if self.folder.is_dir() and any(self.folder.iterdir()):
            try:
                begun = self.is_same(json.loads((self.folder / RECIPE).read_text(encoding="utf-8")))
            except (OSError, ValueError):
                # a run that somebody started by hand
                begun = False
            if not begun:
                numbers = itertools.count(1)
                free = self.folder
                while free.exists():
                    free = self.folder.with_name(f"{self.folder.name}.{next(numbers)}")
                self.folder.rename(free)
                print(
                    f"{self.label}: its folder held a run of another recipe, now in {free}",
                    flush=True,
                )
        self.folder.mkdir(parents=True, exist_ok=True)
        storage.write_json(self.folder / RECIPE, self.stored())

    def is_same(self, config: Mapping[str, Any]) -> bool:
        """Return whether a stored configuration is this run's, wherever it ran. A missing field, which did not exist
        yet, counts as its default; a field that the recipe leaves to the plan may have any value."""
        chosen = self.recipe.open
        if "activation_checkpointing" in chosen:
            chosen |= {"checkpoint_layers", "activation_checkpointing_kwargs"}
        mine = self.stored()
        other = {RENAMED.get(name, name): value for name, value in config.items()}
        for fields in (mine, other):
            for name in ("launcher", "output_dir", "resume_from_checkpoint", *chosen):
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
        launcher = self.launcher
        if not launcher:
            launcher = f"deepspeed --num_accelerators {self.processes}"
            if self.processes == 1:
                launcher = "python"
        module = words[1]
        # Python's own spelling of what DeepSpeed calls --module
        if launcher == "python" and module == "--module":
            module = "-m"
        return [*shlex.split(launcher), module, *words[2:]]

    def line(self, words: Sequence[str]) -> list[str]:
        """Return a command with this Python and the scripts of this installation, on a free port."""
        program, *arguments = map(_installed, self.typed(words))
        if program == "python":
            return [sys.executable, *arguments]
        if program != "deepspeed":
            return [program, *arguments]
        # runs that share a machine would meet on DeepSpeed's own port
        if not {"--hostfile", "-H", "--master_port"} & set(arguments):
            arguments = ["--master_port", str(get_free_port()), *arguments]
        return [sys.executable, "-m", "deepspeed.launcher.runner", *arguments]

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


def _installed(word: str) -> str:
    """Return a word of a command with a script's path from anywhere."""
    if word.startswith(("launchers/", "tools/")) and word.endswith(".py"):
        return str(ROOT / word)
    return word


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
    problems: list[Problem] = []
    for name in table.OWN:
        if name in names:
            problems.append(Problem(name, "after --", "decided by the runner", "remove it"))
    raise_if_any(problems)

    def load_arm(arm: str, extra: Sequence[str]) -> tuple[Recipe, list[str]]:
        fields = dict(asked.arms[arm])
        name = fields.pop("recipe", asked.recipe)
        words = [*_flags(asked.fields), *passed_on, *_flags(fields), *extra]
        return planner.load(name, words, processes), ["--recipe", name, *words]

    own_seeds: dict[str, int] = {}
    for arm in asked.arms:
        with collecting(problems):
            own_seeds[arm] = load_arm(arm, [])[0].trainer.seed
    # what several arms share is said once
    raise_if_any(list({str(problem): problem for problem in problems}.values()))

    seeds: Sequence[int | None] = asked.seeds or [None]
    planned = []
    for seed, arm in itertools.product(seeds, asked.arms):
        folder = output / table.folder_of(arm)
        if seed not in (None, own_seeds[arm]):
            folder = folder.with_name(f"{folder.name}_seed_{seed}")
        extra = ["--output_dir", str(folder)]
        if seed is not None:
            extra = ["--seed", str(seed), *extra]
        recipe, words = load_arm(arm, extra)
        depends_on_seed = recipe.trains or bool(recipe.as_dict().get("passkey_lengths"))
        if depends_on_seed or seed == seeds[0]:
            label = f"{arm}, seed {seed}" if asked.seeds else arm
            run_seed = int(recipe.trainer.seed)
            planned.append(PlannedRun(arm, label, recipe, words, folder, run_seed, depends_on_seed))
    raise_if_any([*_shared_folders(planned), *_differing_fields(asked, planned)])
    return planned


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
        values: dict[str, object] = {"output": self.output, "own": self.own}
        if run is not None:
            values |= {"run": run.folder, "arm": run.arm}
        return [table.filled(text, values) for text in texts]

    def training(self, run: PlannedRun) -> list[str]:
        return ["launch", f"launchers/{run.recipe.LAUNCHER}.py", *run.arguments, "--resume", "auto"]

    def scored(self, run: PlannedRun) -> str | None:
        """Return when a run was trained and scored by every command; None if it has yet to be."""
        result = run.result()
        if result is None:
            return None
        commands = self.commands(self.experiment.score, run)
        return all_ended(run.folder, commands, str(result.finished))

    def all_scored(self, planned: Sequence[PlannedRun]) -> str | None:
        """Return when the last of the runs was :meth:`scored`; None if one has yet to be."""
        last = ""
        for run in planned:
            ended = self.scored(run)
            if ended is None:
                return None
            last = max(last, ended)
        return last

    def run_one(self, run: PlannedRun) -> Path | None:
        """Train and score a run as far as needed; return the log of the command that failed."""
        if self.scored(run) is not None:
            print(f"{run.label}: complete, not repeated", flush=True)
            return None
        result = run.result()
        if result is None:
            run.make_room()
            log = run.folder / "log.txt"
            print(f"{run.label}: training, see {log}", flush=True)
            code = self.starting.run_command(self.training(run), log)
            result = run.result()
            if code != 0 or result is None:
                return log
        commands = self.commands(self.experiment.score, run)
        return self.run_steps(run.label, commands, run.folder, str(result.finished))

    def run_all(self, planned: Sequence[PlannedRun]) -> Iterator[tuple[PlannedRun, Path | None]]:
        """Run everything, some at a time; yield each run in order when it has ended, with the log of what failed."""
        # a pool would begin the next run while the caller writes the page of this one
        if self.jobs == 1:
            for run in planned:
                yield run, self.run_one(run)
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
            typed = shlex.join(words)
            log = folder / f"{_program(words)}_{zlib.crc32(typed.encode()):08x}.txt"
            print(f"{label}: {shlex.join(self.starting.typed(words))}, see {log}", flush=True)
            # the command would refuse to replace it
            for name in done.get(typed, {}).get("left", ()):
                (folder / name).unlink(missing_ok=True)
            before = _results(folder)
            if self.starting.run_command(words, log) != 0:
                return log
            left = sorted(name for name, _ in _results(folder) - before)
            done[typed] = {"ended": results.now(), "left": left}
            storage.write_json(folder / STEPS, done)
        return None


def _program(words: Sequence[str]) -> str:
    """Return the program of a command and its own first word, for the name of a log."""
    stems: list[str] = []
    for word in words[1:]:
        if word in ("--module", "-m"):
            continue
        if word.startswith("-") or len(stems) == 2:
            break
        stems.append(Path(word).stem)
    return "_".join(stems)


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
        if step is None or step["ended"] < since:
            return number, since
        # a result that somebody removed is made again
        for name in step["left"]:
            if not (folder / name).is_file():
                return number, since
        since = step["ended"]
    return len(commands), since


def _steps(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the commands that have ended in a folder: when, and which results each has left."""
    try:
        steps = json.loads((folder / STEPS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    for typed, step in steps.items():
        # an earlier version stored the time alone
        if isinstance(step, str):
            steps[typed] = {"ended": step, "left": []}
    return steps


def _results(folder: Path) -> set[tuple[str, int]]:
    """Return the results that pages read from a folder, and when each was written."""
    written = set()
    for path in [*folder.glob("*.*"), *folder.glob("evaluation/**/*.*")]:
        if readings.is_read(path):
            written.add((str(path.relative_to(folder)), path.stat().st_mtime_ns))
    return written


def _flags(values: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value)
        words += [f"--{name}", text]
    return words


def _shared_folders(planned: Sequence[PlannedRun]) -> Iterator[Problem]:
    owners: defaultdict[Path, list[str]] = defaultdict(list)
    for run in planned:
        owners[run.folder].append(run.label)
    for folder, labels in owners.items():
        if len(labels) > 1:
            reason = f"would share the folder {folder}"
            yield Problem("arms", " and ".join(labels), reason, "name them otherwise")


def _differing_fields(asked: Experiment, planned: Sequence[PlannedRun]) -> Iterator[Problem]:
    """Find differences that would make the rows of one table not comparable."""
    recipes = {run.arm: run.recipe for run in planned}
    compared = set()
    tokens = {}
    for arm, recipe in recipes.items():
        for name, field in recipe.fields().items():
            if COMPARED in field.metadata:
                compared.add(name)
        steps = recipe.trainer.max_steps if recipe.trains else 0
        if steps > 0:
            tokens[arm] = steps * recipe.global_batch_size * recipe.window
    values: dict[str, dict[str, Any]] = {}
    for name in sorted(compared):
        values[name] = {arm: recipe.as_dict().get(name) for arm, recipe in recipes.items()}
    # no field of its own: what a run reads follows from three of them
    values["tokens"] = tokens
    for name, by_arm in values.items():
        different = {json.dumps(value, default=str) for value in by_arm.values()}
        if len(different) > 1 and name not in asked.may_differ:
            shown = ", ".join(f"{arm}: {value}" for arm, value in by_arm.items())
            remedy = f"give all the same, or may_differ: [{name}]"
            yield Problem(name, shown, "differs between arms that are compared", remedy)
