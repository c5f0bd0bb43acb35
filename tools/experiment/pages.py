"""Pages of results: one experiment's, with its numbers next to the published ones, and the overview of all.

An experiment's page is written next to a stored result with the same numbers, which the overview
``docs/results/README.md`` reads: it is a function of the files in the repository alone.
"""

import functools
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
WIDTH = 90  # characters of a line of code that the site shows


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
            folder = (
                "tools.experiments" if script.parent.name == "experiments" else script.parent.name
            )
            start = ["deepspeed", f"launchers/{script.name}"]
            if folder != "launchers":
                start = ["python", "-m", f"{folder}.{script.stem}"]
            words = [*start, *(word for word in words[1:] if not word.startswith("--local_rank"))]
        gpus = [str(gpu["name"]) for gpu in result.hardware.get("gpus") or []]
        machine = " + ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus))
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
        return f"python -m tools.experiment {self.experiment}{' --scale paper' if self.scale == PAPER else ''}"

    @property
    def hardware(self) -> str:
        return "; ".join(
            dict.fromkeys(source.hardware for source in self.sources if source.hardware)
        )

    def figures(self) -> dict[str, Any]:
        """Return the figures of the stored result, which :meth:`of` reads."""
        methods = {
            method: [{**asdict(quantity), "value": value} for quantity, value in numbers.items()]
            for method, numbers in self.rows.items()
        }
        plain = {
            name: value for name, value in vars(self).items() if name not in ("rows", "sources")
        }
        return {**plain, "methods": methods, "sources": [asdict(source) for source in self.sources]}

    @classmethod
    def of(cls, result: results.Result, page: str = "") -> "Measured":
        """Read a stored result; ``page`` explains it if it names no page."""
        data = result.figures
        rows = {
            method: {
                Quantity(each["task"], each["metric"], each["length"]): each["value"]
                for each in numbers
            }
            for method, numbers in data["methods"].items()
        }
        sources = tuple(StoredSource(**source) for source in data["sources"])
        lists = (tuple(data["files"]), tuple(data["remarks"]))
        return cls(
            data["experiment"],
            data["setting"],
            rows,
            sources,
            *lists,
            data["scale"],
            data.get("page", page),
        )


def check_page(folder: Path, name: str) -> list[Problem]:
    """Check that the page ``name`` replaces nothing in ``folder`` but an earlier one of :func:`write`."""
    files = [folder / f"{name}.{kind}" for kind in ("json", "md", "csv")]
    there = [file.name for file in files if file.exists()]
    if not there:
        return []
    try:
        is_ours = "experiment" in results.load(files[0]).figures
    except UserError:
        is_ours = False
    wrong = f"{', '.join(there)} in it would be replaced, and is no page of an experiment"
    if is_ours:
        return []
    return [Problem("results", str(folder), wrong, "name another folder with --results")]


def write(
    work: ExperimentWork, planned: Sequence[PlannedRun], folder: Path, typed: Sequence[str]
) -> str:
    """Write ``NAME``.md, .json and .csv of the complete runs into ``folder`` and return the page."""
    asked = work.experiment
    complete = [run for run in planned if work.scored(run) is not None]
    # of the last commands only what they wrote since then
    since = work.all_scored(planned)
    concluded = (
        since is not None and runs.all_ended(work.own, work.commands(asked.then), since) is not None
    )
    own = work.own if concluded else None
    rows, made, sources = gather(work, complete, own)
    pictures = (
        [file for pattern in asked.pictures for file in sorted(own.glob(pattern))] if own else []
    )
    copied = [folder / f"{work.name}_{file.name}" for file in pictures]
    for file, target in zip(pictures, copied, strict=True):
        storage.write_file(target, functools.partial(shutil.copyfile, file))
    scale = work.name.rpartition("_")[2] if asked.label else None
    name = work.name.removesuffix(f"_{scale}")
    files = tuple(map(shown, copied))
    ours = Measured(name, asked.setting, rows, tuple(sources), files, tuple(asked.remarks), scale)

    parts = [f"# {asked.label}: {asked.about}" if asked.label else f"# {asked.about}"]
    figures = ours.figures()
    if made and (len(asked.seeds) > 1 or not asked.label):
        arms = [row.arm for row in made]
        compared = Study(
            made, asked.reference or next(arm for arm in asked.arms if arm in arms), asked.primary
        )
        parts.append(study.text(compared))
        figures["comparison"] = compared.figures()
        header = ["arm", "seed", *(measure.name for measure in compared.measures)]
        lines = [
            [row.arm, row.seed, *(row.figures.get(each.quantity) for each in compared.measures)]
            for row in made
        ]
        storage.write_text(folder / f"{work.name}.csv", storage.as_csv(header, lines))
    seeds = sorted({run.seed for run in complete})
    result = results.collect(
        command=typed, seed=seeds[0] if len(seeds) == 1 else None, processes=work.starting.processes
    ).finish(figures)
    if asked.label:
        parts.append(next_to_published(asked.label, ours, folder))
    else:
        parts += [listed("Remarks", asked.remarks), origin(ours, [shlex.join(result.command)])]
    text = "\n\n".join(part for part in parts if part) + "\n"
    results.save(result, folder / f"{work.name}.json")
    storage.write_text(folder / f"{work.name}.md", text)
    return f"{text}\nwritten to {folder / work.name}.md, .json"


