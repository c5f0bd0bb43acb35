"""The campaigns' table for people, and the same as a stored result."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tape_ds import results, storage
from tape_ds.markdown_table import markdown_table
from tape_ds.results import Result
from tests.faults.campaign import Campaign, Outcome
from tests.processes import ROOT

PAGE = ROOT / "docs" / "results" / "faults.md"
INTRODUCTION = (
    "A small training job (a model of two or three layers, 14 steps, a checkpoint every 4, two processes over gloo, "
    "streamed, packed and PoSE sequences, ZeRO 1 to 3, loader workers running) is killed, starved, corrupted and lied "
    "to on purpose. Every attempt is decided by its number and the seed, so any of them can be made again by itself. "
    "`make faults` makes them all and writes this page; a seeded part of them belongs to `make test`."
)


def write(
    done: Mapping[str, Sequence[Outcome]],
    campaigns: Mapping[str, Campaign],
    started: Result,
    page: Path,
) -> None:
    """Write the page, and next to it ``faults/faults.json``.

    Args:
        done: the outcomes of each campaign, by its name.
        campaigns: all of them.
        started: collected when the campaigns began.
        page: where it goes.
    """
    figures, rows, failures = {}, [], []
    for name, outcomes in done.items():
        failed = [_failure(outcome) for outcome in outcomes if not outcome.survived]
        planned, tries, seconds = (
            campaigns[name].count,
            len(outcomes),
            sum(outcome.seconds for outcome in outcomes),
        )
        figures[name] = {
            "planned": planned,
            "tries": tries,
            "survived": tries - len(failed),
            "failures": failed,
        }
        figures[name]["seconds"] = round(seconds)
        of = "" if tries == planned else f" of {planned}"
        rows.append([name, f"{tries}{of}", str(tries - len(failed)), f"{seconds / 60:.0f}"])
        failures += [f"- `{each['again']}`: {each['what']}. {each['detail']}" for each in failed]
    finished = started.finish({"campaigns": figures})
    results.save(finished, page.with_suffix("") / "faults.json")
    table = markdown_table(["fault", "tries", "survived", "minutes"], rows)
    meanings = [f"- **{name}**: {campaigns[name].means}" for name in done]
    parts = ["# Faults: what was tried, and what survived", INTRODUCTION, table, _about(finished)]
    parts += [
        "## What a row means",
        "\n".join(meanings),
        "## Failures",
        "\n".join(failures) or "None.",
    ]
    storage.write_text(page, "\n\n".join(parts) + "\n")


def _failure(outcome: Outcome) -> dict[str, str]:
    """An attempt in a line, without folders of the machine that made it."""
    detail = re.sub(
        r"/\S+/(attempts|references|material)/", r"\1/", " ".join(outcome.detail.split())
    )
    return {
        "what": " ".join(outcome.what.split())[:300],
        "detail": detail[:300],
        "again": outcome.again,
    }


def _about(result: Result) -> str:
    hardware, commit = result.hardware, result.commit or {}
    packages = ("python", "torch", "deepspeed", "transformers")
    versions = ", ".join(
        f"{name} {result.versions[name]}" for name in packages if name in result.versions
    )
    state = ", with changes" if commit.get("dirty") else ""
    return (
        f"Command: `make faults`. Seed {result.seed}. {hardware['cpu']}, {hardware['cores']} cores, "
        f"{storage.size(hardware['memory_bytes'])} of memory, no GPU. {versions}; commit "
        f"{str(commit.get('hash', 'none'))[:12]}{state}. {result.started} to {result.finished}. The same as data, with "
        "every failure: [json](faults/faults.json)."
    )
