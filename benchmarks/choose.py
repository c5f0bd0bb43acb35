"""Take in measurements, and write the table that ``attention_backend: auto`` reads.

    python -m benchmarks choose --results runs/campaign

The rows of every ``.jsonl`` of that folder become the tables of ``benchmarks/results``, a file for each group and
device. Then, for every GPU, precision, width and length that was measured, of plain sequences and of packed ones:
``auto`` takes the ``attend`` backend that was right at all shapes of that length and fastest, forward and backward, by
the geometric mean of its medians over them; of a step of decoding, forward alone. A CPU needs no rows: ``auto`` takes
torch's own attention there.
"""

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import table
from benchmarks.benchmark_case import BASELINE, TIMED
from benchmarks.shapes import parse
from tape_ds import attention, storage
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, UserError
from tape_ds.installation import ROOT

RESULTS = ROOT / "benchmarks" / "results"
TABLE = ROOT / "tape_ds" / "attention" / "table.json"
PREFIX = "attend "
GROUPS = ("attention", "decode")  # those that ``auto`` learns from
SPAN = 2  # a measured length holds for lengths from half of it to twice it
DECODED = 16  # a step of decoding of one token holds for as many as the decoding kernel takes


class ShapeKind(NamedTuple):
    """Calls that one row answers, whatever their length."""

    device: str
    dtype: str
    key_width: int
    value_width: int
    packed: bool


def main(argv: list[str]) -> int:
    parser = Parser(prog="python -m benchmarks choose", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of .jsonl files; default: %(default)s")
    parser.add_argument("--stored", type=Path, default=RESULTS, help="where tables are kept; default: %(default)s")
    parser.add_argument("--table", type=Path, default=TABLE, help="the file to write; default: %(default)s")
    options = parser.parse_args(argv)
    if options.results.resolve() != options.stored.resolve():
        take_in(options.results, options.stored)
    stored = {path.name: table.read(path) for path in sorted(options.stored.glob("*.jsonl"))}
    stored = {name: rows for name, rows in stored.items() if rows and rows[0].group in GROUPS}
    if not stored:
        remedy = "run python -m benchmarks attention decode first"
        raise UserError(Problem("results", str(options.results), f"no rows of {' or '.join(GROUPS)}", remedy))
    rows = choose(stored)
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    storage.write_text(options.table, f"[\n{lines}\n]\n" if rows else "[]\n")
    for row in rows:
        packed = ", packed" if row["packed"] else ""
        print(
            "{device} {dtype} {key_width}/{value_width} T {min_tokens}-{max_tokens}{}: {backend}".format(packed, **row)
        )
    print(f"{len(rows)} rows from {', '.join(stored)} written to {options.table}")
    return 0


def take_in(folder: Path, stored: Path) -> None:
    """Write a table for each group and device that the folder has rows of, joined over its files."""
    found: dict[str, list[table.BenchmarkRow]] = defaultdict(list)
    for path in sorted(folder.glob("*.jsonl")):
        for row in table.read(path):
            found[table.stem(row.group, "cpu" if row.chip == "cpu" else row.device)].append(row)
    for name, rows in found.items():
        path = stored / f"{name}.jsonl"
        storage.write_text(path, "".join(json.dumps(dataclasses.asdict(row)) + "\n" for row in rows))
        storage.write_text(path.with_suffix(".md"), table.markdown(table.read(path)))


def choose(stored: Mapping[str, Iterable[table.BenchmarkRow]]) -> list[dict[str, Any]]:
    measured: dict[ShapeKind, dict[int, dict[str, list[table.BenchmarkRow]]]] = defaultdict(lambda: defaultdict(dict))
    sources: dict[tuple[ShapeKind, int], str] = {}
    for name, rows in stored.items():
        for row in rows:
            if row.chip == "cpu" or not row.implementation.startswith(PREFIX):
                continue
            sizes = parse(row.shape)
            wide = 1 if row.encoding == BASELINE else 2
            kind = ShapeKind(row.chip, row.dtype, sizes["K"], wide * sizes["K"], "N" in sizes)
            measured[kind][sizes["T"]].setdefault(row.shape, []).append(row)
            sources[kind, sizes["T"]] = f"{name}, {row.date[:10]}"
    found = []
    for kind in sorted(measured):
        own: list[dict[str, Any]] = []  # ascending and without overlap
        before = 0
        for tokens in sorted(measured[kind]):
            backend = fastest(list(measured[kind][tokens].values()))
            if backend is None:
                continue
            least, most = (1, DECODED) if tokens == 1 else (tokens // SPAN, tokens * SPAN)
            if own:  # never below another measured length
                least = max(least, before + 1)
                own[-1]["max_tokens"] = min(own[-1]["max_tokens"], least - 1)
            spans = {"min_tokens": least, "max_tokens": most, "backend": backend}
            own.append(kind._asdict() | spans | {"source": sources[kind, tokens]})
            before = tokens
        found += own
    return found


def fastest(shapes: list[list[table.BenchmarkRow]]) -> str | None:
    times = [
        {
            row.implementation.removeprefix(PREFIX): row.total_p50
            for row in rows
            if row.status == TIMED and row.total_p50
        }
        for rows in shapes
    ]
    candidates = [name for name in attention.available() if all(name in each for each in times)]
    return min(candidates, key=lambda name: sum(math.log(each[name]) for each in times), default=None)