def gather(
    work: ExperimentWork, complete: Sequence[PlannedRun], last: Path | None
) -> tuple[Rows, list[StudyRow], list[StoredSource]]:
    """Return the rows shown next to published ones (from the commands ``then``, else ``score``, else the launchers;
    means over the runs of a row), the rows of every run, and the sources of both. ``last``: folder that the last
    commands wrote to; None if one of them has not ended or failed."""
    asked = work.experiment
    found: dict[str, list[Numbers]] = {}
    made = []
    sources = []
    untouched: set[tuple[str, int | None]] = set()
    for run in complete:
        own: Rows = {"": {}}
        shown_here: Numbers = {}
        for path, result, rows in readings.of_run(run.folder):
            for label, numbers in rows.items():
                own.setdefault(label, {}).update(numbers)
            is_shown = not asked.then and (path.parent.name != "results" or not asked.score)
            if is_shown:
                shown_here |= {
                    quantity: value for quantity, value in rows[""].items() if quantity.task
                }
            if is_shown or not asked.label:
                sources.append(StoredSource.of(path, result))
        # run once, paired with every seed
        seeds = [run.seed] if run.depends_on_seed else asked.seeds or [run.seed]
        made += [StudyRow(run.arm, seed, own[""]) for seed in seeds]
        for label, numbers in own.items():
            # every arm of a seed scores the same untouched model
            if label and (label, run.seed) not in untouched:
                made.append(StudyRow(label, None, numbers))
                untouched.add((label, run.seed))
        if shown_here:
            found.setdefault(asked.names.get(run.arm, run.arm), []).append(shown_here)
    for path in sorted(last.glob("*.*")) if asked.then and last is not None else ():
        rows, read_from = readings.read(path)
        sources += [StoredSource.of(path, read_from)] if rows and read_from else []
        for label, numbers in rows.items():
            found.setdefault(asked.names.get(label, label), []).append(numbers)

    means: Rows = {}
    for label, runs_of_row in found.items():
        common = [
            quantity for quantity in runs_of_row[0] if all(quantity in run for run in runs_of_row)
        ]
        means[label] = {
            quantity: sum(run[quantity] for run in runs_of_row) / len(runs_of_row)
            for quantity in common
        }
    return means, made, sources


def stored(name: str, root: Path = ROOT) -> list[Measured]:
    """Return what is stored of an experiment, the largest scale first, then other commands' results."""
    found = [
        Measured.of(results.load(path), f"{STORED.name}/{path.stem}.md")
        for path in sorted((root / STORED).glob(f"{name}_*.json"))
    ]
    order = [*reversed(SCALES), None]
    return sorted(found, key=lambda each: order.index(each.scale))


