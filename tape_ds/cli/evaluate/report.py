"""One page that compares runs: ``tape-ds evaluate report RUNS... --output PAGE``.

RUNS are folders (a run's, an evaluation's, or one with several of them below) or stored results; ``NAME=FOLDER`` names
a column. ``report.html`` in the folder PAGE is one file that needs nothing else: losses, perplexity, passkeys, tasks of
lm-eval, and what was run.

No model is loaded, and the same results give the same bytes. Exit codes: 0 done; 2 a mistake.
"""

from collections.abc import Sequence
from pathlib import Path

from tape_ds import storage
from tape_ds.arguments import Parser
from tape_ds.errors import check_folder, collecting, command, is_main_process, raise_if_any
from tape_ds.scoring.pages import columns, html

NAME = "report.html"


@command
def main(argv: list[str] | None = None) -> int:
    """Write the page, and print its sources."""
    parser = Parser(prog="tape-ds evaluate report", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="folders or stored results, each PATH or NAME=PATH")
    parser.add_argument("--output", required=True, help=f"folder of the page; {NAME} in it is replaced")
    parser.add_argument("--title", help="of the page (default: the number of runs, or the name of one)")
    options = parser.parse_args(argv)
    file = Path(options.output) / NAME
    problems = check_folder("--output", file.parent)
    found: list[columns.Column] = []
    unused: list[columns.Unused] = []
    with collecting(problems):
        found, unused = columns.collect(options.runs)
    raise_if_any(problems)
    if is_main_process():
        storage.write_text(file, page(found, unused, options.title))
        for column in found:
            print(f"{column.name}:", *(f"  {each.kind}: {each.path}" for each in column.records.values()), sep="\n")
        for path, reason in unused:
            print(f"not used: {path}: {reason}")
        print(f"page: {file}", flush=True)
    return 0


def page(found: Sequence[columns.Column], unused: Sequence[columns.Unused], title: str | None = None) -> str:
    """Return the page as HTML, with a section for each topic that has results."""
    from tape_ds.scoring.pages import facts, scores  # pandas and matplotlib take a second, --help does not need them

    names = {at: column.name for at, column in enumerate(found)}
    sections = {
        "Training loss": scores.training(found, names),
        "Loss by position": scores.losses(found, names),
        "Perplexity by length": scores.perplexities(found, names),
        "Passkeys found": scores.passkeys(found, names),
        "MMLU, ARC and other tasks": scores.harness(found, names),
        "What was run": facts.section(found, unused),
    }
    usual = f"Comparison of {len(found)} runs" if len(found) > 1 else f"Results of {found[0].name}"
    files = sum(len(column.records) for column in found)
    intro = f"Runs or models: {len(found)}; stored results: {files}. A dash is a missing number."
    return html.page(title or usual, intro, sections)
