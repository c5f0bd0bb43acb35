"""Runs whose numbers are frozen: ten steps of every launcher in fp32, however the work is shared.

Whatever changes between the command and the step, the numbers are those of ``tests/assets/runs/losses.json``:

    python -m tests.integration.freeze_losses --check              # every run as a user launches it, to the last digit
    python -m tests.integration.freeze_losses                      # freeze what they give now
    python -m tests.integration.freeze_losses pretrain_c4-zero3    # this one alone

Freezing anew needs a reason in its commit: it says that the mathematics, the data or the initial weights changed.
"""

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.integration.conftest import ROOT, Ended, launch, make_answers, make_tiny

FILE = ROOT / "tests" / "assets" / "runs" / "losses.json"
SHARING: dict[str, tuple[int, dict[str, Any]]] = {
    "null": (1, {"deepspeed": "null", "use_cpu": "true"}),
    "zero1": (2, {"deepspeed": "zero1"}),
    "zero2": (2, {"deepspeed": "zero2"}),
    "zero3": (2, {"deepspeed": "zero3"}),
    "sequence": (2, {"deepspeed": "zero2", "sequence_parallel_size": 2}),
    "tensor": (2, {"deepspeed": "zero1", "tensor_parallel_size": 2}),
}
"""Processes and fields by what they share: nothing (and no engine), ZeRO's shards, the tokens of a sequence, the
layers."""
TOLERANCE = {"losses": 2e-6, "grad_norms": 2e-5, "weights": 2e-5}
"""Relative, where sums are taken in another order: by another CPU, another torch, or other processes. Of a weight, to
the sum of its numbers' sizes. Kernels for CPUs without AVX-512, or without AVX at all, and other ways to
share leave a tenth of each."""
SAVED = 5
"""Step of the checkpoint half way."""

COMMON = {
    "max_steps": 10,
    "logging_steps": 1,
    "save_steps": SAVED,
    "save_total_limit": 2,
    "global_batch_size": 8,
    "per_device_train_batch_size": 2,
    "learning_rate": 0.01,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 2,
    "weight_decay": 0.1,
    "bf16": "false",
    "report_to": "none",
}
NEW_MODEL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "position_encoding": "tape",
    "position_learning_rate": "2x",
}
LAUNCHERS: dict[str, dict[str, Any]] = {
    "extend_llama": {
        "model": "{material}/model",
        "target_length": 128,
        "rope_parameters.rope_type": "yarn",
        "rope_parameters.factor": 2.0,
        "rope_parameters.original_max_position_embeddings": 64,
        "train_data": "text:{material}/text.txt",
        "eval_data": "[]",
        "data_cache": "{material}/cache",
        "window": 32,
        "pose_chunks": 2,
        "method": "tape+lora",
        "lora_dropout": 0.0,  # each rank draws its own, so that engines would differ
        "activation_checkpointing": "true",
    },
    "pretrain_c4": {
        **NEW_MODEL,
        "tokenizer": "{material}/model",
        "train_data": "text:{material}/text.txt",
        "eval_data": "[]",
        "data_cache": "{material}/cache",
        "window": 32,
        "streaming": "true",
        "stream_workers": 4,
    },
    "finetune_scrolls": {
        "model": "{material}/model",
        "dataset": "quality",
        "data_dir": "{material}",
        "data_cache": "{material}/cache",
        "max_tokens": 96,
        "answer_tokens": 20,
        "force": "true",  # sequences are longer than the model was made for
        "eval_examples": 0,
    },
    "train_generated": {**NEW_MODEL, "task": "addition", "max_digits": 2, "held_out_samples": 8},
}
NAMES = [f"{launcher}-{sharing}" for launcher in LAUNCHERS for sharing in SHARING]

Start = Callable[..., Ended]
"""``launch`` or ``forked`` of the conftest."""
Run = dict[str, Any]
"""``losses`` and ``grad_norms`` of the steps, ``weights`` (name -> two sums of its numbers), their ``sha256``."""


def make_material(folder: Path) -> Path:
    """Write the model, the texts and the recipes that the runs share; returns the folder. The recipes say nothing, so
    that no launcher's own has a say in the numbers."""
    make_answers(make_tiny(folder))
    for launcher in LAUNCHERS:
        (folder / f"{launcher}.yaml").write_text(f"launcher: {launcher}\n")
    return folder


def run(name: str, material: Path, output: Path, start: Start, **changed: Any) -> Run:
    """Train in ``output``, by the launcher's command line, some fields changed; returns what was found.

    Raises:
        AssertionError: it failed.
    """
    launcher, _, sharing = name.rpartition("-")
    processes, shared = SHARING[sharing]
    words = {
        "recipe": material / f"{launcher}.yaml",
        **COMMON,
        **LAUNCHERS[launcher],
        **shared,
        "output_dir": output,
        **changed,
    }
    line = [
        part
        for key, value in words.items()
        for part in (f"--{key}", str(value).format(material=material))
    ]
    ended = start(f"launchers/{launcher}.py", *line, processes=processes)
    assert ended.code == 0, f"{name}: {ended.output[-4000:]}"
    return found_in(output)