def overview(root: Path = ROOT) -> str:
    """Return the page ``docs/results/README.md``."""
    every = {name: table.read(name) for name in table.shipped()}
    labelled = {name: asked for name, asked in every.items() if asked.label}
    found = {name: stored(name, root) for name in labelled}
    others = [path for path in sorted((root / RESULTS).glob("*.md")) if path.name != OVERVIEW.name]
    titles = [
        path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for path in others
    ]

    rows = []
    sections = []
    for name, asked in labelled.items():
        heading = f"{asked.label}: {asked.about}"
        # as GitHub makes it
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        first = f"[{asked.label}](#{anchor}): {asked.about}"
        sections.append(f"## {heading}")
        for ours in found[name]:
            setting = f"[{ours.setting}]({ours.page})" if ours.page else ours.setting
            rows.append([first, setting, ours.hardware, f"`{ours.command}`"])
        if not found[name]:
            rows.append(
                [first, NOT_MEASURED, "", f"`python -m tools.experiment {name} --scale {PAPER}`"]
            )
        sections += [
            next_to_published(asked.label, ours, ROOT / RESULTS)
            for ours in found[name] or [Measured(name, "", {})]
        ]
        if not found[name]:
            sections.append(f"Ours: {NOT_MEASURED}.")
    parts = [
        "# Measured results",
        "Made by `python -m tools.experiment --page` from the files of this folder: change those, not this page. Every "
        "page names the command, seed, versions and hardware, and keeps what did not work. A command is that of the "
        "commit next to it: what `tools/compare_*.py` and `tools.reproduce` did then, `tools.experiment` does today.",
        "\n".join(f"- [{title}]({path.name})" for title, path in zip(titles, others, strict=True)),
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

    def numbers(
        whose: str, rows: Mapping[str, Mapping[Quantity, Number]], tables: Sequence[PublishedTable]
    ) -> str:
        """Write a row for each method, with the decimals of the published tables, or three."""
        quantities = readings.ordered(rows.values())
        lines = []
        for method, values in rows.items():
            cells = []
            for quantity in quantities:
                having = [table for table in tables if quantity in table.quantities] or tables[:1]
                decimals = having[0].places(quantity) if having else 3
                value = values.get(quantity)
                if value is None:
                    cells.append("-")
                elif abs(value) >= 1e6 or (value and abs(value) < max(1e-3, 0.5 * 10**-decimals)):
                    # also what would be rounded to 0
                    cells.append(f"{value:.1e}")
                else:
                    cells.append(f"{value:,.{decimals}f}")
            lines.append([method, *cells])
        return markdown_table([whose, *map(str, quantities)], lines)

    parts = [] if tables else ["Nothing is published in numbers."]
    for each in tables:
        parts += [
            f"{each.name}, published: {each.setting}; {each.unit}.",
            numbers("published", each.rows, [each]),
        ]
    parts += [f"Ours: {ours.setting}."] if ours.rows or ours.files else []
    parts += [numbers("ours", ours.rows, tables)] if ours.rows else []
    for path in ours.files:
        link = f"[{Path(path).stem.replace('_', ' ')}]({os.path.relpath(ROOT / path, base)})"
        parts.append(f"{'!' if path.endswith('.png') else ''}{link}")
    parts.append(listed("Remarks", ours.remarks))
    parts.append(
        listed("Published", dict.fromkeys(caveat for each in tables for caveat in each.caveats))
    )
    parts.append(origin(ours, [source.command for source in ours.sources if source.command]))
    return "\n\n".join(part for part in parts if part)


def listed(heading: str, lines: Iterable[str]) -> str:
    """Return a list under a word; nothing if the list is empty."""
    items = [f"- {line}" for line in lines]
    if items:
        return "\n".join([f"{heading}:", "", *items])
    return ""


def origin(ours: Measured, commands: Iterable[str]) -> str:
    """Return the commands that made the numbers, on which machines, and when."""
    if not ours.sources:
        return ""
    when = max(source.finished for source in ours.sources)[:10]
    commits = ", ".join(dict.fromkeys(source.commit for source in ours.sources if source.commit))
    made = "; ".join(
        part for part in (ours.hardware, when, f"commit {commits}" if commits else "") if part
    )
    lines = [f"Made by ({made}):" if made else "Made by:", ""]
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
