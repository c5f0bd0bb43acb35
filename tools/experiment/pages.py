"""Pages of results: one experiment's, with its numbers next to the published ones, and the overview of all.

An experiment's page is written next to a stored result with the same numbers, which the overview
``docs/results/README.md`` reads: it is a function of the files in the repository alone.
"""

import functools
import os
import re
import shlex
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from tape_ds import results, storage
from tape_ds.errors import Problem, UserError
from tape_ds.installation import ROOT
from tape_ds.markdown_table import markdown_table
from tools.experiment import published, readings, runs, study, table
from tools.experiment.published import Number, PublishedTable, Quantity
from tools.experiment.readings import Numbers, Rows
from tools.experiment.runs import ExperimentWork, PlannedRun
from tools.experiment.study import Study, StudyRow
from tools.experiment.table import PAPER, SCALES

RESULTS = Path("docs/results")
OVERVIEW = RESULTS / "README.md"
# which ``--results`` names for the overview
STORED = RESULTS / "reproduce"
NOT_MEASURED = "not measured"
# characters of a line of code that the site shows
WIDTH = 90


@dataclass(frozen=True)
class StoredSource:
    """A stored result that numbers were taken from."""

    path: str
    """From the repository's top."""
    command: str
    """As it was typed."""
    hardware: str
    finished: str
    commit: str

    @classmethod
    def of(cls, path: Path, result: results.Result) -> "StoredSource":
        words = list(result.command)
        # results hold the script without the program that starts it
        if words and words[0].endswith(".py"):
            script = Path(words[0])
            folder = script.parent.name
            if folder == "experiments":
                folder = "tools.experiments"
            start = ["deepspeed", f"launchers/{script.name}"]
            if folder != "launchers":
                start = ["python", "-m", f"{folder}.{script.stem}"]
            words = [*start, *(word for word in words[1:] if not word.startswith("--local_rank"))]
        gpus = Counter(str(gpu["name"]) for gpu in result.hardware.get("gpus") or [])
        machine = " + ".join(f"{count} x {name}" for name, count in gpus.items())
        machine = machine or f"{result.hardware.get('cpu')}, {result.hardware.get('cores')} cores"
        commit = ""
        if result.commit:
            commit = result.commit["hash"][:12]
            if result.commit["dirty"]:
                commit += "-dirty"
        return cls(shown(path), shlex.join(words), machine, result.finished or "", commit)


@dataclass(frozen=True)
class Measured:
    """One measurement of an experiment by this project."""

    experiment: str
    setting: str
    rows: Rows
    sources: tuple[StoredSource, ...] = ()
    files: tuple[str, ...] = ()
    """Pictures and pages that are part of it, from the repository's top."""
    remarks: tuple[str, ...] = ()
    scale: str | None = None
    """None: made by other commands than the experiment's."""
    page: str = ""
    """Explains it; from ``docs/results``."""

    @property
    def command(self) -> str:
        if self.scale is None:
            return next(source.command for source in self.sources if source.command)
        command = f"python -m tools.experiment {self.experiment}"
        if self.scale == PAPER:
            command += " --scale paper"
        return command

    @property
    def hardware(self) -> str:
        machines = dict.fromkeys(map(attrgetter("hardware"), self.sources))
        return "; ".join(filter(None, machines))

    def figures(self) -> dict[str, Any]:
        """Return the figures of the stored result, which :meth:`of` reads."""
        figures = dict(vars(self))
        del figures["rows"], figures["sources"]
        methods: dict[str, list[dict[str, Any]]] = {}
        for method, numbers in self.rows.items():
            methods[method] = []
            for quantity, value in numbers.items():
                methods[method].append({**asdict(quantity), "value": value})
        return {**figures, "methods": methods, "sources": list(map(asdict, self.sources))}

    @classmethod
    def of(cls, result: results.Result, page: str = "") -> "Measured":
        """Read a stored result; ``page`` explains it if it names no page."""
        data = result.figures
        rows: Rows = {}
        for method, numbers in data["methods"].items():
            rows[method] = {}
            for number in numbers:
                quantity = Quantity(number["task"], number["metric"], number["length"])
                rows[method][quantity] = number["value"]
        return cls(
            experiment=data["experiment"],
            setting=data["setting"],
            rows=rows,
            sources=tuple(StoredSource(**source) for source in data["sources"]),
            files=tuple(data["files"]),
            remarks=tuple(data["remarks"]),
            scale=data["scale"],
            # results that were stored before pages were named have none
            page=data.get("page", page),
        )


