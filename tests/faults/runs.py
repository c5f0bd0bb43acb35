"""The small run that faults are done to: its material, its settings, and what it leaves behind.

It is a few steps of a model of two or three layers, on two processes, over gloo: everything around the model (the
launcher, the engine, the data, checkpoints, resuming) is what a large run has.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from tape_ds import checkpoint, run_folder
from tests.integration.conftest import make_tiny

STEPS, SAVE_STEPS = 14, 4

Words = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """A way to train that a fault is done to: path of the launcher's script, and fields of the recipe."""

    name: str
    launcher: str
    words: Words


COMMON: Words = {
    "per_device_train_batch_size": 2,
    "max_steps": STEPS,
    "save_steps": SAVE_STEPS,
    "logging_steps": 1,
    "save_total_limit": 3,
    "learning_rate": 0.01,
    "weight_decay": 0.1,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 3,
    "report_to": "none",
    "window": 32,
}
NEW_MODEL: Words = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "position_encoding": "tape",
    "global_batch_size": 8,
    "bf16": "false",
}
SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            "streamed",
            "launchers/pretrain_c4.py",
            {
                **NEW_MODEL,
                "streaming": "true",
                "stream_workers": 4,
                "dataloader_num_workers": 1,
                "deepspeed": "zero1",
            },
        ),
        Setting(
            "pose",
            "launchers/extend_llama.py",
            {
                "target_length": 128,
                "pose_chunks": 2,
                "method": "tape+lora",
                "lora_dropout": 0.1,
                "global_batch_size": 4,
                "bf16": "true",
                "dataloader_num_workers": 1,
                "deepspeed": "zero3",
            },
        ),
        Setting(
            "packed",
            "launchers/pretrain_c4.py",
            {
                **NEW_MODEL,
                "num_key_value_heads": 2,
                "dataloader_num_workers": 2,
                "deepspeed": "zero2",
            },
        ),
    )
}


def material(workspace: Path) -> Path:
    """Texts, a tokenizer and a small Llama, made once in a workspace; returns their folder."""
    folder = workspace / "material"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        if not (folder / "whole").exists():
            make_tiny(folder)
            for number in range(8):
                lines = (
                    f"def function_{i}(value):\n    return value + {i * number}\n"
                    for i in range(40)
                )
                (folder / f"train{number}.txt").write_text("\n".join(lines))
            for launcher in {setting.launcher for setting in SETTINGS.values()}:
                name = Path(launcher).stem
                # everything is on the command line
                (folder / f"{name}.yaml").write_text(f"launcher: {name}\n")
            (folder / "whole").touch()
    return folder


def arguments(workspace: Path, setting: Setting, output: Path, **changed: Any) -> list[str]:
    """The command line of a run of ``setting``, some fields of the recipe changed (None: left out)."""
    folder = material(workspace)
    words = {
        "recipe": folder / f"{Path(setting.launcher).stem}.yaml",
        **COMMON,
        **(
            {"model": folder / "model"}
            if "extend" in setting.launcher
            else {"tokenizer": folder / "model"}
        ),
        "train_data": f"text:{folder}/train*.txt",
        "eval_data": "[]",
        "data_cache": workspace / "cache",
        **setting.words,
        "output_dir": output,
        **changed,
    }
    return [
        part
        for name, value in words.items()
        if value is not None
        for part in (f"--{name}", str(value))
    ]


def metrics(output: Path) -> list[tuple[Any, ...]]:
    """What does not depend on time, of each line of a run's metrics; None for what a line does not have."""
    names = ("step", "loss", "grad_norm", "learning_rate", "tokens", "skipped")
    return [tuple(line.get(name) for name in names) for line in _lines(output)]


def last_step(output: Path) -> int:
    """The last step in a run's metrics; 0 before the first."""
    return max((line["step"] for line in _lines(output)), default=0)


def _lines(output: Path) -> list[dict[str, Any]]:
    """Whole lines: the last one may be half written."""
    file = output / run_folder.METRICS
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def digests(folder: Path, pattern: str = "**/*") -> dict[str, str]:
    """SHA-256 of every file below ``folder``, by its path there."""
    files = sorted(
        path for path in folder.glob(pattern) if path.is_file() and not path.is_symlink()
    )
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def newest(output: Path) -> int:
    """Step of the newest committed checkpoint; 0 where there is none."""
    return max((checkpoint.step_of(folder) for folder in checkpoint.committed(output)), default=0)


def assert_whole(output: Path) -> None:
    """Every committed checkpoint is what its manifest says."""
    for folder in checkpoint.committed(output):
        manifest = checkpoint.read(folder)
        wrong = checkpoint.missing_files(folder, manifest) or checkpoint.corrupt_files(
            folder, manifest
        )
        assert not wrong, f"{folder.name}: {wrong}"


def assert_same(output: Path, original: Path) -> None:
    """A run learnt what the uninterrupted one learnt, to the last digit, step by step."""
    mine, other = metrics(output), metrics(original)
    differing = next((pair for pair in zip(mine, other, strict=False) if pair[0] != pair[1]), None)
    assert differing is None, f"(step, loss, grad_norm, learning_rate, tokens, skipped) {differing}"
    assert len(mine) == len(other), f"{len(mine)} lines of metrics instead of {len(other)}"
    weights = [
        digests(folder / run_folder.TRAINED, "*.safetensors") for folder in (output, original)
    ]
    assert weights[0] and weights[0] == weights[1], "the weights are others"
