"""Make every attempt of the fault campaigns, and write the table.

    python -m tests.faults                                the full counts; docs/results/faults.md at the end
    python -m tests.faults --only kills damages           some campaigns
    python -m tests.faults --only kills --number 17       one attempt again; its folder is kept if it fails
    python -m tests.faults --count 5                      the first few of each

It can be killed at any moment and started again: what was survived is in the workspace's journal and is not made
again. Exit codes: 0 all survived; 1 some did not.
"""

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path

from tape_ds import results
from tests.faults import report
from tests.faults.campaign import Campaign, Outcome
from tests.faults.campaigns import ALL
from tests.journal import Journal
from tests.processes import ROOT


def main(argv: list[str] | None = None) -> int:
    """Make what is asked for and not done yet."""
    options = parse(argv)
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "DS_ACCELERATOR": "cpu",
    }
    workspace = options.workspace.resolve()
    journal = Journal(workspace / "journal.jsonl")
    started = results.collect(command=["make", "faults"], seed=options.seed, processes=2)
    known = {
        (line["fault"], line["seed"], line["number"]): Outcome(**line) for line in journal.lines
    }
    done: dict[str, list[Outcome]] = {}
    for name in options.only:
        done[name] = []
        for number in _numbers(ALL[name], options):
            outcome = known.get((name, options.seed, number))
            if options.number is not None or outcome is None or not outcome.survived:
                outcome = ALL[name].attempt(number, options.seed, workspace)
                journal.add(asdict(outcome))
                end = "survived" if outcome.survived else "FAILED"
                print(
                    f"{name} {number}: {end} in {outcome.seconds:.0f} s: {outcome.what}:",
                    outcome.detail,
                    flush=True,
                )
            done[name].append(outcome)
    if options.number is None and options.count is None and set(options.only) == set(ALL):
        report.write(done, ALL, started, options.page)
        print(f"written: {options.page}")
    failed = [outcome for outcomes in done.values() for outcome in outcomes if not outcome.survived]
    for outcome in failed:
        print(f"again: {outcome.again}")
    return 1 if failed else 0


def _numbers(campaign: Campaign, options: argparse.Namespace) -> list[int]:
    if options.number is not None:
        return [options.number]
    return list(range(min(campaign.count, options.count or campaign.count)))


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(ALL), default=list(ALL))
    parser.add_argument("--number", type=int, help="this attempt alone, also where it is done")
    parser.add_argument("--count", type=int, help="this many of each at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workspace", type=Path, default=ROOT / ".cache" / "faults")
    parser.add_argument("--page", type=Path, default=report.PAGE, help="where the table goes")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
