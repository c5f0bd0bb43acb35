"""The campaigns' table for people, and the same as a stored result."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tape_ds import results, storage
from tape_ds.markdown_table import markdown_table
from tape_ds.results import Result
from tests.faults.campaign import Campaign, Outcome
from tests.processes import ROOT

PAGE = ROOT / "docs" / "results" / "faults.md"
INTRODUCTION = (
    "A small training job (a model of two layers, 14 steps, a checkpoint every 4, two processes over gloo, streamed, "
    "packed and PoSE sequences, ZeRO 1 to 3, loader workers running) is killed, starved, corrupted and lied to on "
    "purpose. Every attempt is decided by its number and the seed, so any of them can be made again by itself. "
    "`make faults` makes them all and writes this page; a seeded part of them belongs to `make test`."
)
_SHOWN = 300


def write(
    done: Mapping[str, Sequence[Outcome]], campaigns: Mapping[str, Campaign], started: Result, page: Path
) -> None:
    """Write the page, and beside it ``faults/faults.json``.

    Args:
        done: the outcomes of each campaign, by its name.
        campaigns: those that were asked for, in the order of the table.
        started: collected when the campaigns began.
        page: where it goes.
    """
    finished = started.finish({"campaigns": {name: _figures(campaigns[name], of) for name, of in done.items()}})
    results.save(finished, page.with_suffix("") / "faults.json")
    storage.write_text(page, text(done, campaigns, finished))


def _figures(campaign: Campaign, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "planned": campaign.count,
        "tries": len(outcomes),
        "survived": sum(outcome.survived for outcome in outcomes),
        "seconds": round(sum(outcome.seconds for outcome in outcomes)),
        "failures": [_failure(outcome) for outcome in outcomes if not outcome.survived],
    }


def _failure(outcome: Outcome) -> dict[str, Any]:
    return {"number": outcome.number, "what": outcome.what, "detail": _short(outcome.detail), "again": outcome.again}


def _short(detail: str) -> str:
    """What a failure shows, in a line; folders of the machine that met it left out."""
    line = re.sub(r"/\S+/(attempts|references|material)/", r"\1/", " ".join(detail.split()))
    return line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."


def text(done: Mapping[str, Sequence[Outcome]], campaigns: Mapping[str, Campaign], result: Result) -> str:
    """The page in Markdown."""
    rows = []
    for name, outcomes in done.items():
        survived, minutes = sum(o.survived for o in outcomes), sum(o.seconds for o in outcomes) / 60
        planned = campaigns[name].count
        tries = f"{len(outcomes)}" + (f" of {planned}" if len(outcomes) != planned else "")
        rows.append([name, tries, str(survived), f"{minutes:.0f}"])
    table = markdown_table(["fault", "tries", "survived", "minutes"], rows)
    meanings = [f"- **{name}**: {campaigns[name].means}" for name in done]
    parts = ["# Faults: what was tried, and what survived", INTRODUCTION, table, _about(result)]
    return "\n\n".join([*parts, "## What a row means", "\n".join(meanings), "## Failures", _failures(done)]) + "\n"


def _about(result: Result) -> str:
    hardware, commit = result.hardware, result.commit or {}
    packages = ("python", "torch", "deepspeed", "transformers")
    versions = ", ".join(f"{name} {result.versions[name]}" for name in packages if name in result.versions)
    state = ", with changes" if commit.get("dirty") else ""
    return (
        f"Command: `make faults`. Seed {result.seed}. {hardware['cpu']}, {hardware['cores']} cores, "
        f"{storage.size(hardware['memory_bytes'])} of memory, no GPU. {versions}; commit "
        f"{str(commit.get('hash', 'none'))[:12]}{state}. {result.started} to {result.finished}. The same as data, with "
        "every failure: [json](faults/faults.json)."
    )


def _failures(done: Mapping[str, Sequence[Outcome]]) -> str:
    failures = [outcome for outcomes in done.values() for outcome in outcomes if not outcome.survived]
    if not failures:
        return "None."
    return "\n".join(f"- `{each.again}`: {_short(each.what)}. {_short(each.detail)}" for each in failures)
