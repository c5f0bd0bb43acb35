"""One page that compares runs: ``tape-ds evaluate report RUNS... --output PAGE``.

RUNS are folders (a run's, an evaluation's, or one with several of them below) or stored results; ``NAME=FOLDER`` names
a column. ``report.html`` in the folder PAGE is one file that needs nothing else: losses, perplexity, passkeys, tasks of
lm-eval, and what was run.

No model is loaded, and the same results give the same bytes. Exit codes: 0 done; 2 a mistake.
"""

import os
from pathlib import Path

from tape_ds import storage
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, check_folder, collecting, command, is_main_process, raise_if_any
from tape_ds.scoring import report_columns

NAME = "report.html"


@command
def main(argv: list[str] | None = None) -> int:
    """Write the page, and print its sources."""
    parser = Parser(prog="tape-ds evaluate report", description=__doc__)
    parser.add_argument(
        "runs", nargs="+", metavar="RUNS", help="folders or stored results, each PATH or NAME=PATH"
    )
    parser.add_argument(
        "--output",
        required=True,
        help=f"folder of the page; an earlier {NAME} of this command is replaced",
    )
    parser.add_argument(
        "--title", help="of the page (default: the number of runs, or the name of one)"
    )
    options = parser.parse_args(argv)
    file = Path(options.output) / NAME
    problems = check_folder("--output", file.parent)
    columns: list[report_columns.Column] = []
    unused: list[report_columns.Unused] = []
    with collecting(problems):
        columns, unused = report_columns.collect(options.runs)
    # matplotlib takes a second, which --help does not need
    from tape_ds.scoring import report_page

    # a person's file of this name is never replaced
    if os.path.lexists(file) and not (file.is_file() and report_page.is_page(file)):
        wrong = f"{NAME} in it is not a page of this command"
        problems.append(Problem("--output", options.output, wrong, "name another folder"))
    raise_if_any(problems)
    if is_main_process():
        storage.write_text(file, report_page.page(columns, unused, options.title))
        for column in columns:
            print(f"{column.name}:")
            for record in column.records.values():
                print(f"  {record.kind}: {record.path}")
        for path, reason in unused:
            print(f"not used: {path}: {reason}")
        print(f"page: {file}", flush=True)
    return 0
