"""``docs/results/README.md`` from the stored results: the list of pages, and one table of all tables and figures.

What ``python -m tools.reproduce TABLE --results docs/results/reproduce`` stored is shown, and what other commands left
in the repository for the same or a kindred experiment; where there is neither, the table says so. The page is a
function of the files in the repository alone.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from evaluation.published import Quantity, Table
from tape_ds import results
from tape_ds.errors import UserError
from tape_ds.markdown_table import markdown_table
from tools.reproduce import readings, render
from tools.reproduce.experiment import PAPER, ROOT, SCALES, Experiment, Measured
from tools.reproduce.registry import EXPERIMENTS

RESULTS = Path("docs/results")
PAGE = RESULTS / "README.md"
STORED = RESULTS / "reproduce"
"""Where ``--results`` puts what the page shall show."""
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Entry:
    """One measurement of an experiment."""

    experiment: Experiment
    setting: str
    ours: Measured
    commands: tuple[str, ...]
    remarks: tuple[str, ...]
    page: str = ""
    """What explains it, from ``docs/results``."""


def entries(experiment: Experiment, root: Path) -> Iterator[Entry]:
    """Everything that is stored of an experiment.

    Raises:
        UserError: a file that is no result.
    """
    for scale in reversed(SCALES):
        path = root / STORED / f"{experiment.name}_{scale}.json"
        if path.is_file():
            result = results.load(path)
            figures, ours = result.figures, render.measured(result)
            command = f"python -m tools.reproduce {experiment.name} --scale {scale}"
            page = f"{STORED.name}/{path.stem}.md"
            yield Entry(experiment, figures["setting"], ours, (command,), tuple(figures["remarks"]), page)
    for kept in experiment.kept:
        for folder in sorted(root.glob(kept.pattern)):
            ours = kept.read(folder)
            if ours:
                setting = kept.setting or ours.setting or folder.name
                yield Entry(experiment, setting, ours, render.commands(ours.sources), kept.remarks, kept.page)


def is_stored(experiment: Experiment, root: Path = ROOT) -> bool:
    """Whether anything is."""
    try:
        return any(True for _ in entries(experiment, root))
    except UserError:
        return False


def build(root: Path = ROOT) -> str:
    """The whole page.

    Raises:
        UserError: a stored file that is no result.
    """
    found = {experiment: list(entries(experiment, root)) for experiment in EXPERIMENTS.values()}
    parts = [
        "# Measured results",
        "Made by `python -m tools.reproduce --page` from the files of this folder and of `benchmarks/results`: change "
        "those, not this page. Every page names the command, seed, versions and hardware, and keeps what did not work.",
        "\n".join(f"- [{title}]({link}){f'. {first}' if first else ''}" for title, link, first in pages(root)),
        "## The paper's tables and figures",
        "Published numbers are of the paper's models and data and were not measured here; ours are of what their cell "
        "says, mostly another and smaller model, so a number compares with its neighbours and not across. `python -m "
        "tools.reproduce --list` says what running each takes. All numbers, and what to know of them, are below. "
        "Figures 1 and 4 are diagrams: [TAPE in pictures](../tape_in_pictures.md) has our own.",
        table(found),
        *(part for experiment, measured in found.items() for part in _section(experiment, measured)),
    ]
    return "\n\n".join(parts).rstrip() + "\n"


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
    ends = [at.start() for at in re.finditer(r"[.:;](?=\s|$)", words) if _closed(words[: at.start()])]
    return title, f"{words[: ends[0]]}." if ends else words


def _closed(words: str) -> bool:
    """Whether no bracket is open."""
    return words.count("(") == words.count(")")


def table(found: dict[Experiment, list[Entry]]) -> str:
    """A row for every measurement, and one for what was not measured."""
    header = ["", "published", "ours", "hardware", "command", "remarks"]
    rows = []
    for experiment, measured in found.items():
        first = f"[{experiment.label}](#{anchor(experiment)}): {experiment.title}"
        theirs = "<br>".join(_brief(experiment, each) for each in experiment.tables) or "no numbers"
        for entry in measured:
            rows.append([first, theirs, *_cells(entry)])
            first, theirs = f"{experiment.label}, again", "as above"
        if not measured:
            command = f"`python -m tools.reproduce {experiment.name} --scale {PAPER}`"
            rows.append([first, theirs, NOT_MEASURED, "", command, ""])
    return markdown_table(header, rows, "l")


def _cells(entry: Entry) -> list[str]:
    """Ours, hardware, command, remarks."""
    shown = _ours(entry)
    remark = entry.remarks[0] if entry.remarks else ""
    more = f"[more]({entry.page})" if entry.page else ""
    command = f"`{_escaped(entry.commands[0])}`" if entry.commands else ""
    command += f", and {len(entry.commands) - 1} more below" if len(entry.commands) > 1 else ""
    return [shown, render.hardware(entry.ours.sources), command, " ".join(part for part in (remark, more) if part)]


def _brief(experiment: Experiment, theirs: Table) -> str:
    """The published numbers that stand for all."""
    asked = [quantity for quantity in experiment.headline if quantity in theirs.quantities]
    values = {
        method: {q: value for q in asked if (value := theirs.value(method, q)[0]) is not None} for method in theirs.rows
    }
    return _numbers(theirs, asked, values)


def _ours(entry: Entry) -> str:
    """Ours of the same quantities; where there are none of them, of the longest or last one."""
    parts = []
    for theirs in entry.experiment.tables or ():
        asked = [q for q in entry.experiment.headline if q in theirs.quantities and q in entry.ours.quantities]
        asked = _with_what_lies_beyond(asked or _kindred(theirs, entry), entry)
        if asked:
            parts.append(_numbers(theirs, asked, entry.ours.values))
    parts += [", ".join(render.link(path, ROOT / RESULTS) for path in entry.ours.files)] if not parts else []
    return "<br>".join([f"*{entry.setting}*", *dict.fromkeys(parts)])


def _kindred(theirs: Table, entry: Entry) -> list[Quantity]:
    """Of ours with a published one's metric, or of all, the last that most methods have."""
    metrics = {quantity.metric for quantity in entry.experiment.headline if quantity in theirs.quantities}
    asked = entry.ours.quantities
    alike = [quantity for quantity in asked if quantity.metric in metrics] or asked
    known = {each: sum(each in numbers for numbers in entry.ours.values.values()) for each in alike}
    return [each for each in alike if known[each] == max(known.values())][-1:]


