"""Write the table that ``attention_backend: auto`` reads, from stored benchmarks of attention.

    python -m benchmarks choose

For every GPU, precision, width and length that was measured, of plain sequences and of packed ones: the ``attend``
backend that was right at all shapes of that length and fastest, forward and backward, by the geometric mean of its
medians over them; of a step of decoding, forward alone. A CPU needs no rows: ``auto`` takes torch's own attention
there.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import table
from benchmarks.benchmark_case import BASELINE, TIMED
from benchmarks.shapes import parse
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, UserError
from tape_ds.installation import ROOT
from tape_ds.model import attention

RESULTS = ROOT / "benchmarks" / "results"
TABLE = ROOT / "tape_ds" / "model" / "attention" / "table.json"
PREFIX = "attend "
SPAN = 2
"""A measured length speaks for lengths from half of it to twice it."""
DECODED = 16
"""A step of decoding of one token speaks for as many as the decoding kernel takes."""
FILES = ("attention_*.csv", "packed_*.csv", "decode_*.csv")


class ShapeKind(NamedTuple):
    """Calls that one row answers, but for their length."""

    device: str
    dtype: str
    key_width: int
    value_width: int
    packed: bool


def main(argv: list[str]) -> int:
    """Read, choose, write, say what was written.

    Raises:
        UserError: there is nothing to choose from.
    """
    parser = Parser(prog="python -m benchmarks choose", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of {', '.join(FILES)}")
    parser.add_argument("--table", type=Path, default=TABLE, help="the file to write")
    options = parser.parse_args(argv)
    files = sorted(path for pattern in FILES for path in options.results.glob(pattern))
    if not files:
        remedy = "run python -m benchmarks attention packed decode first"
        raise UserError(Problem("results", str(options.results), f"holds no {', '.join(FILES)}", remedy))
    rows = choose({path.name: table.read(path) for path in files})
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    options.table.write_text(f"[\n{lines}\n]\n" if rows else "[]\n", encoding="utf-8")
    for row in rows:
        packed = ", packed" if row["packed"] else ""
        print(
            "{device} {dtype} {key_width}/{value_width} T {min_tokens}-{max_tokens}{}: {backend}".format(packed, **row)
        )
    print(f"{len(rows)} rows from {', '.join(path.name for path in files)} written to {options.table}")
    return 0


def choose(stored: Mapping[str, Iterable[table.BenchmarkRow]]) -> list[dict[str, Any]]:
    """Return the rows of ``auto``'s table, from the rows of each file by its name."""
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
            if own:  # never below a length that was measured itself
                least = max(least, before + 1)
                own[-1]["max_tokens"] = min(own[-1]["max_tokens"], least - 1)
            spans = {"min_tokens": least, "max_tokens": most, "backend": backend}
            own.append(kind._asdict() | spans | {"source": sources[kind, tokens]})
            before = tokens
        found += own
    return found


def fastest(shapes: list[list[table.BenchmarkRow]]) -> str | None:
    """Of the backends that have a time at every one of these shapes; None where there is none."""
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