def check_page(folder: Path, name: str) -> list[Problem]:
    """Check that the page ``name`` replaces nothing in ``folder`` but an earlier one of :func:`write`."""
    there = []
    for kind in ("json", "md", "csv"):
        if (folder / f"{name}.{kind}").exists():
            there.append(f"{name}.{kind}")
    if not there:
        return []
    try:
        if "experiment" in results.load(folder / f"{name}.json").figures:
            return []
    except UserError:
        # no stored result, so the page is somebody's own
        pass
    reason = f"{', '.join(there)} in it would be replaced, and is no page of an experiment"
    return [Problem("--results", str(folder), reason, "name another folder")]


def write(
    work: ExperimentWork, planned: Sequence[PlannedRun], folder: Path, typed: Sequence[str]
) -> str:
    """Write ``NAME``.md, .json and .csv of the complete runs into ``folder`` and return the page."""
    asked = work.experiment
    complete = [run for run in planned if work.scored(run) is not None]
    # of the last commands only what they wrote since then
    since = work.all_scored(planned)
    concluded = None
    if since is not None and runs.all_ended(work.own, work.commands(asked.then), since) is not None:
        concluded = work.own
    rows, made, sources = gather(work, complete, concluded)
    copied: list[str] = []
    if concluded is not None:
        copied = _copy_pictures(work, folder)
    scale = None
    title = asked.about
    if asked.label:
        scale = work.name.rpartition("_")[2]
        title = f"{asked.label}: {asked.about}"
    name = work.name.removesuffix(f"_{scale}")
    ours = Measured(
        name, asked.setting, rows, tuple(sources), tuple(copied), tuple(asked.remarks), scale
    )

    parts = [f"# {title}"]
    figures = ours.figures()
    # a published table of a single seed has nothing to compare by
    if made and (len(asked.seeds) > 1 or not asked.label):
        compared = Study(made, asked.reference or _first_arm(work, made), asked.primary)
        parts.append(study.text(compared))
        figures["comparison"] = compared.figures()
        header = ["arm", "seed", *map(attrgetter("name"), compared.measures)]
        lines = []
        for row in made:
            values = [row.figures.get(measure.quantity) for measure in compared.measures]
            lines.append([row.arm, row.seed, *values])
        storage.write_text(folder / f"{work.name}.csv", storage.as_csv(header, lines))
    # the result of runs with several seeds names none
    seeds = set(map(attrgetter("seed"), complete))
    seed = None
    if len(seeds) == 1:
        [seed] = seeds
    result = results.collect(command=typed, seed=seed, processes=work.starting.processes)
    result = result.finish(figures)
    if asked.label:
        parts.append(next_to_published(asked.label, ours, folder))
    else:
        parts += [listed("Remarks", asked.remarks), origin(ours, [shlex.join(result.command)])]
    text = "\n\n".join(filter(None, parts)) + "\n"
    results.save(result, folder / f"{work.name}.json")
    storage.write_text(folder / f"{work.name}.md", text)
    return f"{text}\nwritten to {folder / work.name}.md, .json"


def _copy_pictures(work: ExperimentWork, folder: Path) -> list[str]:
    """Copy the pictures of the last commands into ``folder``; return their paths from the repository's top."""
    copied = []
    for pattern in work.experiment.pictures:
        for file in sorted(work.own.glob(pattern)):
            target = folder / f"{work.name}_{file.name}"
            storage.write_file(target, functools.partial(shutil.copyfile, file))
            copied.append(shown(target))
    return copied


def _first_arm(work: ExperimentWork, made: Sequence[StudyRow]) -> str:
    arms = set(map(attrgetter("arm"), made))
    return next(arm for arm in work.experiment.arms if arm in arms)


