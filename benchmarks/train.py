"""Train three steps with DeepSpeed and resume, by the launcher: layers of 7B's width with random weights, 8k packed.

    python -m benchmarks.train --work /tmp/campaign --out runs/campaign/campaign_1.jsonl

A checkpoint is saved after two steps, and the third is made again from it: its loss has to be the same number.
"""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import table
from benchmarks.models import LLAMA_2_7B, TINY
from tape_ds.arguments import Parser
from tape_ds.data import tokenizer
from tape_ds.installation import environment
from tools.experiment.runs import Starting

STEPS = 3
SAVED = 2
# tokens of the text; a model may have embeddings for more
VOCABULARY = 400
FIELDS = {
    "recipe": "llama2_7b_8k",
    "train_data": "stdlib:typing.py",
    "eval_data": "stdlib:argparse.py",
    "deepspeed": "zero1",
    "activation_checkpointing": True,
    "per_device_train_batch_size": 1,
    "global_batch_size": 1,
    "warmup_steps": 0,
    "logging_steps": 1,
    "max_steps": STEPS,
    "save_steps": SAVED,
    "save_total_limit": 2,
}
TOY_FIELDS = {"target_length": 128, "window": 128, "eval_span": 32, "bf16": False}
TOY_FIELDS |= {"rope_parameters.original_max_position_embeddings": 64}


def main() -> int:
    """Make the model, train, resume, store; return the exit code of a launcher that failed."""
    parser = Parser(prog="python -m benchmarks.train", description=__doc__)
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of the model and of the run"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="file of lines that the steps are added to"
    )
    parser.add_argument("--toys", action="store_true", help="a toy, on a CPU")
    options = parser.parse_args()
    model = options.work / ("toy" if options.toys else "model")
    run = options.work / "run"
    # a Llama with random weights, and a small tokenizer; complete or not at all
    if not model.exists():
        # two layers of 7B show all that a step does
        sizes: dict[str, Any] = LLAMA_2_7B | {"num_hidden_layers": 2}
        if options.toys:
            sizes = TINY | {"vocab_size": VOCABULARY}
        aside = model.with_name(f"{model.name}.part")
        shutil.rmtree(aside, ignore_errors=True)
        tokenizer.train(["stdlib:typing.py"], VOCABULARY, aside)
        torch.manual_seed(0)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            LlamaForCausalLM(LlamaConfig(**sizes)).to(torch.bfloat16).save_pretrained(aside)
        aside.rename(model)

    fields: dict[str, Any] = FIELDS | {
        "model": model,
        "data_cache": options.work / "data",
        "output_dir": run,
    }
    variables = environment()
    if options.toys:
        fields |= TOY_FIELDS
        variables["DS_ACCELERATOR"] = "cpu"
    # of an earlier try
    shutil.rmtree(run, ignore_errors=True)
    losses = []
    for name, more in (("trained", {}), ("resumed", {"resume": run / f"checkpoint-{SAVED}"})):
        words = ["launch", "launchers/extend_llama.py"]
        for field, value in (fields | more).items():
            words += [f"--{field}", str(value)]
        command = Starting(1, "deepspeed --num_accelerators 1").line(words)
        code = subprocess.run(command, env=variables).returncode
        if code != 0:
            return code
        metrics = (run / "metrics.jsonl").read_text(encoding="utf-8")
        steps = list(map(json.loads, metrics.splitlines()))
        table.append({"train": name, "steps": steps}, options.out)
        losses.append(next(x["loss"] for x in reversed(steps) if x["step"] == STEPS))
    print(f"loss of step {STEPS}: {losses[0]:.6f} trained, {losses[1]:.6f} resumed")
    if math.isfinite(losses[0]) and losses[0] == losses[1]:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
