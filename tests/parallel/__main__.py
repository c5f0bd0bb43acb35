"""The full product of what shares work between processes, beside one process; writes the table that is committed.

python -m tests.parallel
"""

import argparse
import functools
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tape_ds import results
from tests.parallel import sequence_cases, training_cases
from tests.parallel.group import RANKS, Group
from tests.parallel.training_cases import Plan
from tests.processes import ROOT

PAGE = ROOT / "docs" / "results" / "scale.md"


def main() -> int:
    """Run everything; 1 where something is further apart than its tolerance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, default=PAGE, help="Markdown file to write")
    parser.add_argument("--without_runs", action="store_true", help="single steps only")
    options = parser.parse_args()
    group, begin = Group(), time.monotonic()
    try:
        parts = [_steps(group)] + ([] if options.without_runs else [_runs(group)])
    finally:
        group.end()
    commit = (results.commit() or {}).get("hash", "unknown")[:12]
    versions = results.versions()
    about = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers", "deepspeed") if name in versions)
    lines = [
        "# Shared work beside one process",
        "",
        f"Written by `make scale` in {(time.monotonic() - begin) / 60:.0f} minutes: {RANKS} processes over gloo, "
        f"{about}, commit {commit}.",
        "",
        *(line for _, part in parts for line in part),
    ]
    options.page.parent.mkdir(parents=True, exist_ok=True)
    options.page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(any(failed for failed, _ in parts))


def _steps(group: Group) -> tuple[int, list[str]]:
    """Loss and every gradient of a step, by encoding and heads."""
    failed, worst = 0, dict[tuple[str, str], dict[int, list[float]]]()
    for case in _told(sequence_cases.PRODUCT):
        distance = max(group.run(sequence_cases.step, case)[0].values())
        failed += distance > sequence_cases.TOLERANCE
        worst.setdefault((case.encoding, case.heads), {}).setdefault(case.size, []).append(distance)
    sizes = sequence_cases.DIMENSIONS["size"]
    rows = [
        [encoding, heads, str(sum(map(len, found.values()))), *(f"{max(found[size]):.1e}" for size in sizes)]
        for (encoding, heads), found in worst.items()
    ]
    header = ["Encoding", "Heads", "Cases", *(f"SP={size}" for size in sizes)]
    return failed, [
        "## Sequence parallelism: one step in fp64",
        "",
        "The largest difference in the loss and in any gradient, relative to the largest entry of its tensor, over "
        f"rows ({', '.join(sequence_cases.ROWS)}) of 12 and 13 tokens, recomputed and not. Tolerance "
        f"{sequence_cases.TOLERANCE:.0e}: {_verdict(failed)}.",
        "",
        *_table(header, rows),
        "",
    ]


def _runs(group: Group) -> tuple[int, list[str]]:
    """Twenty steps of the real trainer."""
    failed, rows = 0, []
    with tempfile.TemporaryDirectory() as folder:
        alone = functools.cache(
            lambda encoding, method, pose: training_cases.train(
                tempfile.mkdtemp(dir=folder), Plan(encoding=encoding, method=method, pose=pose)
            )
        )
        for plan in _told(training_cases.PRODUCT):
            shared = group.run(training_cases.train, tempfile.mkdtemp(dir=folder), plan)[0]
            found = training_cases.furthest(shared, alone(plan.encoding, plan.method, plan.pose))
            failed += any(found[name] > limit for name, limit in training_cases.TOLERANCE.items())
            kind = [plan.encoding, plan.method, "PoSE" if plan.pose else "packed"]
            sharing = [str(plan.size), str(plan.stage), "yes" if plan.checkpointing else "no"]
            rows.append([*kind, *sharing, *(f"{found[name]:.1e}" for name in training_cases.TOLERANCE)])
    limits = ", ".join(f"{name} {limit:.0e}" for name, limit in training_cases.TOLERANCE.items())
    header = ["Encoding", "Method", "Rows", "SP", "ZeRO", "Recomputed", "Losses", "Gradient norms", "Weights"]
    return failed, [
        f"## Sequence parallelism: {training_cases.STEPS} steps of the trainer in fp32",
        "",
        "The largest relative difference at any step, and of the weights at the end, from one process without an "
        f"engine. Tolerances: {limits}: {_verdict(failed)}.",
        "",
        *_table(header, rows),
        "",
    ]


def _told(cases: Sequence[Any]) -> Iterator[Any]:
    for at, case in enumerate(cases):
        if at % 20 == 0:
            print(f"{at} of {len(cases)}: {case}", flush=True)
        yield case


def _verdict(failed: int) -> str:
    return f"**{failed} cases beyond it**" if failed else "all within it"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


if __name__ == "__main__":
    sys.exit(main())
