"""``docs/results/README.md`` from the stored results: the list of pages, and one table of all tables and figures.

What ``python -m tools.experiment NAME --results docs/results/reproduce`` stored is shown, and what was stored there of
other commands for the same or a kindred experiment; where there is neither, the table says so. The page is a function
of the files in the repository alone.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from evaluation.published import Quantity, Table
from tape_ds import results
from tape_ds.installation import ROOT
from tape_ds.markdown_table import markdown_table
from tools.experiment import page, readings, table
from tools.experiment.page import Measured
from tools.experiment.table import PAPER, SCALES, Experiment

RESULTS = Path("docs/results")
PAGE = RESULTS / "README.md"
STORED = RESULTS / "reproduce"
"""Where ``--results`` puts what the page shall show."""
NOT_MEASURED = "not measured"


def stored(name: str, root: Path = ROOT) -> list[Measured]:
    """Everything that is stored of an experiment, what its own commands made first.

    Raises:
        UserError: a file that is no result.
    """
    found = []
    for path in sorted((root / STORED).glob(f"{name}_*.json")):
        found.append(Measured.of(results.load(path), f"{STORED.name}/{path.stem}.md"))
    order = [*reversed(SCALES), None]
    return sorted(found, key=lambda each: order.index(each.scale))


def build(root: Path = ROOT) -> str:
    """The whole page.

    Raises:
        UserError: a stored file that is no result.
    """
    every = {name: table.read(name) for name in table.shipped()}
    labelled = {name: asked for name, asked in every.items() if asked.label}
    found = {name: stored(name, root) for name in labelled}
    parts = [
        "# Measured results",
        "Made by `python -m tools.experiment --page` from the files of this folder: change those, not this page. Every "
        "page names the command, seed, versions and hardware, and keeps what did not work. A command is that of the "
        "commit beside it: what `tools/compare_*.py` and `tools.reproduce` did then, `tools.experiment` does today.",
        "\n".join(f"- [{title}]({link}){f'. {first}' if first else ''}" for title, link, first in pages(root)),
        "## The paper's tables and figures",
        "Published numbers are of the paper's models and data and were not measured here; ours are of what their cell "
        "says, mostly another and smaller model, so a number compares with its neighbours and not across. `python -m "
        "tools.experiment --list` says what running each takes. All numbers, and what to know of them, are below. "
        "Figures 1 and 4 are diagrams: [TAPE in pictures](../tape_in_pictures.md) has our own.",
        _table(labelled, found),
        *(part for name, asked in labelled.items() for part in _section(name, asked, found[name])),
    ]
    return "\n\n".join(parts) + "\n"


def pages(root: Path) -> list[tuple[str, str, str]]:
    """Title, link and first sentence of every page of results; of one that is about more, the title alone."""
    own = [path for path in sorted((root / RESULTS).glob("*.md")) if path.name != PAGE.name]
    folders = sorted(path for path in (root / RESULTS).iterdir() if path.is_dir() and path.name != STORED.name)
    other = [_explains(folder, root) for folder in folders if folder.with_suffix(".md") not in own]
    found = []
    for path in [*own, *dict.fromkeys(other)]:
        title, first = opening(path.read_text(encoding="utf-8")) if path.is_file() else ("", "")
        title = title or path.stem.replace("_", " ")
        found.append((title, os.path.relpath(path, root / RESULTS), first if path in own else ""))
    return found


def _explains(folder: Path, root: Path) -> Path:
    """The page, outside of ``docs/results``, that names a folder of it; else a page in the folder, or itself."""
    named = re.compile(rf"\bresults/{re.escape(folder.name)}\b")
    candidates = sorted((root / RESULTS.parent).glob("*.md"))
    inside = next(iter(sorted(folder.glob("*.md"))), folder)
    return next((page for page in candidates if named.search(page.read_text(encoding="utf-8"))), inside)


def opening(text: str) -> tuple[str, str]:
    """A page's title, where it has one, and the first sentence below it, or its first half; links are left out."""
    title = re.sub(r"[`*]", "", next((line[2:] for line in text.splitlines() if line.startswith("# ")), ""))
    paragraphs = re.split(r"\n\s*\n", text.partition("\n")[2].strip("\n"))
    plain = (" ".join(each.split()) for each in paragraphs if not re.match(r"\s{4}|[#|`>-]", each))
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", next(plain, "").replace("**", ""))
    ends = [at.start() for at in re.finditer(r"[.:;](?=\s|$)", words)]
    ends = [end for end in ends if words[:end].count("(") == words[:end].count(")")]  # no bracket is open
    return title, f"{words[: ends[0]]}." if ends else words


