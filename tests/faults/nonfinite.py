"""NaN on rank 1 alone, at every ZeRO stage: rank 0 says so, the step is left out and counted, too many stop the run."""

import json
from pathlib import Path

from tape_ds import checkpoint, run_folder
from tape_ds.exit_codes import ExitCode
from tests.faults import jobs, runs
from tests.faults.campaign import Attempt, Campaign
from tests.faults.runs import SETTINGS

LIMIT = 3
ONCE = 3
"""The step whose numbers are broken alone; a run of broken ones begins at :data:`ENDING`."""
ENDING = 6


def _execute(attempt: Attempt) -> None:
    number = attempt.number
    stage, bf16, what = number % 4, bool(number // 4 % 2), ("loss", "gradient")[number // 8 % 2]
    setting, output = SETTINGS["packed"], attempt.folder / "run"
    precision = "bf16" if bf16 else "fp32"
    attempt.what = f"ZeRO-{stage}, {precision}: the {what} of rank 1 is NaN"
    steps = [ONCE, *range(ENDING, ENDING + LIMIT + 2)]
    fault = {"act": "nan", "rank": 1, "what": what, "steps": steps}
    changed = {
        "deepspeed": json.dumps({"zero_optimization": {"stage": stage}, "optimizer": OPTIMIZER}),
        "bf16": str(bf16).lower(),
        "nonfinite_limit": LIMIT,
        "save_steps": 1,
        "save_total_limit": 1,
    }
    with jobs.fork(attempt.workspace, setting, output, fault=fault, **changed) as job:
        code = job.wait()
        printed = job.printed
    attempt.seen.append(f"exit {code} at step {runs.last_step(output)}")
    assert code == ExitCode.GUARD, f"it ended with {code}\n{printed[-4000:]}"
    assert f"step {ONCE + 1}:" in printed and "SKIPPED" in printed, printed[-3000:]
    assert what == "gradient" or "rank 1" in printed, f"the rank is not named\n{printed[-3000:]}"
    skipped = {line[0]: line[-1] for line in runs.metrics(output)}
    assert skipped[ONCE] == 0 and skipped[ONCE + 1] == 1, f"skipped, by step: {skipped}"
    reports = [
        json.loads(line) for line in (output / run_folder.NONFINITE).read_text().splitlines()
    ]
    assert [each["step"] for each in reports] == [
        ONCE + 1,
        *range(ENDING + 1, ENDING + 1 + LIMIT),
    ], reports
    assert all(each["kind"] == what and each["samples"] for each in reports), reports
    _assert_finite(output)


OPTIMIZER = {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}}


def _assert_finite(output: Path) -> None:
    """The newest checkpoint, saved when numbers had been broken already, holds none that are."""
    import torch
    from safetensors.torch import load_file

    folder = checkpoint.committed(output)[-1]
    assert checkpoint.step_of(folder) > ONCE
    for file in folder.glob("*.safetensors"):
        broken = [
            name
            for name, tensor in load_file(file).items()
            if not torch.isfinite(tensor.float()).all()
        ]
        assert not broken, f"{folder.name}/{file.name}: {broken}"


CAMPAIGN = Campaign(
    "nonfinite",
    count=16,
    daily=1,
    means="The loss or the gradient is NaN on rank 1 alone, at ZeRO stages 0 to 3, fp32 and bf16: said on rank 0, the "
    "step left out and counted in the metrics, its samples stored, the weights finite; after 3 in a row the run stops "
    "with exit code 3.",
    execute=_execute,
)
