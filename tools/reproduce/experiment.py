"""What an experiment is: a published table or figure, the commands that make it at each scale, and how ours is read."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.published import Quantity, Table
from tape_ds import installation, results

ROOT = installation.ROOT
WORK = installation.work()
"""What places start from, and where commands run."""
ROOMS = ("launchers", "tools")
"""Where scripts lie."""
TINY, SMALL, PAPER = "tiny", "small", "paper"
SCALES = (TINY, SMALL, PAPER)
"""Minutes of two CPU cores, without a network; an hour or more of them, for numbers that tell; as published."""


@dataclass(frozen=True)
class Place:
    """Where an experiment's commands write, and what launches them."""

    output: Path
    """Of this experiment alone."""
    processes: int = 2
    """Of the commands that start processes themselves."""
    launcher: str = "deepspeed"
    """What a cluster's commands begin with."""

    @property
    def shared(self) -> Path:
        """Of runs that several experiments need, beside their own folders."""
        return self.output.parent / "shared"


@dataclass(frozen=True)
class Step:
    """One command of an experiment."""

    name: str
    """Of its log and its record: no two of an experiment, or of what experiments share, are called the same."""
    words: tuple[str, ...]
    """As a user types it; ``{output}``, ``{shared}`` and ``{processes}`` stand for a :class:`Place`'s, and a word
    ``{launcher}`` for all of its words."""
    result: str
    """The file that it leaves, written like the words, with ``*`` for what nobody knows beforehand; a ``.json`` is one
    of the schema of results."""
    minutes: float | None = None
    """On two CPU cores; None: it is for GPUs."""
    starts_from: str | None = None
    """Recipe of the run whose folder the command names as its model, for the planner: the folder is not there yet."""

    def command(self, place: Place) -> list[str]:
        """The words of its command line."""
        found: list[str] = []
        for word in self.words:
            found += shlex.split(place.launcher) if word == "{launcher}" else [filled(word, place)]
        return found

    def file(self, place: Place) -> Path:
        """The result's; the first of those that its name fits."""
        path = WORK / filled(self.result, place)
        return next(iter(sorted(path.parent.glob(path.name))), path)

    @property
    def written(self) -> str:
        """The folder or file that the command is told to write to, written like its words."""
        named = [word for word in self.words if self.result == word or self.result.startswith(f"{word}/")]
        return max(named, key=len, default=str(Path(self.result).parent))

    def reads(self, other: "Step") -> bool:
        """Whether the command names what another one writes, or something in it."""
        inside = re.compile(rf"{re.escape(other.written)}(?=/|$)")
        return other is not self and any(inside.search(word) for word in self.words)

    def home(self, place: Place) -> Path:
        """The folder that its record and its log are kept in: that of its result's experiment."""
        return WORK / (place.shared if self.result.startswith("{shared}") else place.output) / "steps"


def filled(word: str, place: Place) -> str:
    """A word with a place's values; not ``str.format``: words may hold JSON, with braces of its own."""
    for name, value in (("output", place.output), ("shared", place.shared), ("processes", place.processes)):
        word = word.replace(f"{{{name}}}", str(value))
    return word


@dataclass(frozen=True)
class Source:
    """A stored result that numbers were taken from, and what one has to know of it."""

    path: Path
    command: str
    """As it was typed."""
    hardware: str
    finished: str
    commit: str

    @classmethod
    def of(cls, path: Path, result: results.Result) -> "Source":
        """What a result of the schema says of itself."""
        commit = (result.commit["hash"][:12] + ("-dirty" if result.commit["dirty"] else "")) if result.commit else ""
        return cls(path, typed(result.command), machine(result.hardware), result.finished or "", commit)


