"""Runs and commands of an experiment, each a process of its own: not repeated when complete, resumed when cut short.

A run is started as a user would start it, by its launcher. A single process goes without DeepSpeed's launcher, which
would take longer to start it than to know what to do.
"""

import itertools
import json
import shlex
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_ds import installation, results, storage
from tape_ds.errors import Problem, collecting, raise_if_any
from tape_ds.installation import ROOT
from tools.experiment import readings, table
from tools.experiment.table import Experiment

if TYPE_CHECKING:
    from tape_ds.recipe.recipe import Recipe

RECIPE, STEPS = "recipe.json", "steps.json"
"""In a run's folder: the recipe it was started with, so that nothing else is resumed there; the commands that ended."""
ROOMS = ("launchers", "tools")
"""Where scripts lie."""
SAME = (
    *("model", "target_length", "train_data", "eval_data", "eval_length", "eval_lengths", "eval_span", "eval_tokens"),
    *("passkey_lengths", "passkey_trials", "passkey_form", "tokenizer", "vocab_size", "task", "task_options"),
    *("train_lengths", "test_lengths", "held_out_samples", "max_digits", "max_digits_second", "test_digits"),
)
"""Fields without which rows of one table would not compare."""


@dataclass(frozen=True)
class PlannedRun:
    """One arm with one seed."""

    arm: str
    label: str
    """How messages call it."""
    recipe: "Recipe"
    arguments: list[str]
    """The launcher's, which load to the recipe."""

    @property
    def seed(self) -> int:
        """Decides the weights that it starts from and the sequences that it sees."""
        return int(self.recipe.trainer_value("seed"))

    @property
    def depends_on_seed(self) -> bool:
        """Whether another seed gives other figures: not where nothing is trained and no prompts are drawn."""
        return self.recipe.trains or bool(self.recipe.as_dict().get("passkey_lengths"))

    @property
    def folder(self) -> Path:
        """What the run writes to."""
        return Path(self.recipe.trainer_value("output_dir"))

    def result(self) -> results.Result | None:
        """Return its stored result; None where there is none, where it is unfinished, or of another recipe.

        Raises:
            UserError: the file is no result.
        """
        file = self.folder / "results" / "run.json"
        found = results.load(file) if file.is_file() else None
        return found if found is not None and found.finished and self.is_same(found.config) else None

    def is_same(self, config: Mapping[str, Any]) -> bool:
        """Return whether a stored configuration is this run's, wherever it ran. A field that it lacks did not exist
        yet, which is as good as the field's default; one that the recipe leaves to the plan may have any value."""
        from tape_ds.recipe.recipe import RENAMED

        chosen = self.recipe.open
        if "activation_checkpointing" in chosen:
            chosen |= {"checkpoint_layers", "activation_checkpointing_kwargs"}
        mine, theirs = plain(self.recipe), {RENAMED.get(name, name): value for name, value in config.items()}
        for each in (mine, theirs):
            for name in ("output_dir", "resume_from_checkpoint", *chosen):
                each.pop(name, None)
        newer = defaults(self.recipe, mine.keys() - theirs.keys())
        return mine == theirs | newer

    def prepare_folder(self) -> None:
        """Make the folder; one that holds anything but this recipe's run is set aside first, under a number."""
        if self.folder.is_dir() and any(self.folder.iterdir()) and not self._is_begun():
            aside = (self.folder.with_name(f"{self.folder.name}.{number}") for number in itertools.count(1))
            free = next(path for path in aside if not path.exists())
            self.folder.rename(free)
            print(f"{self.label}: what lay in its folder is of another recipe, now in {free}", flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        storage.write_json(self.folder / RECIPE, plain(self.recipe))

    def _is_begun(self) -> bool:
        """Return whether the folder says that this recipe's run was begun there; one that says nothing is somebody
        else's."""
        try:
            return self.is_same(json.loads((self.folder / RECIPE).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return False


def plain(recipe: "Recipe") -> dict[str, Any]:
    """Return a recipe as a stored result gives it back, without credentials."""
    found: dict[str, Any] = json.loads(json.dumps(recipe.as_dict(), default=str))
    return results.redact(found)


def defaults(recipe: "Recipe", names: set[str]) -> dict[str, Any]:
    """Return the defaults of some of a recipe's fields."""
    from tape_ds.recipe import loading

    known = loading.table(type(recipe))
    owners = {name: known[name] for name in names if name in known}
    return {
        name: section.model_fields[own].get_default(call_default_factory=True)
        for name, (section, own) in owners.items()
    }


@dataclass(frozen=True)
class Starting:
    """How processes are started."""

    processes: int
    """Of each run, and of a command that begins with ``launch``."""
    launcher: str = ""
    """What comes before a script: ``deepspeed --hostfile hosts``; none: this machine's processes."""

    def typed(self, words: Sequence[str]) -> list[str]:
        """Return a command as a user types it."""
        if words[0] != "launch":
            return list(words)
        own = self.launcher or ("python" if self.processes == 1 else f"deepspeed --num_accelerators {self.processes}")
        module = ["-m"] if own == "python" and words[1] == "--module" else [words[1]]
        return [*shlex.split(own), *module, *words[2:]]

    def shown(self, words: Sequence[str]) -> str:
        """Return the same as one text."""
        return shlex.join(self.typed(words))

    def line(self, words: Sequence[str]) -> list[str]:
        """Return a command as it is started here: by this Python, with the scripts of this installation, on a free
        port."""
        typed = self.typed(words)
        program, *rest = [str(ROOT / w) if w.split("/")[0] in ROOMS and w.endswith(".py") else w for w in typed]
        if program == "python":
            return [sys.executable, *rest]
        if program != "deepspeed":
            return [program, *rest]
        if not {"--hostfile", "-H", "--master_port"} & set(rest):
            from accelerate.utils.other import get_free_port

            rest = ["--master_port", str(get_free_port()), *rest]
        return [sys.executable, "-m", "deepspeed.launcher.runner", *rest]

    def run_command(self, words: Sequence[str], log: Path) -> int:
        """Run a command to its end, on a free port, so that runs can share a machine; its output goes to ``log``."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "w", encoding="utf-8") as file:
            return subprocess.run(self.line(words), stdout=file, stderr=file, env=environment(words[0])).returncode


def environment(program: str) -> dict[str, str]:
    """This process's environment with this checkout's modules to be found. What starts processes learns of a CPU where
    there is nothing else, and they share out the cores."""
    import torch

    found = installation.environment()
    if program == "launch" and not torch.cuda.is_available():
        found.setdefault("DS_ACCELERATOR", "cpu")
        found.setdefault("OMP_NUM_THREADS", "1")
    return found


def plan(asked: Experiment, passed_on: Sequence[str], output: Path, processes: int) -> list[PlannedRun]:
    """Return a run of each arm for each seed, each checked as the launcher would.

    Seed by seed, over all arms: whatever stops the experiment, what is complete can be paired. An arm that no seed
    changes is run once, with the first. A run lies in a folder
    of ``output`` called as its arm; where its seed is not the recipe's own, the name says it.

    Args:
        asked: the experiment.
        passed_on: a launcher's arguments for every run, over the experiment's own fields and under the arms'.
        output: folder of the runs' folders.
        processes: of each run.

    Raises:
        UserError: everything wrong with any of them, a problem that several share once.
    """
    from tools import plan as planner

    given = {word[2:].split("=")[0] for word in passed_on if word.startswith("--")}
    raise_if_any(
        [Problem(name, "behind --", "decided by the runner", "remove it") for name in table.OWN if name in given]
    )
    problems: dict[str, list[Problem]] = {}

    def load(arm: str, extra: Sequence[str]) -> tuple["Recipe", list[str]]:
        own = {"recipe": asked.recipe, **asked.arms[arm]}
        words = [*flags(asked.fields), *passed_on, *flags({k: v for k, v in own.items() if k != "recipe"}), *extra]
        return planner.load(own["recipe"], words, processes), ["--recipe", own["recipe"], *words]

    own_seeds: dict[str, int] = {}
    for arm in asked.arms:
        with collecting(problems.setdefault(arm, [])):
            own_seeds[arm] = load(arm, [])[0].trainer_value("seed")
    raise_if_any(_merged(problems, len(asked.arms)))

    def run(arm: str, seed: int | None) -> PlannedRun:
        other = "" if seed in (None, own_seeds[arm]) else f"_seed_{seed}"
        extra = [] if seed is None else ["--seed", str(seed)]
        recipe, words = load(arm, [*extra, "--output_dir", str(output / f"{table.folder_of(arm)}{other}")])
        return PlannedRun(arm, arm + (f", seed {seed}" if asked.seeds else ""), recipe, words)

    seeds: Sequence[int | None] = asked.seeds or [None]
    found = [
        each for seed in seeds for arm in asked.arms if (each := run(arm, seed)).depends_on_seed or seed == seeds[0]
    ]
    raise_if_any([*_sharing(found), *_unequal(asked, found)])
    return found


def flags(values: Mapping[str, Any]) -> list[str]:
    """Return fields as a launcher's arguments."""
    return [
        word
        for name, value in values.items()
        for word in (f"--{name}", value if isinstance(value, str) else json.dumps(value))
    ]


def _merged(problems: Mapping[str, Sequence[Problem]], count: int) -> list[Problem]:
    """Each problem once, with the arms that have it where not all do."""
    whose: dict[str, tuple[Problem, list[str]]] = {}
    for arm, found in problems.items():
        for problem in found:
            whose.setdefault(str(problem), (problem, []))[1].append(arm)
    return [
        problem if len(arms) == count else replace(problem, wrong=f"{', '.join(arms)}: {problem.wrong}")
        for problem, arms in whose.values()
    ]


def _sharing(planned: Sequence[PlannedRun]) -> Iterator[Problem]:
    """Runs that would lie in one folder, as those of an arm that is called as another's seed."""
    whose: dict[Path, list[str]] = {}
    for run in planned:
        whose.setdefault(run.folder, []).append(run.label)
    for folder, labels in whose.items():
        if len(labels) > 1:
            yield Problem("arms", " and ".join(labels), f"would share the folder {folder}", "name them otherwise")


def _unequal(asked: Experiment, planned: Sequence[PlannedRun]) -> Iterator[Problem]:
    """What arms do not share without which the rows of one table would not compare."""
    recipes = {run.arm: run.recipe for run in planned}
    for name in SAME:
        yield from _differing(name, {arm: each.as_dict().get(name) for arm, each in recipes.items()}, asked)
    trained = {arm: each for arm, each in recipes.items() if each.trains and each.trainer_value("max_steps") > 0}
    tokens = {
        arm: each.trainer_value("max_steps") * each.global_batch_size * each.window for arm, each in trained.items()
    }
    yield from _differing("tokens", tokens, asked)


def _differing(name: str, values: Mapping[str, Any], asked: Experiment) -> Iterator[Problem]:
    if name not in asked.may_differ and len({json.dumps(value, default=str) for value in values.values()}) > 1:
        shown = ", ".join(f"{arm}: {value}" for arm, value in values.items())
        yield Problem(
            name, shown, "differs between arms that are compared", f"give all the same, or may_differ: [{name}]"
        )


@dataclass(frozen=True)
class ExperimentWork:
    """An experiment as a command line asks for it: its runs and commands, and where they write."""

    name: str
    """Of its page, and of its own folder in ``output``."""
    experiment: Experiment
    output: Path
    """Folder of the runs, which another experiment may share."""
    starting: Starting
    jobs: int = 1
    """Runs at a time."""

    @property
    def own(self) -> Path:
        """The folder of what is of no single run."""
        return self.output / self.name

    def commands(self, texts: Sequence[str], run: PlannedRun | None = None) -> list[list[str]]:
        """Return the words of the experiment's commands."""
        values = {"output": self.output, "own": self.own} | ({} if run is None else {"run": run.folder, "arm": run.arm})
        return [table.filled(text, values) for text in texts]

    def training(self, run: PlannedRun) -> list[str]:
        """Return the command that trains a run."""
        return ["launch", f"launchers/{run.recipe.LAUNCHER}.py", *run.arguments, "--resume", "auto"]

    def scored(self, run: PlannedRun) -> str | None:
        """When a run was trained and every command that scores it had ended; None: that is yet to be done."""
        found = run.result()
        if found is None:
            return None
        return _all_ended(run.folder, self.commands(self.experiment.score, run), str(found.finished))

    def all_scored(self, planned: Sequence[PlannedRun]) -> str | None:
        """When the last of the runs was :meth:`scored`; None: one has yet to be."""
        when = [found for run in planned if (found := self.scored(run)) is not None]
        return max(when, default="") if len(when) == len(planned) else None

    def concluded(self, planned: Sequence[PlannedRun]) -> bool:
        """Return whether the commands that come last have ended since all runs were scored."""
        since = self.all_scored(planned)
        return since is not None and _all_ended(self.own, self.commands(self.experiment.then), since) is not None

    def run_one(self, run: PlannedRun) -> Path | None:
        """Train and score a run, whatever of that is not done; the log of what failed.

        Raises:
            UserError: a stored result that is none.
        """
        if self.scored(run) is not None:
            print(f"{run.label}: complete, not repeated", flush=True)
            return None
        found = run.result()
        if found is None:
            run.prepare_folder()
            log = run.folder / "log.txt"
            print(f"{run.label}: training, see {log}", flush=True)
            if self.starting.run_command(self.training(run), log) != 0 or (found := run.result()) is None:
                return log
        commands = self.commands(self.experiment.score, run)
        return self.run_steps(run.label, commands, run.folder, str(found.finished))

    def run_all(self, planned: Sequence[PlannedRun]) -> Iterator[tuple[PlannedRun, Path | None]]:
        """Runs in their order, some at a time, each with the log of what failed in it when it has ended."""
        if self.jobs == 1:  # a pool would begin the next run while the caller writes the page of this one
            yield from ((run, self.run_one(run)) for run in planned)
            return
        pool = ThreadPoolExecutor(self.jobs)
        try:
            yield from zip(planned, pool.map(self.run_one, planned), strict=True)
        finally:  # whatever went wrong, what has not begun stays undone
            pool.shutdown(cancel_futures=True)

    def run_steps(self, label: str, commands: Sequence[Sequence[str]], folder: Path, since: str) -> Path | None:
        """Carry commands out in their order, from the first that has not ended since then, or since the command before
        it; the log of the one that failed. What one left before is removed first: it would be refused there."""
        done, behind = _steps(folder), False
        for words in commands:
            step, log = done.get(shlex.join(words)), folder / f"{_called(words)}.txt"
            if behind or step is None or not step.holds(folder, since):
                behind = True
                print(f"{label}: {self.starting.shown(words)}, see {log}", flush=True)
                for name in step.left if step is not None else ():
                    (folder / name).unlink(missing_ok=True)
                before = _results(folder)
                if self.starting.run_command(words, log) != 0:
                    return log
                left = sorted(name for name, _ in _results(folder) - before)
                step = done[shlex.join(words)] = EndedStep(results.now(), left)
                storage.write_json(folder / STEPS, {typed: asdict(each) for typed, each in done.items()})
            since = step.ended
        return None


@dataclass(frozen=True)
class EndedStep:
    """A command that has ended."""

    ended: str
    left: list[str]
    """The results that it wrote, from the folder."""

    def holds(self, folder: Path, since: str) -> bool:
        """Return whether it need not be repeated: it ended since then, and its results are still there."""
        return self.ended >= since and all((folder / name).is_file() for name in self.left)


def _steps(folder: Path) -> dict[str, EndedStep]:
    """Return the commands that have ended in a folder."""
    try:
        found = json.loads((folder / STEPS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    # a time alone: of a version that knew nothing of results
    return {typed: EndedStep(each, []) if isinstance(each, str) else EndedStep(**each) for typed, each in found.items()}


def _all_ended(folder: Path, commands: Sequence[Sequence[str]], since: str) -> str | None:
    """When the last of a folder's commands ended, each since the one before it; None where one has to be repeated."""
    done = _steps(folder)
    for words in commands:
        step = done.get(shlex.join(words))
        if step is None or not step.holds(folder, since):
            return None
        since = step.ended
    return since


def _results(folder: Path) -> set[tuple[str, int]]:
    """Return the results that pages take from a folder, and when each was written."""
    found = (
        path for pattern in ("*.*", "evaluation/**/*.*") for path in folder.glob(pattern) if readings.is_read(path)
    )
    return {(str(path.relative_to(folder)), path.stat().st_mtime_ns) for path in found}


def _called(words: Sequence[str]) -> str:
    """Return what a command's log is called: after what it starts, and a digest that tells it from others of its
    kind."""
    plain_words = [word for word in words[1:] if word not in ("--module", "-m")]
    named = itertools.takewhile(lambda word: not word.startswith("-"), plain_words)
    kind = "_".join(Path(word).stem for word in itertools.islice(named, 2))
    return f"{kind}_{zlib.crc32(shlex.join(words).encode()):08x}"