def _table(labelled: dict[str, Experiment], found: dict[str, list[Measured]]) -> str:
    """A row for every measurement, and one for what was not measured."""
    rows = []
    for name, asked in labelled.items():
        first = f"[{asked.label}](#{anchor(asked)}): {asked.about}"
        tables = page.tables_of(asked.label)
        theirs = "<br>".join(_brief(asked, each) for each in tables) or "no numbers"
        for ours in found[name]:
            rows.append([first, theirs, *_cells(asked, tables, ours)])
            first, theirs = f"{asked.label}, again", "as above"
        if not found[name]:
            rows.append([first, theirs, NOT_MEASURED, "", f"`python -m tools.experiment {name} --scale {PAPER}`", ""])
    return markdown_table(["", "published", "ours", "hardware", "command", "remarks"], rows, "l")


def _cells(asked: Experiment, tables: list[Table], ours: Measured) -> list[str]:
    """Ours, hardware, command, remarks."""
    command = f"`{ours.commands[0]}`" if ours.commands else ""
    command += f", and {len(ours.commands) - 1} more below" if len(ours.commands) > 1 else ""
    more = f"[more]({ours.page})" if ours.page else ""
    remarks = " ".join(part for part in (*ours.remarks[:1], more) if part)
    return [_ours(asked, tables, ours), page.hardware(ours.sources), command, remarks]


def _headline(asked: Experiment, theirs: Table) -> list[Quantity]:
    """The published numbers that stand for all."""
    return [each for each in (Quantity(*words) for words in asked.headline) if each in theirs.quantities]


def _brief(asked: Experiment, theirs: Table) -> str:
    wanted = _headline(asked, theirs)
    values = {
        method: {each: value for each in wanted if (value := theirs.value(method, each)) is not None}
        for method in theirs.rows
    }
    return _numbers(theirs, wanted, values)


def _ours(asked: Experiment, tables: list[Table], ours: Measured) -> str:
    """Ours of the same quantities; where there are none of them, of the longest or last one."""
    known, parts = readings.ordered(ours.rows), []
    for theirs in tables:
        wanted = [each for each in _headline(asked, theirs) if each in known] or _kindred(asked, theirs, ours)
        # a mean over what was trained and what was not says little without that over the latter alone
        pairs = ((each, replace(each, metric=f"{each.metric} {readings.BEYOND}")) for each in wanted)
        wanted = [one for pair in pairs for one in pair if one == pair[0] or one in known]
        parts += [_numbers(theirs, wanted, ours.rows)] if wanted else []
    parts += [", ".join(page.link(path, ROOT / RESULTS) for path in ours.files)] if not parts else []
    return "<br>".join([f"*{ours.setting}*", *dict.fromkeys(parts)])


def _kindred(asked: Experiment, theirs: Table, ours: Measured) -> list[Quantity]:
    """Of ours with a published one's metric, or of all, the last that most methods have."""
    metrics = {quantity.metric for quantity in _headline(asked, theirs)}
    every = readings.ordered(ours.rows)
    alike = [quantity for quantity in every if quantity.metric in metrics] or every
    known = {each: sum(each in numbers for numbers in ours.rows.values()) for each in alike}
    return [each for each in alike if known[each] == max(known.values())][-1:]


def _numbers(theirs: Table, asked: list[Quantity], rows: readings.Rows) -> str:
    """``quantity / quantity: method 1.0 / 2.0; method ...``."""
    shown = [
        f"{method} {' / '.join(page.decimal(numbers.get(each), theirs.places(each)) for each in asked)}"
        for method, numbers in rows.items()
        if any(each in numbers for each in asked)
    ]
    return f"{' / '.join(map(page.head, asked))}: {'; '.join(shown)}"


def anchor(asked: Experiment) -> str:
    """Of its section: as GitHub makes it of the heading."""
    return re.sub(r"[^\w\- ]", "", f"{asked.label}: {asked.about}".lower()).replace(" ", "-")


def _section(name: str, asked: Experiment, found: list[Measured]) -> Iterator[str]:
    """Everything about one experiment."""
    yield f"## {asked.label}: {asked.about}"
    for ours in found or [Measured(name, "", {})]:
        yield page.beside(asked.label, ours, ROOT / RESULTS)
    if not found:
        yield f"Ours: {NOT_MEASURED}."
