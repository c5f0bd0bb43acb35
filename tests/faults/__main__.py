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
from pathlib import Path

from tape_ds import results
from tape_ds.errors import did_you_mean
from tests.faults import report
from tests.faults.campaign import Campaign
from tests.faults.campaigns import ALL
from tests.faults.journal import Journal
from tests.processes import ROOT


def main(argv: list[str] | None = None) -> int:
    """Make what is asked for and not done yet."""
    options = parse(argv)
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "DS_ACCELERATOR": "cpu"}
    chosen = {name: ALL[name] for name in options.only}
    workspace = options.workspace.resolve()
    journal = Journal(workspace / "journal.jsonl")
    started = results.collect(command=["make", "faults"], seed=options.seed, processes=2)
    numbers = {name: _numbers(campaign, options) for name, campaign in chosen.items()}
    for name, campaign in chosen.items():
        for number in numbers[name]:
            if options.number is None and journal.survived(name, options.seed, number):
                continue
            outcome = campaign.attempt(number, options.seed, workspace)
            journal.add(outcome)
            end = "survived" if outcome.survived else "FAILED"
            print(f"{name} {number}: {end} in {outcome.seconds:.0f} s: {outcome.what}: {outcome.detail}", flush=True)
    done = {
        name: [outcome for outcome in journal.outcomes(name, options.seed) if outcome.number in numbers[name]]
        for name in chosen
    }
    if options.number is None and options.count is None and set(chosen) == set(ALL):
        report.write(done, chosen, started, options.page)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=list(ALL), help=f"of: {', '.join(ALL)}")
    parser.add_argument("--number", type=int, help="this attempt alone, also where it is done")
    parser.add_argument("--count", type=int, help="this many of each at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workspace", type=Path, default=ROOT / ".cache" / "faults")
    parser.add_argument("--page", type=Path, default=report.PAGE, help="where the table goes")
    options = parser.parse_args(argv)
    for name in options.only:
        if name not in ALL:
            parser.error(f"no campaign {name!r}: {did_you_mean(name, ALL)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
