"""Take in measurements, and write the table that ``attention_backend: auto`` reads.

    python -m benchmarks choose --results runs/campaign

The rows of every ``.jsonl`` of that folder become the tables of ``benchmarks/results``, a file for each group and
device. Then, for every GPU, precision, width and length that was measured, of plain sequences and of packed ones:
``auto`` takes the ``attend`` backend that was right at all shapes of that length and fastest, forward and backward, by
the geometric mean of its medians over them; of a step of decoding, forward alone. A plain sequence counts among the
packed ones too: a document may fill one. A CPU needs no rows: ``auto`` takes torch's own attention there.
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
from benchmarks.shapes import read_shape
from tape_ds import attention, storage
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, UserError
from tape_ds.installation import ROOT

RESULTS = ROOT / "benchmarks" / "results"
TABLE = ROOT / "tape_ds" / "attention" / "table.json"
PREFIX = "attend "
# those that ``auto`` learns from
GROUPS = ("attention", "decode")
# a measured length holds for lengths from half of it to twice it
SPAN = 2
# a step of decoding of one token holds for as many as the decoding kernel takes
DECODED = 16


class ShapeKind(NamedTuple):
    """Calls that one row answers, whatever their length."""

    device: str
    dtype: str
    key_width: int
    value_width: int
    packed: bool


def main(argv: list[str]) -> int:
    parser = Parser(prog="python -m benchmarks choose", description=__doc__)
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of .jsonl files; default: %(default)s"
    )
    parser.add_argument(
        "--stored", type=Path, default=RESULTS, help="where tables are kept; default: %(default)s"
    )
    parser.add_argument(
        "--table", type=Path, default=TABLE, help="the file to write; default: %(default)s"
    )
    options = parser.parse_args(argv)
    if options.results.resolve() != options.stored.resolve():
        # a table for each group and device, joined over the files
        taken: dict[str, list[table.BenchmarkRow]] = defaultdict(list)
        for path in sorted(options.results.glob("*.jsonl")):
            for row in table.read(path):
                # one table for all CPUs, and one for each GPU
                device = "cpu" if row.chip == "cpu" else row.device
                taken[table.stem(row.group, device)].append(row)
        for name, rows in taken.items():
            path = options.stored / f"{name}.jsonl"
            lines = [json.dumps(dataclasses.asdict(row)) for row in rows]
            storage.write_text(path, "\n".join([*lines, ""]))
            storage.write_text(path.with_suffix(".md"), table.markdown(table.read(path)))
    stored = {}
    for path in sorted(options.stored.glob("*.jsonl")):
        rows = table.read(path)
        if rows and rows[0].group in GROUPS:
            stored[path.name] = rows
    if not stored:
        reason = f"no rows of {' or '.join(GROUPS)}"
        remedy = "run python -m benchmarks attention decode first"
        raise UserError(Problem("--results", str(options.results), reason, remedy))
    lines = list(map(json.dumps, choose(stored)))
    text = "[]\n"
    if lines:
        # a row a line, so that a change shows which
        text = "[\n  " + ",\n  ".join(lines) + "\n]\n"
    storage.write_text(options.table, text)
    for line in lines:
        print(line)
    print(f"{len(lines)} rows from {', '.join(stored)} written to {options.table}")
    return 0


def choose(stored: Mapping[str, Iterable[table.BenchmarkRow]]) -> list[dict[str, Any]]:
    # milliseconds, by kind and length, then by shape and backend
    measured: dict[tuple[ShapeKind, int], dict[str, dict[str, float]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    sources: dict[tuple[ShapeKind, int], str] = {}
    for name, rows in stored.items():
        for row in rows:
            if row.chip == "cpu" or not row.implementation.startswith(PREFIX):
                continue
            shape = read_shape(row.shape)
            value_width = shape.width if row.encoding == BASELINE else 2 * shape.width
            backend = row.implementation.removeprefix(PREFIX)
            # `triton` leaves a narrow value to sdpa or varlen: between a kernel and itself there is only noise
            another = backend != "triton" or value_width > shape.width
            # a document that fills a packed sequence costs what a plain one does; without rows of several, none is made
            for packed in (True,) if shape.documents else (False, True):
                kind = ShapeKind(row.chip, row.dtype, shape.width, value_width, packed)
                times = measured[kind, shape.tokens][row.shape]
                if row.status == TIMED and row.total_p50 and another:
                    times[backend] = row.total_p50
                if packed == (shape.documents > 0):
                    sources[kind, shape.tokens] = f"{name}, {row.date[:10]}"

    chosen: list[dict[str, Any]] = []
    previous: tuple[ShapeKind, int] | None = None
    for kind, tokens in sorted(sources):
        shapes = list(measured[kind, tokens].values())
        # the product of the times, in logarithms; of backends that every shape was measured with
        mean_log = {}
        for name in attention.available():
            known = [of_shape[name] for of_shape in shapes if name in of_shape]
            if len(known) == len(shapes):
                mean_log[name] = sum(map(math.log, known))
        if not mean_log:
            continue
        least = tokens // SPAN
        most = tokens * SPAN
        if tokens == 1:
            least = 1
            most = DECODED
        # spans do not overlap, nor reach another measured length
        if previous is not None and previous[0] == kind:
            least = max(least, previous[1] + 1)
            chosen[-1]["max_tokens"] = min(chosen[-1]["max_tokens"], least - 1)
        spans = {
            "min_tokens": least,
            "max_tokens": most,
            "backend": min(mean_log, key=mean_log.__getitem__),
        }
        chosen.append(kind._asdict() | spans | {"source": sources[kind, tokens]})
        previous = kind, tokens
    return chosen