def gather(
    work: ExperimentWork, complete: Sequence[PlannedRun], last: Path | None
) -> tuple[Rows, list[StudyRow], list[StoredSource]]:
    """Return the rows shown next to published ones (from the commands ``then``, else ``score``, else the launchers;
    means over the runs of a row), the rows of every run, and the sources of both. ``last``: folder that the last
    commands wrote to; None if one of them has not ended or failed."""
    asked = work.experiment
    by_row: defaultdict[str, list[Numbers]] = defaultdict(list)
    made = []
    sources = []
    untouched: set[tuple[str, int | None]] = set()
    for run in complete:
        of_run: Rows = {"": {}}
        shown_here: Numbers = {}
        for path, result, rows in readings.of_run(run.folder):
            for label, numbers in rows.items():
                of_run.setdefault(label, {}).update(numbers)
            is_shown = not asked.then and (path.parent.name != "results" or not asked.score)
            if is_shown:
                for quantity, value in rows[""].items():
                    # losses and costs, which have no task, are in no published table
                    if quantity.task:
                        shown_here[quantity] = value
            if is_shown or not asked.label:
                sources.append(StoredSource.of(path, result))
        seeds = [run.seed]
        # run once, paired with every seed
        if not run.depends_on_seed and asked.seeds:
            seeds = asked.seeds
        made += [StudyRow(run.arm, seed, of_run[""]) for seed in seeds]
        for label, numbers in of_run.items():
            # every arm of a seed scores the same untouched model
            if label and (label, run.seed) not in untouched:
                made.append(StudyRow(label, None, numbers))
                untouched.add((label, run.seed))
        if shown_here:
            by_row[asked.names.get(run.arm, run.arm)].append(shown_here)
    for path in sorted(last.glob("*.*")) if asked.then and last is not None else ():
        rows, read_from = readings.read(path)
        if rows and read_from:
            sources.append(StoredSource.of(path, read_from))
        for label, numbers in rows.items():
            by_row[asked.names.get(label, label)].append(numbers)
    return {label: _means(runs_of_row) for label, runs_of_row in by_row.items()}, made, sources


def _means(runs_of_row: Sequence[Numbers]) -> Numbers:
    means = {}
    for quantity in runs_of_row[0]:
        values = [run[quantity] for run in runs_of_row if quantity in run]
        if len(values) == len(runs_of_row):
            means[quantity] = sum(values) / len(values)
    return means


def stored(name: str, root: Path = ROOT) -> list[Measured]:
    """Return what is stored of an experiment, the largest scale first, then other commands' results."""
    measured = []
    for path in sorted((root / STORED).glob(f"{name}_*.json")):
        measured.append(Measured.of(results.load(path), f"{STORED.name}/{path.stem}.md"))
    order = [*reversed(SCALES), None]
    return sorted(measured, key=lambda ours: order.index(ours.scale))


def overview(root: Path = ROOT) -> str:
    """Return the page ``docs/results/README.md``."""
    links = []
    for path in sorted((root / RESULTS).glob("*.md")):
        if path.name != OVERVIEW.name:
            title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            links.append(f"- [{title}]({path.name})")

    rows = []
    sections = []
    for name in table.shipped():
        asked = table.read(name)
        # an experiment without a label repeats nothing published
        if not asked.label:
            continue
        heading = f"{asked.label}: {asked.about}"
        # as GitHub makes it
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        first = f"[{asked.label}](#{anchor}): {asked.about}"
        sections.append(f"## {heading}")
        every = stored(name, root)
        for ours in every:
            setting = f"[{ours.setting}]({ours.page})" if ours.page else ours.setting
            rows.append([first, setting, ours.hardware, f"`{ours.command}`"])
            sections.append(next_to_published(asked.label, ours, ROOT / RESULTS))
        if not every:
            command = f"`python -m tools.experiment {name} --scale {PAPER}`"
            rows.append([first, NOT_MEASURED, "", command])
            nothing = Measured(name, "", {})
            sections += [
                next_to_published(asked.label, nothing, ROOT / RESULTS),
                f"Ours: {NOT_MEASURED}.",
            ]
    parts = [
        "# Measured results",
        "Made by `python -m tools.experiment --page` from the files of this folder: change those, not this page. Every "
        "page names the command, seed, versions and hardware, and keeps what did not work. A command is that of the "
        "commit next to it: what `tools/compare_*.py` and `tools.reproduce` did then, `tools.experiment` does today.",
        "\n".join(links),
        "**Does TAPE help?** Not by the rule that [the protocol](protocol.md) fixed before its runs. TAPE minus RoPE: "
        "a letter found from a marker +14.9 points in ten seeds (95 %: +0.1 to +29.8) and +4.0 in ten fresh ones "
        "(-4.7 to +12.7); perplexity at eight times the trained length -4.0 in five seeds (-12.3 to +4.2); "
        "addition with Abacus beyond the trained digits +0.4 points in three seeds (-0.2 to +1.1). Its updates in "
        "32 steps of extension add 0.002 to the loss (two seeds, -0.016 to +0.019).",
        "## The paper's tables and figures",
        "Published numbers are of the paper's models and data and were not measured here; ours come from the "
        "model that their cell names, mostly another and smaller one, so compare within a table only. `python -m "
        "tools.experiment --list` says what running each takes. All numbers, and what to know of them, are below. "
        "Figures 1 and 4 are diagrams: [the model](../model.md) has our own.",
        markdown_table(["", "ours", "hardware", "command"], rows, "l"),
        *sections,
    ]
    return "\n\n".join(parts) + "\n"