def _with_what_lies_beyond(asked: list[Quantity], entry: Entry) -> list[Quantity]:
    """Each mean over what was trained and what was not, and behind it that over the latter alone, where there is one: a
    mean over both says little without it."""
    pairs = ((each, replace(each, metric=f"{each.metric} {readings.BEYOND}")) for each in asked)
    return [one for pair in pairs for one in pair if one == pair[0] or one in entry.ours.quantities]


def _numbers(theirs: Table, asked: list[Quantity], values: dict[str, dict[Quantity, float]]) -> str:
    """``quantity / quantity: method 1.0 / 2.0; method ...``."""
    shown = [
        f"{method} {' / '.join(render.number(numbers.get(each), render.places(theirs, each)) for each in asked)}"
        for method, numbers in values.items()
        if any(each in numbers for each in asked)
    ]
    return f"{' / '.join(map(render.head, asked))}: {'; '.join(shown)}"


def anchor(experiment: Experiment) -> str:
    """Of its section: as GitHub makes it of the heading."""
    heading = f"{experiment.label}: {experiment.title}"
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _section(experiment: Experiment, measured: list[Entry]) -> Iterator[str]:
    """Everything about one experiment."""
    yield f"## {experiment.label}: {experiment.title}"
    if not measured:
        yield render.markdown(experiment, "", Measured(), (), ROOT / RESULTS).rstrip()
        yield f"Ours: {NOT_MEASURED}."
    for entry in measured:
        yield render.markdown(experiment, entry.setting, entry.ours, entry.remarks, ROOT / RESULTS).rstrip()


def _escaped(text: str) -> str:
    """In a cell of a table."""
    return text.replace("|", "\\|")
