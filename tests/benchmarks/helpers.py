"""What the benchmarks' tests share: rows of a table without running anything."""

from typing import Any

from benchmarks.table import BenchmarkRow

TIMES = {
    f"{part}_{quantile}": None
    for part in ("forward", "backward", "total")
    for quantile in ("p20", "p50", "p80")
}


def row(implementation: str, total: float | None = None, **changes: Any) -> BenchmarkRow:
    """A row of attention on an H100; ``total`` is its median, with quantiles 10 % off."""
    fields: dict[str, Any] = {
        "group": "attention",
        "shape": "B1 H32 G32 T8192 K128",
        "dtype": "bfloat16",
        "encoding": "tape",
        "implementation": implementation,
        "status": "timed",
        "reason": "",
        "error": 0.0021,
        "allowed": 0.0085,
        "peak_bytes": 2**20,
        "repeats": 30,
        "device": "NVIDIA H100 80GB HBM3",
        "chip": "sm_90",
        "date": "2026-11-21T12:00:00+00:00",
        "commit": "0123456789ab",
        "versions": "python 3.11, torch 2.13.0",
        **TIMES,
    }
    if total is not None:
        fields |= {"total_p20": 0.9 * total, "total_p50": total, "total_p80": 1.1 * total}
    return BenchmarkRow(**fields | changes)
