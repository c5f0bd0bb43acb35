"""One page that compares runs: ``python -m evaluation report RUNS... --output PAGE``.

RUNS are folders (a run's, an evaluation's, or one with several of them below) or stored results; ``NAME=FOLDER`` says
what its column is called. The page is written twice, as ``report.html``, one file that needs nothing else, and as
``report.md``: what differs in the settings, losses, perplexity, passkeys, SCROLLS, MMLU and ARC, cost, and where each
number comes from. On top stands which is better where, and by how much.

Nothing is computed anew and no model is loaded. The same results give the same bytes.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from evaluation.pages import columns, render
from evaluation.pages.parts import Page
from tape_ds.arguments import Parser
from tape_ds.errors import check_folder, collecting, command, is_main_process, raise_if_any

NAME = "report"
HTML, MARKDOWN = f"{NAME}.html", f"{NAME}.md"


@command
def main(argv: list[str]) -> int:
    """Write the page and say what it was made of."""
    options = _parser().parse_args(argv)
    folder = Path(options.output)
    problems = check_folder("--output", folder)
    found: list[columns.Column] = []
    unused: list[columns.Unused] = []
    with collecting(problems):
        found, unused = columns.collect(options.runs)
    raise_if_any(problems)
    if is_main_process():
        render.write(build(found, unused, options.title), folder, NAME)
        _say(found, unused, folder)
    return 0


def build(found: Sequence[columns.Column], unused: Sequence[columns.Unused], title: str | None) -> Page:
    """Return the page of these columns; a topic of which nothing is stored has no section.

    Args:
        found: what is compared.
        unused: files that could not be used.
        title: of the page; None: one that says how many runs there are.
    """
    # slow to import, and a mistaken command line is told before
    from evaluation.pages import facts, losses, passkeys, perplexities, tasks, verdict

    sections = [
        facts.settings(found),
        losses.training(found),
        losses.by_position(found),
        perplexities.section(found),
        passkeys.section(found),
        tasks.scrolls(found),
        tasks.harness(found),
        facts.costs(found),
        facts.origins(found, unused),
    ]
    files = sum(len(column.records) for column in found)
    compared = f"{len(found)} runs or models" if len(found) > 1 else "One run or model"
    stored = "results" if files > 1 else "result"
    intro = f"{compared}, from {files} stored {stored}. A dash is a number that is not there."
    usual = f"Comparison of {len(found)} runs" if len(found) > 1 else f"Results of {found[0].name}"
    shown = [each for each in sections if each is not None]
    return Page(usual if title is None else title, intro, shown, verdict.sentences(found))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m evaluation report", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="folders or stored results, each PATH or NAME=PATH")
    parser.add_argument("--output", required=True, help=f"folder of the page; its {HTML} and {MARKDOWN} are replaced")
    parser.add_argument("--title", help="of the page (default: how many runs, or the name of one)")
    return parser


def _say(found: Sequence[columns.Column], unused: Sequence[columns.Unused], folder: Path) -> None:
    """What was used, and what was not and why."""
    for column in found:
        print(f"{column.name}:")
        for record in column.records.values():
            print(f"  {record.kind}: {record.path}")
    for path, reason in unused:
        print(f"not used: {path}: {reason}")
    print(f"page: {folder / HTML} and {folder / MARKDOWN}", flush=True)