def next_to_published(label: str, ours: Measured, base: Path) -> str:
    """Return the published numbers, ours, how ours were made, and remarks on both; links lead from ``base``."""
    tables = published.tables_of(label)
    parts = []
    caveats: dict[str, None] = {}
    for each in tables:
        parts.append(f"{each.name}, published: {each.setting}; {each.unit}.")
        parts.append(_numbers("published", each.rows, [each]))
        caveats |= dict.fromkeys(each.caveats)
    if not tables:
        parts.append("Nothing is published in numbers.")
    if ours.rows or ours.files:
        parts.append(f"Ours: {ours.setting}.")
    if ours.rows:
        parts.append(_numbers("ours", ours.rows, tables))
    for path in ours.files:
        link = f"[{Path(path).stem.replace('_', ' ')}]({os.path.relpath(ROOT / path, base)})"
        # a picture is shown, a page is linked
        if path.endswith(".png"):
            link = f"!{link}"
        parts.append(link)
    parts += [listed("Remarks", ours.remarks), listed("Published", caveats)]
    parts.append(origin(ours, filter(None, map(attrgetter("command"), ours.sources))))
    return "\n\n".join(filter(None, parts))


def _numbers(
    whose: str, rows: Mapping[str, Mapping[Quantity, Number]], tables: Sequence[PublishedTable]
) -> str:
    """Write a row for each method, with the decimals of the published tables, or three."""
    decimals = {}
    for quantity in readings.ordered(rows.values()):
        having = [table for table in tables if quantity in table.quantities] or tables[:1]
        decimals[quantity] = having[0].places(quantity) if having else 3
    lines = []
    for method, values in rows.items():
        cells = [_cell(values.get(quantity), places) for quantity, places in decimals.items()]
        lines.append([method, *cells])
    return markdown_table([whose, *map(str, decimals)], lines)


def _cell(value: Number, decimals: int) -> str:
    if value is None:
        return "-"
    # also what would be rounded to 0
    if abs(value) >= 1e6 or (value and abs(value) < max(1e-3, 0.5 * 10**-decimals)):
        return f"{value:.1e}"
    return f"{value:,.{decimals}f}"


def listed(heading: str, lines: Iterable[str]) -> str:
    """Return a list under a word; nothing if the list is empty."""
    items = "\n".join(map("- {}".format, lines))
    if items:
        return f"{heading}:\n\n{items}"
    return ""


def origin(ours: Measured, commands: Iterable[str]) -> str:
    """Return the commands that made the numbers, on which machines, and when."""
    if not ours.sources:
        return ""
    # the day alone
    when = max(map(attrgetter("finished"), ours.sources))[:10]
    commits = ", ".join(filter(None, dict.fromkeys(map(attrgetter("commit"), ours.sources))))
    if commits:
        commits = f"commit {commits}"
    made = "; ".join(filter(None, (ours.hardware, when, commits)))
    if made:
        made = f" ({made})"
    lines = [f"Made by{made}:", ""]
    for command in dict.fromkeys(commands):
        # folded to the width of the page; a quoted part has spaces
        first, *words = re.findall(r"(?:'[^']*'|\S)+", command)
        lines.append(f"    {first}")
        for word in words:
            if len(lines[-1]) + len(word) + 3 > WIDTH + 4:
                lines[-1] += " \\"
                lines.append(f"        {word}")
            else:
                lines[-1] += f" {word}"
    return "\n".join(lines)


def shown(path: Path) -> str:
    """Return a path from the repository's top, if it is inside."""
    whole = path.absolute()
    if whole.is_relative_to(ROOT):
        return str(whole.relative_to(ROOT))
    return str(path)