def found_in(output: Path) -> Run:
    """What a run left behind, as it is frozen."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    weights = weights_in(output / "trained")
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].contiguous().numpy().tobytes())
    return {
        "losses": [line["loss"] for line in lines],
        "grad_norms": [line["grad_norm"] for line in lines],
        "weights": {name: sums(weights[name]) for name in sorted(weights)},
        "sha256": digest.hexdigest(),
    }


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder of trained weights."""
    return {
        name: weight
        for file in folder.glob("*.safetensors")
        for name, weight in load_file(file).items()
    }


def sums(weight: torch.Tensor) -> list[float]:
    """Of sizes, and of the numbers by their place: a piece that is lost, or in another's place, changes one of them."""
    flat = weight.double().flatten()
    places = torch.linspace(-1, 1, flat.numel(), dtype=torch.float64)
    return [float(f"{total:.9g}") for total in (flat.abs().sum().item(), (flat @ places).item())]


def differences(found: Run, frozen: Run, exact: bool) -> list[str]:
    """A line for each thing that is not as it was; ``exact``: to the last digit, else by :data:`TOLERANCE`."""
    allowed = dict.fromkeys(TOLERANCE, 0.0) if exact else TOLERANCE
    wrong = []
    for kind in ("losses", "grad_norms"):
        if len(found[kind]) != len(frozen[kind]):
            wrong.append(f"{kind}: of {len(found[kind])} steps, were of {len(frozen[kind])}")
        for step, (now, was) in enumerate(zip(found[kind], frozen[kind], strict=False), 1):
            if not abs(now - was) <= allowed[kind] * abs(was):  # NaN is no number that was frozen
                wrong.append(f"{kind}: step {step} has {now!r}, had {was!r} ({now / was - 1:.1e})")
    if other := found["weights"].keys() ^ frozen["weights"].keys():
        wrong.append(f"weights: of other names, {sorted(other)}")
    for name in sorted(found["weights"].keys() & frozen["weights"].keys()):
        now, was = found["weights"][name], frozen["weights"][name]
        if not all(
            abs(a - b) <= allowed["weights"] * was[0] for a, b in zip(now, was, strict=True)
        ):
            wrong.append(f"weights: {name} has sums {now}, had {was}")
    if exact and found["sha256"] != frozen["sha256"]:
        wrong.append("weights: other bytes")
    return wrong


def machine() -> dict[str, str]:
    """What decides how sums are rounded: torch's build, the CPU by which its libraries choose their code, and variables
    by which they choose another."""
    file = Path("/proc/cpuinfo")
    cpu = (
        dict(re.findall(r"^([\w ]+?)\s*: (.*)$", file.read_text(), re.MULTILINE))
        if file.exists()
        else {}
    )
    kept = {
        name: cpu.get(name, "unknown")
        for name in ("vendor_id", "cpu family", "model", "model name", "flags")
    }
    limits = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("MKL_", "ONEDNN_", "DNNL_"))
    }
    return {
        "torch": torch.__version__,
        "vectors": torch.backends.cpu.get_cpu_capability(),
        **kept,
        **limits,
    }


def load() -> tuple[dict[str, str], dict[str, Run]]:
    """(machine that the runs were frozen on, the runs by name)."""
    kept = json.loads(FILE.read_text())
    return kept["machine"], kept["runs"]


def save(runs: Mapping[str, Run]) -> None:
    """Freeze runs of this machine, a line for each list of numbers."""
    text = json.dumps(
        {"machine": machine(), "runs": {name: runs[name] for name in NAMES if name in runs}},
        indent=1,
    )
    text = re.sub(r"\[[^][]*\]", lambda numbers: json.dumps(json.loads(numbers[0])), text)
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text + "\n")


def main(words: list[str] | None = None) -> int:
    """The command; 1 where ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="run", help=f"of {', '.join(NAMES)}; all where none is named"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare to the last digit, and freeze nothing"
    )
    given = parser.parse_args(words)
    if unknown := set(given.names) - set(NAMES):
        parser.error(f"unknown run {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    made_on, frozen = load() if FILE.exists() else (machine(), {})
    if not given.check and made_on != machine() and given.names:
        parser.error("the other runs were frozen on another machine; freeze all of them")
    found, differing = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        material = make_material(Path(folder))
        for name in given.names or NAMES:
            found[name] = run(name, material, Path(folder) / name, launch)
            wrong = (
                differences(found[name], frozen[name], exact=True)
                if name in frozen
                else ["not frozen yet"]
            )
            differing += bool(wrong)
            print(f"{name}:", *(wrong or ["as frozen"]), sep="\n    ", flush=True)
    if not given.check:
        save(frozen | found)
    return int(given.check and differing > 0)


if __name__ == "__main__":
    sys.exit(main())
