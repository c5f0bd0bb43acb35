"""``docs/results/README.md`` from the stored results: the list of pages, and one table of all tables and figures.

What ``python -m tools.experiment NAME --results docs/results/reproduce`` stored is shown, and what was stored there of
other commands for the same or a kindred experiment; where there is neither, the table says so. The page is a function
of the files in the repository alone.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from tape_ds import results
from tape_ds.installation import ROOT
from tape_ds.markdown_table import markdown_table
from tools.experiment import page, table
from tools.experiment.page import Measured
from tools.experiment.table import PAPER, SCALES, Experiment

RESULTS = Path("docs/results")
PAGE = RESULTS / "README.md"
STORED = RESULTS / "reproduce"
"""Where ``--results`` puts what the page shall show."""
NOT_MEASURED = "not measured"


def stored(name: str, root: Path = ROOT) -> list[Measured]:
    """Return everything that is stored of an experiment, what its own commands made first.

    Raises:
        UserError: a file that is no result.
    """
    found = []
    for path in sorted((root / STORED).glob(f"{name}_*.json")):
        found.append(Measured.of(results.load(path), f"{STORED.name}/{path.stem}.md"))
    order = [*reversed(SCALES), None]
    return sorted(found, key=lambda each: order.index(each.scale))


def build(root: Path = ROOT) -> str:
    """Return the whole page.

    Raises:
        UserError: a stored file that is no result.
    """
    every = {name: table.read(name) for name in table.shipped()}
    labelled = {name: asked for name, asked in every.items() if asked.label}
    found = {name: stored(name, root) for name in labelled}
    others = [path for path in sorted((root / RESULTS).glob("*.md")) if path.name != PAGE.name]
    parts = [
        "# Measured results",
        "Made by `python -m tools.experiment --page` from the files of this folder: change those, not this page. Every "
        "page names the command, seed, versions and hardware, and keeps what did not work. A command is that of the "
        "commit beside it: what `tools/compare_*.py` and `tools.reproduce` did then, `tools.experiment` does today.",
        "\n".join(f"- [{_title(path)}]({path.name})" for path in others),
        "**Does TAPE help?** Not by the rule that [the protocol](protocol.md) fixed before its runs. Less RoPE: a "
        "letter found from a marker +14.9 points in ten seeds (95 %: +0.1 to +29.8) and +4.0 in ten fresh ones "
        "(-4.7 to +12.7); perplexity at eight times the trained length -4.0 in five seeds (-12.3 to +4.2); "
        "addition with Abacus beyond the trained digits +0.4 points in three seeds (-0.2 to +1.1). Its updates in "
        "32 steps of extension add 0.002 to the loss (two seeds, -0.016 to +0.019).",
        "## The paper's tables and figures",
        "Published numbers are of the paper's models and data and were not measured here; ours come from the "
        "model that their cell names, mostly another and smaller one, so compare within a table only. `python -m "
        "tools.experiment --list` says what running each takes. All numbers, and what to know of them, are below. "
        "Figures 1 and 4 are diagrams: [TAPE in pictures](../tape_in_pictures.md) has our own.",
        _table(labelled, found),
        *(part for name, asked in labelled.items() for part in _section(name, asked, found[name])),
    ]
    return "\n\n".join(parts) + "\n"


def _title(path: Path) -> str:
    """Return a page's first line."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _table(labelled: dict[str, Experiment], found: dict[str, list[Measured]]) -> str:
    """Return a row for every measurement, and one for what was not measured."""
    rows = []
    for name, asked in labelled.items():
        first = f"[{asked.label}](#{anchor(asked)}): {asked.about}"
        for ours in found[name]:
            what = f"[{ours.setting}]({ours.page})" if ours.page else ours.setting
            rows.append([first, what, page.hardware(ours.sources), f"`{ours.commands[0]}`"])
        if not found[name]:
            rows.append([first, NOT_MEASURED, "", f"`python -m tools.experiment {name} --scale {PAPER}`"])
    return markdown_table(["", "ours", "hardware", "command"], rows, "l")


def anchor(asked: Experiment) -> str:
    """Of its section: as GitHub makes it of the heading."""
    return re.sub(r"[^\w\- ]", "", f"{asked.label}: {asked.about}".lower()).replace(" ", "-")


def _section(name: str, asked: Experiment, found: list[Measured]) -> Iterator[str]:
    """Yield everything about one experiment."""
    yield f"## {asked.label}: {asked.about}"
    for ours in found or [Measured(name, "", {})]:
        yield page.beside(asked.label, ours, ROOT / RESULTS)
    if not found:
        yield f"Ours: {NOT_MEASURED}."