def typed(command: Sequence[str]) -> str:
    """A stored command line as a user types it: results hold the script without what starts it."""
    first, *rest = command or [""]
    if not first.endswith(".py"):
        return shlex.join(command)
    script = next((f"{room}/{Path(first).name}" for room in ROOMS if (ROOT / room / Path(first).name).exists()), first)
    module = f"tools.{Path(script).stem}"
    if script.startswith("tools/") and f"python -m {module}" in (ROOT / script).read_text(encoding="utf-8"):
        return shlex.join(["python", "-m", module, *rest])
    starts = "deepspeed" if script.startswith("launchers/") else "python"
    return shlex.join([starts, script, *(word for word in rest if not word.startswith("--local_rank"))])


def machine(hardware: Mapping[str, Any]) -> str:
    """A machine in a few words: its GPUs, else its cores."""
    gpus = [str(gpu["name"]) for gpu in hardware.get("gpus") or []]
    if gpus:
        return " + ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus))
    return f"{hardware.get('cpu')}, {hardware.get('cores')} cores"


Values = dict[str, dict[Quantity, float]]
"""Method -> number of each quantity."""


@dataclass(frozen=True)
class Measured:
    """Ours."""

    values: Values = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    files: tuple[Path, ...] = ()
    """Pictures and pages, where those are the result."""
    setting: str = ""
    """What the results say of the model; a form knows it better."""

    def __bool__(self) -> bool:
        return bool(self.values or self.files)

    @property
    def quantities(self) -> list[Quantity]:
        """All there are numbers of: in the order in which they were found, lengths of one kind ascending."""
        found = list(dict.fromkeys(quantity for numbers in self.values.values() for quantity in numbers))
        kinds = list(dict.fromkeys((quantity.task, quantity.metric) for quantity in found))
        return sorted(found, key=lambda each: (kinds.index((each.task, each.metric)), each.length or 0))


Reading = Callable[[Path], Measured]
"""From the folder that results lie in, or below. Raises UserError for a file that is no result."""


@dataclass(frozen=True)
class Form:
    """An experiment at one scale."""

    setting: str
    """The model that is measured, and on what: stands where the published table's setting does."""
    steps: tuple[Step, ...]
    read: Mapping[str, Reading]
    """``{output}`` or ``{shared}``, or a folder below either -> how the numbers in it are read."""
    remarks: tuple[str, ...]
    """What this form can show and what it cannot."""
    needs: str = ""
    """What has to be there beforehand."""

    @property
    def minutes(self) -> float | None:
        """Of two CPU cores, all steps together; None where a step is for GPUs."""
        known = [step.minutes for step in self.steps if step.minutes is not None]
        return sum(known) if len(known) == len(self.steps) else None

    def measured(self, place: Place) -> Measured:
        """What its results say.

        Raises:
            UserError: a file that is no result.
        """
        found = [read(WORK / filled(folder, place)) for folder, read in self.read.items()]
        return merged(found)


def merged(found: list[Measured]) -> Measured:
    """Numbers of several readings side by side."""
    values: Values = {}
    for each in found:
        for method, numbers in each.values.items():
            values.setdefault(method, {}).update(numbers)
    sources = {(source.path, source.command): source for each in found for source in each.sources}
    files = dict.fromkeys(file for each in found for file in each.files)
    setting = next((each.setting for each in found if each.setting), "")
    return Measured(values, tuple(sources.values()), tuple(files), setting)


@dataclass(frozen=True)
class Kept:
    """Results of this experiment, or of a kin of it, that other commands have left in the repository."""

    pattern: str
    """Of the folders that hold them, from the repository's top."""
    setting: str
    """Empty: what the results themselves say."""
    read: Reading
    remarks: tuple[str, ...] = ()
    page: str = ""
    """What explains them, from ``docs/results``."""


@dataclass(frozen=True, eq=False)
class Experiment:
    """One published table or figure."""

    name: str
    """As commands call it: ``table6``."""
    label: str
    """As the paper does."""
    title: str
    tables: tuple[Table, ...]
    """What is published, all of it; none of a figure without numbers."""
    headline: tuple[Quantity, ...]
    """The published numbers that stand for it where there is room for few."""
    forms: Mapping[str, Form]
    """By scale."""
    kept: tuple[Kept, ...] = ()
