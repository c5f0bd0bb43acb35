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
import csv
import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tape_ds import results
from tape_ds.errors import Problem, UserError, command, raise_if_any
from tape_ds.model import positions
from tape_ds.training.recipe import pretraining

ROOT = Path(__file__).resolve().parents[1]
LAUNCHER = ROOT / "launchers" / "pretrain_c4.py"
NAME = "compare_encodings"
OWN = ("recipe", "position_encoding", "position_options", "output_dir", "resume_from_checkpoint", "rope_parameters")
"""Fields that this command decides for each run."""


@dataclass(frozen=True)
class Entry:
    """An encoding with its options."""

    encoding: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """How tables call it: ``tape form=vector``."""
        return " ".join([self.encoding, *(f"{name}={value}" for name, value in self.options.items())])

    @property
    def folder(self) -> str:
        """Name of its run's folder."""
        return re.sub(r"[^A-Za-z0-9.=-]+", "_", self.label).strip("_")


@command
def main(argv: list[str] | None = None) -> int:
    """Check everything, then run, then compare."""
    own, passed_on = split(sys.argv[1:] if argv is None else argv)
    options = parse(own)
    entries = check(options, passed_on)
    output = Path(options.output)
    failed = [entry for entry in entries if not trained(entry, options, passed_on)]
    found = {entry.label: results.load(stored(output, entry)) for entry in entries if entry not in failed}
    if found:
        write(found, Path(options.results or output), argv)
    for entry in failed:
        print(f"FAILED: {entry.label}, see {output / entry.folder / 'log.txt'}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Arguments of this command, and those behind ``--`` for every run."""
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at], argv[at + 1 :]


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line before ``--``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encodings", nargs="+", default=positions.available(), help='NAME or NAME{"option": value}')
    parser.add_argument("--recipe", default="tiny", help="a recipe of pretrain_c4.py")
    parser.add_argument("--output", default=f"runs/{NAME}", help="folder of the runs")
    parser.add_argument("--results", help="folder of the table and the plot; default: --output")
    parser.add_argument("--processes", type=int, help="processes of each run; default: 2 on a CPU, else every GPU")
    return parser.parse_args(argv)


def check(options: argparse.Namespace, passed_on: list[str]) -> list[Entry]:
    """The entries, once every run's recipe has been checked as the launcher would.

    Raises:
        UserError: everything wrong with any of them.
    """
    problems: list[Problem] = []
    entries: list[Entry] = []
    for text in options.encodings:
        try:
            entries.append(read_entry(text))
        except UserError as error:
            problems += error.problems
    for name in sorted({flag.lstrip("-").split("=")[0].split(".")[0] for flag in passed_on} & set(OWN)):
        problems.append(Problem(name, "behind --", "decided by this command", "remove it from there"))
    for label in sorted({entry.label for entry in entries if entries.count(entry) > 1}):
        problems.append(Problem("encodings", label, "named twice", "name it once"))
    if options.processes is not None and options.processes < 1:
        problems.append(Problem("processes", options.processes, "too few", "give 1 or more"))
    raise_if_any(problems)
    for entry in entries:
        try:
            pretraining.load(arguments(entry, options, passed_on), processes(options))
        except UserError as error:
            known = {str(problem) for problem in problems}
            problems += [problem for problem in error.problems if str(problem) not in known]
    raise_if_any(problems)
    return entries


def read_entry(text: str) -> Entry:
    """``NAME`` or ``NAME{"option": value}``.

    Raises:
        UserError: no such encoding or option.
    """
    name, brace, rest = text.partition("{")
    try:
        given = json.loads(brace + rest) if brace else {}
    except json.JSONDecodeError as error:
        remedy = """write for example 'tape{"rank": 8}'"""
        raise UserError(Problem("encodings", text, f"its options are no JSON ({error.msg})", remedy)) from None
    raise_if_any(positions.check_options(name.strip(), given))
    return Entry(name.strip(), given)


def arguments(entry: Entry, options: argparse.Namespace, passed_on: list[str]) -> list[str]:
    """The launcher's command line for one entry."""
    chosen = ["--recipe", options.recipe, "--position_encoding", entry.encoding]
    chosen += ["--position_options", json.dumps(entry.options)]
    return [*chosen, *passed_on, "--output_dir", str(Path(options.output) / entry.folder)]


def processes(options: argparse.Namespace) -> int:
    """Processes of each run."""
    if options.processes is not None:
        return options.processes
    import torch

    return torch.cuda.device_count() or 2


def stored(output: Path, entry: Entry) -> Path:
    """Where an entry's run writes its result when it is complete."""
    return output / entry.folder / "results" / "run.json"


def trained(entry: Entry, options: argparse.Namespace, passed_on: list[str]) -> bool:
    """Whether the entry's run is complete, now if not before."""
    own = arguments(entry, options, passed_on)
    file = stored(Path(options.output), entry)
    if file.is_file() and is_of(results.load(file), pretraining.load(own, processes(options))):
        print(f"{entry.label}: complete, not repeated", flush=True)
        return True
    folder = Path(options.output) / entry.folder
    folder.mkdir(parents=True, exist_ok=True)
    if complete_checkpoint(folder):
        own += ["--resume_from_checkpoint", "true"]
    print(f"{entry.label}: training, see {folder / 'log.txt'}", flush=True)
    return launch(own, processes(options), folder / "log.txt") == 0


