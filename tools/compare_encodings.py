"""Train the same small model with one positional encoding after another, and compare perplexity by length.

    python tools/compare_encodings.py                                         every encoding, recipe tiny
    python tools/compare_encodings.py --encodings rope tape 'tape{"form": "vector"}' --output runs/three
    python tools/compare_encodings.py --recipe my.yaml --processes 8 -- --max_steps 500 --learning_rate 1e-3

Each is a run of ``launchers/pretrain_c4.py`` in a folder of its own below ``--output``: same seed, same rows in the
same order, same initial weights outside the encoding. Whatever stands behind ``--`` goes to every run. A run that is
complete is not repeated, one that was cut short goes on from its last checkpoint, so the same command can be started
again. Afterwards the table (md, csv, json) and the plot are written to ``--output``, or to ``--results``.

Exit codes: 0 done; 1 a run failed (the others are compared, and the failed one is named); 2 something to mend, nothing
was started.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tape_ds import results
from tape_ds.errors import command
from tape_ds.model import positions
from tape_ds.training.comparison import encodings, entries, runs, summary
from tape_ds.training.recipe import pretraining

ROOT = Path(__file__).resolve().parents[1]
LAUNCHER = ROOT / "launchers" / "pretrain_c4.py"
NAME = "compare_encodings"


@command
def main(argv: list[str] | None = None) -> int:
    """Check everything, then run, then compare."""
    own, passed_on = entries.split(sys.argv[1:] if argv is None else argv)
    options = parse(own)
    planned = encodings.plan(options, passed_on, LAUNCHER, pretraining.load)
    failed = {run.label: run.log for run in planned if not runs.carry_out(run)}
    complete = (run for run in planned if run.label not in failed)
    found = {run.label: result for run in complete if (result := run.result()) is not None}
    if found:
        write(found, Path(options.results or options.output), argv)
    return encodings.exit_code(failed)


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line before ``--``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    encodings.add_options(
        parser, name=NAME, chosen=positions.available(), recipe="tiny", launcher="launchers/pretrain_c4.py"
    )
    return parser.parse_args(argv)


def write(found: Mapping[str, results.Result], folder: Path, argv: list[str] | None) -> None:
    """Table and plot of the complete runs."""
    from tape_ds.training import plots

    rows = [row(label, result) for label, result in found.items()]
    asked = sys.argv if argv is None else [Path(__file__).name, *argv]
    begun = summary.collect(asked, list(found.values()))
    window = next(iter(found.values())).config["window"]
    whole = begun.finish({"window": window, "encodings": rows})
    text = as_markdown(rows, whole)
    summary.write(whole, folder, NAME, text, as_csv(rows))
    curves = {each["encoding"]: {int(k): v for k, v in each["perplexity"].items()} for each in rows}
    plots.perplexity_by_length(curves, folder / f"{NAME}.png", window)
    print(text)
    print(f"written to {folder / NAME}.md, .csv, .json, .png", flush=True)


def row(label: str, result: results.Result) -> dict[str, Any]:
    """What one run came to."""
    figures = result.figures
    return {
        "encoding": label,
        "parameters": figures["parameters"]["all"],
        "train_loss": summary.last_loss(result),
        "perplexity": {length: score["perplexity"] for length, score in figures["perplexity"].items()},
        "seconds": summary.seconds(result),
        "commit": result.commit,
    }


def lengths(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lengths that were scored, ascending."""
    return sorted({length for each in rows for length in each["perplexity"]}, key=int)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table for programs."""
    scored = lengths(rows)
    header = ["encoding", "parameters", "train_loss", *(f"perplexity_{length}" for length in scored), "seconds"]
    cells = [
        [
            *(each["encoding"], each["parameters"], each["train_loss"]),
            *(each["perplexity"].get(length) for length in scored),
            each["seconds"],
        ]
        for each in rows
    ]
    return summary.as_csv(header, cells)


def as_markdown(rows: Sequence[Mapping[str, Any]], whole: results.Result) -> str:
    """The table for people, the best of each length in bold."""
    scored, window = lengths(rows), whole.figures["window"]
    best = {length: min(each["perplexity"][length] for each in rows) for length in scored}
    header = ["encoding", "parameters", "training loss", *(f"{int(s):,} ({int(s) / window:g}x)" for s in scored), "s"]
    lines = []
    for each in rows:
        cells = [each["encoding"], f"{each['parameters']:,}", summary.loss_cell(each["train_loss"])]
        for length in scored:
            value = each["perplexity"][length]
            shown = f"{value:,.2f}" if value < 1e6 else f"{value:.1e}"
            cells.append(f"**{shown}**" if value == best[length] else shown)
        lines.append([*cells, f"{each['seconds']:.0f}"])
    return (
        f"Perplexity on held-out text by length, trained on rows of {window:,} tokens. Lower is better; the same "
        f"documents are scored at every length.\n\n{summary.as_markdown(header, lines)}\n\n"
        f"{summary.provenance(whole, f'tools/{NAME}.py')}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
