"""What a comparison writes: one result with all rows, and tables of it for people (md) and for programs (csv)."""

import csv
import io
import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tape_ds import results, storage
from tape_ds.training.comparison.runs import Planned


def collect(command: Sequence[str], found: Sequence[results.Result]) -> results.Result:
    """The comparison's own record, begun: of its complete runs (``found``), what they have in common. Runs of several
    seeds have none."""
    first = found[0]
    seeds = {each.seed for each in found}
    differing = {"output_dir", "resume_from_checkpoint", *differences(found)}
    return results.collect(
        command=command,
        seed=first.seed if len(seeds) == 1 else None,
        config={name: value for name, value in first.config.items() if name not in differing},
        data=first.data,
        processes=first.hardware["processes"],
    )


def differences(found: Sequence[results.Result]) -> list[str]:
    """Fields of the configuration, folders aside, that are not the same in all results."""
    names = {name for result in found for name in result.config} - {"output_dir", "resume_from_checkpoint"}
    missing = object()
    return sorted(
        name for name in names if any(r.config.get(name, missing) != found[0].config.get(name, missing) for r in found)
    )


def write(summary: results.Result, folder: Path, name: str, text: str, table: str) -> None:
    """``name``.json, .md (``text``) and .csv (``table``) in ``folder``, each complete or as it was before."""
    results.save(summary, folder / f"{name}.json")
    storage.write_text(folder / f"{name}.md", text)
    storage.write_text(folder / f"{name}.csv", table)


def as_csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table for programs; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([header, *rows])
    return text.getvalue()


def provenance(summary: results.Result, tool: str) -> str:
    """One line: the command, the seeds, the machine and when."""
    seeds = summary.figures.get("comparison", {}).get("seeds") or [summary.seed]
    told = f"Seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    machine = summary.hardware
    gpus = ", ".join(gpu["name"] for gpu in machine["gpus"]) or "no GPU"
    where = f"{machine['cpu']}, {machine['cores']} cores, {gpus}, {machine['processes']} processes a run"
    asked = shlex.join(["python", tool, *summary.command[1:]])
    return f"Command: `{asked}`. {told}. {where}. torch {summary.versions['torch']}, {summary.finished}."


def seconds(result: results.Result) -> float:
    """From the run's start to its end, scoring included; of a resumed run, of its last part."""
    assert result.finished is not None, "only complete runs are compared"
    return (datetime.fromisoformat(result.finished) - datetime.fromisoformat(result.started)).total_seconds()


def row(title: str, run: Planned, result: results.Result) -> dict[str, Any]:
    """What the row of every run has; ``title`` is what an arm is called."""
    own = {title: run.arm, "seed": run.seed, "again": run.again}
    return own | {"seconds": seconds(result), "commit": result.commit}


def last_loss(result: results.Result) -> float | None:
    """The training loss that was logged last; None where a run had fewer steps than ``logging_steps``."""
    logged = result.figures["train_loss"]
    return float(logged[-1]["loss"]) if logged else None