def is_of(result: results.Result, recipe: pretraining.PretrainingRecipe) -> bool:
    """Whether a stored result is of this recipe, wherever it ran."""
    ignored = {"output_dir", "resume_from_checkpoint"}
    expected = json.loads(json.dumps(recipe.as_dict(), default=str))
    mine, theirs = ({k: v for k, v in each.items() if k not in ignored} for each in (expected, result.config))
    return result.finished is not None and mine == theirs


def complete_checkpoint(folder: Path) -> bool:
    """Whether a run in this folder has something to go on from."""
    from tape_ds.training import resume

    return resume.newest(folder) is not None


def launch(own: list[str], count: int, log: Path) -> int:
    """Run DeepSpeed's launcher to its end and return its exit code; its output goes to ``log``.

    On a free port, so that comparisons can share a machine.
    """
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    runner = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_accelerators", str(count)]
    whole = [*runner, "--master_port", str(port), str(LAUNCHER), *own]
    with open(log, "w", encoding="utf-8") as file:
        return subprocess.run(whole, stdout=file, stderr=file, env=environment()).returncode


def environment() -> dict[str, str]:
    """This process's environment, with DeepSpeed told of a CPU where there is nothing else."""
    import torch

    found = dict(os.environ)
    if not torch.cuda.is_available():
        found.setdefault("DS_ACCELERATOR", "cpu")
        found.setdefault("OMP_NUM_THREADS", "1")
    found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), found.get("PATH", "")])
    return found


def write(found: Mapping[str, results.Result], folder: Path, argv: list[str] | None) -> None:
    """Table and plot of the complete runs."""
    from tape_ds.training import plots

    first = next(iter(found.values()))
    rows = [row(label, result) for label, result in found.items()]
    window = first.config["window"]
    summary = results.collect(
        command=sys.argv if argv is None else [Path(__file__).name, *argv],
        seed=first.seed,
        config={name: value for name, value in first.config.items() if name not in OWN},
        data=first.data,
        processes=first.hardware["processes"],
    ).finish({"window": window, "encodings": rows})
    folder.mkdir(parents=True, exist_ok=True)
    results.save(summary, folder / f"{NAME}.json")
    (folder / f"{NAME}.csv").write_text(as_csv(rows), encoding="utf-8")
    (folder / f"{NAME}.md").write_text(as_markdown(rows, summary), encoding="utf-8")
    curves = {each["encoding"]: {int(k): v for k, v in each["perplexity"].items()} for each in rows}
    plots.perplexity_by_length(curves, folder / f"{NAME}.png", window)
    print(as_markdown(rows, summary))
    print(f"written to {folder / NAME}.md, .csv, .json, .png", flush=True)


def row(label: str, result: results.Result) -> dict[str, Any]:
    """What one run came to."""
    figures = result.figures
    return {
        "encoding": label,
        "parameters": figures["parameters"]["all"],
        "train_loss": figures["train_loss"][-1]["loss"],
        "perplexity": {length: score["perplexity"] for length, score in figures["perplexity"].items()},
        "seconds": seconds(result),
        "commit": result.commit,
    }


def seconds(result: results.Result) -> float:
    """From the run's start to its end, scoring included; of a resumed run, of its last part."""
    from datetime import datetime

    assert result.finished is not None, "only complete runs are compared"
    return (datetime.fromisoformat(result.finished) - datetime.fromisoformat(result.started)).total_seconds()


def lengths(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Lengths that were scored, ascending."""
    return sorted({length for each in rows for length in each["perplexity"]}, key=int)


def as_csv(rows: list[dict[str, Any]]) -> str:
    """The table for programs."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    scored = lengths(rows)
    writer.writerow(["encoding", "parameters", "train_loss", *(f"perplexity_{length}" for length in scored), "seconds"])
    for each in rows:
        numbers = [each["perplexity"].get(length, "") for length in scored]
        writer.writerow([each["encoding"], each["parameters"], each["train_loss"], *numbers, each["seconds"]])
    return text.getvalue()


def as_markdown(rows: list[dict[str, Any]], summary: results.Result) -> str:
    """The table for people, the best of each length in bold."""
    scored, window = lengths(rows), summary.figures["window"]
    best = {length: min(each["perplexity"][length] for each in rows) for length in scored}
    header = ["encoding", "parameters", "training loss", *(f"{int(s):,} ({int(s) / window:g}x)" for s in scored), "s"]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    for each in rows:
        cells = [each["encoding"], f"{each['parameters']:,}", f"{each['train_loss']:.3f}"]
        for length in scored:
            value = each["perplexity"][length]
            shown = f"{value:,.2f}" if value < 1e6 else f"{value:.1e}"
            cells.append(f"**{shown}**" if value == best[length] else shown)
        lines.append([*cells, f"{each['seconds']:.0f}"])
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    machine = summary.hardware
    gpus = ", ".join(gpu["name"] for gpu in machine["gpus"]) or "no GPU"
    where = f"{machine['cpu']}, {machine['cores']} cores, {gpus}, {machine['processes']} processes a run"
    asked = shlex.join(["python", "tools/compare_encodings.py", *summary.command[1:]])
    return (
        f"Perplexity on held-out text by length, trained on rows of {window:,} tokens. Lower is better; the same "
        f"documents are scored at every length.\n\n{table}\n\n"
        f"Command: `{asked}`. Seed {summary.seed}. {where}. torch {summary.versions['torch']}, {summary.finished}.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
