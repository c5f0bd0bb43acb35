"""The full product of what shares work between processes, beside one process; writes the table that is committed.

python -m tests.distributed

What was found is kept in .cache/scale, and not computed again; remove that folder to begin anew.
"""

import argparse
import functools
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tape_ds import results
from tape_ds.markdown_table import markdown_table
from tests.distributed import step_cases, training_cases
from tests.distributed.group import RANKS, Group
from tests.distributed.step_cases import Case
from tests.distributed.training_cases import Plan
from tests.journal import Journal
from tests.processes import ROOT

PAGE = ROOT / "docs" / "results" / "scale.md"
RENEWED = 50
"""Runs after which the ranks are other processes: engines leave so much behind that after some hundred runs one takes
twice as long as in new processes."""


class Findings:
    """The results of a product's cases: each is computed once, however often the command was killed."""

    def __init__(self, name: str):
        self._journal = Journal(ROOT / ".cache" / "scale" / f"{name}.jsonl")
        self._kept = {line["case"]: line["found"] for line in self._journal.lines}
        self._commit = (results.commit() or {}).get("hash", "unknown")[:12]

    def of(self, case: Any, find: Callable[[], dict[str, float]]) -> dict[str, float]:
        """What is kept of a case, else what ``find`` gives."""
        name = repr(case)
        if name not in self._kept:
            self._kept[name] = find()
            self._journal.add({"case": name, "found": self._kept[name], "commit": self._commit})
        found: dict[str, float] = self._kept[name]
        return found

    @property
    def commits(self) -> set[str]:
        """That computed what is kept."""
        return {line["commit"] for line in self._journal.lines}


def main() -> int:
    """Run everything; 1 where something is further apart than its tolerance."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="Markdown file to write")
    options = parser.parse_args()
    steps, runs = Findings("steps"), Findings("runs")
    group = Group()
    try:
        parts = [_steps(group, steps), _runs(group, runs)]
    finally:
        group.end()
    commits = ", ".join(sorted(steps.commits | runs.commits))
    versions = results.versions()
    about = ", ".join(
        f"{name} {versions[name]}"
        for name in ("torch", "transformers", "deepspeed")
        if name in versions
    )
    lines = [
        "# Shared work beside one process",
        "",
        f"Written by `make scale`: {RANKS} processes over gloo, {about}, commit {commits}.",
        "",
        *(line for _, part in parts for line in part),
    ]
    options.page.parent.mkdir(parents=True, exist_ok=True)
    options.page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(any(failed for failed, _ in parts))


def _steps(group: Group, findings: Findings) -> tuple[int, list[str]]:
    """Loss and every gradient of a step, by encoding and heads."""
    failed, worst = 0, dict[tuple[str, str], dict[str, list[float]]]()
    for case in _told(step_cases.PRODUCT):
        distance = max(
            findings.of(case, lambda case=case: group.run(step_cases.step, case)[0]).values()
        )
        failed += distance > step_cases.TOLERANCE
        worst.setdefault((case.encoding, case.heads), {}).setdefault(_short(case), []).append(
            distance
        )
    columns = list(dict.fromkeys(map(_short, step_cases.PRODUCT)))
    rows = [
        [
            encoding,
            heads,
            str(sum(map(len, found.values()))),
            *(f"{max(found[each]):.1e}" for each in columns),
        ]
        for (encoding, heads), found in worst.items()
    ]
    header = ["Encoding", "Heads", "Cases", *columns]
    return failed, [
        "## One step in fp64",
        "",
        "SP: so many processes share the tokens of each sequence; TP: every layer's heads and columns, and the "
        "vocabulary. The largest difference in the loss and in any gradient, relative to the largest entry of its "
        f"tensor, over sequences ({', '.join(step_cases.SEQUENCES)}) of 12 and 13 tokens, recomputed and not. "
        f"Tolerance {step_cases.TOLERANCE:.0e}: {_verdict(failed)}.",
        "",
        markdown_table(header, rows, "l"),
        "",
    ]


def _runs(group: Group, findings: Findings) -> tuple[int, list[str]]:
    """Twenty steps of the real trainer."""
    failed, worst = 0, dict[tuple[str, ...], list[dict[str, float]]]()
    with tempfile.TemporaryDirectory() as folder:
        alone = functools.cache(
            lambda plan: training_cases.train(tempfile.mkdtemp(dir=folder), plan)
        )
        for at, plan in enumerate(_told(training_cases.PRODUCT)):
            if at % RENEWED == 0:
                group.end()
            found = findings.of(plan, functools.partial(_run, group, plan, alone, folder))
            failed += any(found[name] > limit for name, limit in training_cases.TOLERANCE.items())
            kind = (plan.share, str(plan.stage), plan.encoding, plan.method)
            worst.setdefault(kind, []).append(found)
    rows = [
        [
            *kind,
            str(len(found)),
            *(f"{max(each[name] for each in found):.1e}" for name in training_cases.TOLERANCE),
        ]
        for kind, found in worst.items()
    ]
    limits = ", ".join(f"{name} {limit:.0e}" for name, limit in training_cases.TOLERANCE.items())
    header = ["Shared", "ZeRO", "Encoding", "Method", "Runs", "Losses", "Gradient norms", "Weights"]
    heads, savings = (", ".join(training_cases.DIMENSIONS[name]) for name in ("heads", "savings"))
    return failed, [
        f"## {training_cases.STEPS} steps of the trainer in fp32",
        "",
        "The largest relative difference at any step, and of the weights at the end, from one process without an "
        f"engine; each with heads {heads}, and savings {savings} (blocks computed again, their inputs moved away). "
        "Method lora: adapters, norms, embeddings and position updates, on PoSE's sequences; full: everything, on "
        f"packed sequences. Tolerances: {limits}: {_verdict(failed)}.",
        "",
        markdown_table(header, rows, "l"),
        "",
    ]


def _run(group: Group, plan: Plan, alone: Callable[[Plan], Any], folder: str) -> dict[str, float]:
    shared = group.run(training_cases.train, tempfile.mkdtemp(dir=folder), plan)[0]
    return training_cases.furthest(shared, alone(plan.numbers))


def _short(case: Case) -> str:
    return f"{case.kind[0].upper()}P={case.size}"


def _told(cases: Sequence[Any]) -> Iterator[Any]:
    for at, case in enumerate(cases):
        if at % 20 == 0:
            print(f"{at} of {len(cases)}: {case}", flush=True)
        yield case


def _verdict(failed: int) -> str:
    return f"**{failed} cases beyond it**" if failed else "all within it"


if __name__ == "__main__":
    sys.exit(main())
