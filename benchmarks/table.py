"""Stored results: a line of JSON for each row, written as soon as it is known, and a markdown table made from them.

A later row of the same implementation and shape replaces an earlier one. A file may hold lines of another kind (those
of :mod:`benchmarks.campaign`): they are passed over, as is a last line that was cut short.
"""

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.benchmark_case import BASELINE, TIMED, Finding, Setting
from benchmarks.measure import Summary
from benchmarks.shapes import read_shape
from tape_ds import results
from tape_ds.errors import Problem, UserError
from tape_ds.markdown_table import markdown_table

PARTS = ("forward", "backward", "total")
# the baseline where nothing is RoPE
OURS = "ours"
# groups with a column of tokens a second
SPEEDS = ("recipe", "encodings")
SHOWN_PACKAGES = ("python", "torch", "triton", "transformers", "flash-attn", "liger-kernel")


@dataclass(frozen=True)
class BenchmarkRow:
    """One implementation at one shape. Times are milliseconds."""

    group: str
    shape: str
    dtype: str
    encoding: str
    implementation: str
    status: str
    reason: str
    error: float | None
    allowed: float | None
    forward_p20: float | None
    forward_p50: float | None
    forward_p80: float | None
    backward_p20: float | None
    backward_p50: float | None
    backward_p80: float | None
    total_p20: float | None
    total_p50: float | None
    total_p80: float | None
    peak_bytes: int | None
    repeats: int
    device: str
    """The GPU's name; the CPU's, with the number of threads."""
    chip: str
    """"cpu", or "sm_90" for compute capability 9.0."""
    date: str
    commit: str
    versions: str


def provenance(setting: Setting) -> dict[str, str]:
    if setting.device.type == "cuda":
        device = torch.cuda.get_device_name(setting.device)
        chip = "sm_{}{}".format(*torch.cuda.get_device_capability(setting.device))
    else:
        device = f"{results.hardware()['cpu']}, {torch.get_num_threads()} threads"
        chip = "cpu"
    versions = []
    for name, version in results.versions().items():
        if name in SHOWN_PACKAGES:
            versions.append(f"{name} {version}")
    if chip != "cpu":
        versions.append(f"cuda {torch.version.cuda}")
        versions.append(f"cudnn {torch.backends.cudnn.version()}")
    commit = results.commit()
    shown_commit = "unknown"
    if commit is not None:
        shown_commit = commit["hash"][:12]
        if commit["dirty"]:
            shown_commit += "-dirty"
    return {
        "device": device,
        "chip": chip,
        "date": results.now(),
        "commit": shown_commit,
        "versions": ", ".join(versions),
    }


def row_of(
    group: str, shape: str, setting: Setting, finding: Finding, origin: dict[str, str]
) -> BenchmarkRow:
    # a part that was not timed has no quantiles
    fields: dict[str, Any] = dict.fromkeys(_columns())
    fields |= {
        "group": group,
        "shape": shape,
        "dtype": str(setting.dtype).removeprefix("torch."),
        **finding._asdict(),
    }
    for part, summary in fields.pop("times").items():
        for quantile, value in summary._asdict().items():
            fields[f"{part}_{quantile}"] = round(value, 5)
    for name in ("error", "allowed"):
        if fields[name] is not None:
            fields[name] = float(f"{fields[name]:.3g}")
    return BenchmarkRow(**fields | origin)


def _columns() -> list[str]:
    return [field.name for field in dataclasses.fields(BenchmarkRow)]


def stem(group: str, device: str) -> str:
    return f"{group}_{re.sub(r'[^a-z0-9]+', '_', device.lower()).strip('_')}"


def append(found: object, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")


def lines(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def read(path: Path) -> list[BenchmarkRow]:
    """Return the rows of a file, the last of each implementation at each shape."""
    rows = {}
    columns = set(_columns())
    for line in lines(path):
        if "group" not in line:
            continue
        if line.keys() != columns:
            reason = "has other columns than this version writes"
            raise UserError(Problem("results", str(path), reason, "run that benchmark again"))
        row = BenchmarkRow(**line)
        rows[row.group, row.shape, row.dtype, row.encoding, row.implementation, row.device] = row
    return list(rows.values())


def markdown(rows: Sequence[BenchmarkRow]) -> str:
    first = rows[0]
    device = "cpu" if first.chip == "cpu" else "cuda"
    text = f"""# {first.group} on {first.device}

Milliseconds: median (20 % and 80 % quantile). Ratios are of medians of the last time column. Memory is
inputs and parameters plus whatever is allocated at the peak. Error: of the worst tensor, relative to
fp64, and the most that is allowed: twice that of plain PyTorch in the same precision.

{first.dtype}, {first.repeats} samples each, in turn. {first.date}, commit {first.commit}.
{first.versions}.

    python -m benchmarks {first.group} --device {device} --dtype {first.dtype} --repeats {first.repeats}
"""
    for shape in dict.fromkeys(row.shape for row in rows):
        text += f"\n## {shape}\n\n{_section([row for row in rows if row.shape == shape])}\n"
    return text


def _section(rows: Sequence[BenchmarkRow]) -> str:
    """Write the rows of one shape, each compared with the fastest RoPE, or with ours where nothing is RoPE."""
    timed = [row for row in rows if row.status == TIMED]
    timed.sort(key=lambda row: (row.encoding, row.total_p50 or 0.0))
    plain = [row for row in timed if row.encoding == BASELINE and row.total_p50]
    base = next((row for row in timed if row.implementation == OURS), None)
    name = OURS
    if plain:
        base = min(plain, key=lambda row: row.total_p50 or 0.0)
        name = f"fastest RoPE ({base.implementation})"
    # a forward alone has no column of backwards
    parts = []
    for part in PARTS:
        if any(getattr(row, f"{part}_p50") is not None for row in timed):
            parts.append(part)
    lines = []
    for row in timed:
        # heading -> cell; of every row the same headings
        cells = {"encoding": row.encoding, "implementation": row.implementation}
        for part in parts:
            low, middle, high = (getattr(row, f"{part}_{quantile}") for quantile in Summary._fields)
            cells[part] = "" if middle is None else f"{middle:,.3f} ({low:,.3f}–{high:,.3f})"
        if base is not None:
            cells[f"/ {name}"] = _ratio(row.total_p50, base.total_p50)
        cells["peak MiB"] = "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:,.1f}"
        if base is not None:
            cells[f"peak / {name}"] = _ratio(row.peak_bytes, base.peak_bytes)
        if row.group in SPEEDS and row.total_p50:
            shape = read_shape(row.shape)
            cells["tokens/s"] = f"{1e3 * shape.batch * shape.tokens / row.total_p50:,.0f}"
        cells["error (allowed)"] = f"{row.error:.1e} ({row.allowed:.1e})"
        lines.append(cells)
    text = ["No implementation has a time."]
    if lines:
        text = [markdown_table(list(lines[0]), [list(cells.values()) for cells in lines], "llr")]
    for row in rows:
        if row.status != TIMED:
            # a list needs an empty line before it
            if len(text) == 1:
                text.append("")
            text.append(f"- {row.status}: {row.encoding}, {row.implementation}: {row.reason}")
    return "\n".join(text)


def _ratio(mine: float | None, whole: float | None) -> str:
    if mine and whole:
        return f"{mine / whole:.3f}"
    return ""
