"""Twenty real steps of DeepSpeed at 7B's shape, packed: the recipe ``llama2_7b_8k`` on a checkpoint of random weights.

    python -m benchmarks.train --work /tmp/campaign --out benchmarks/results --backend varlen

The checkpoint is made in ``--work`` when it is not there. Tokens a second, memory and losses of every step are stored.
"""

import json
import math
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import table
from benchmarks.models import LLAMA_2_7B
from benchmarks.toys import TINY
from tape_ds import results
from tape_ds.arguments import Parser
from tape_ds.data import tokenizer
from tape_ds.installation import environment
from tools.experiment.runs import Starting

STEPS, TOY_STEPS = 20, 2
VOCABULARY = 400
"""Tokens of the text; a model may have embeddings for more."""
SETTLED = 5
"""Steps until the rate is steady."""
FIELDS = {
    "train_data": "stdlib",
    "eval_data": "stdlib:this.py",
    "deepspeed": "zero1",
    "activation_checkpointing": True,
    "per_device_train_batch_size": 1,
    "global_batch_size": 1,
    "warmup_steps": 0,
    "logging_steps": 1,
    "save_strategy": "no",
}
TOY_FIELDS = {"train_data": "stdlib:typing.py", "target_length": 128, "window": 128, "eval_span": 32, "bf16": False}
TOY_FIELDS |= {"rope_parameters.original_max_position_embeddings": 64}


def main() -> int:
    """Make the checkpoint, train, store."""
    parser = Parser(prog="python -m benchmarks.train", description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of the checkpoint and of the run")
    parser.add_argument("--out", type=Path, required=True, help="folder of the result")
    parser.add_argument("--backend", required=True, help="attention backend")
    parser.add_argument("--toys", action="store_true", help="a toy, two steps, on a CPU")
    options = parser.parse_args()
    device = torch.device("cpu" if options.toys else "cuda")
    folder = options.work / "checkpoint"
    if not (folder / "config.json").exists():
        make_checkpoint(folder, TINY | {"vocab_size": VOCABULARY} if options.toys else LLAMA_2_7B, device)
    run = options.work / f"train_{options.backend}"
    fields: dict[str, Any] = {"recipe": "llama2_7b_8k", "model": folder, **FIELDS, "data_cache": options.work / "data"}
    fields |= {"attention_backend": options.backend, "output_dir": run}
    fields |= TOY_FIELDS | {"max_steps": TOY_STEPS} if options.toys else {"max_steps": STEPS}
    shutil.rmtree(run, ignore_errors=True)  # of an earlier try
    started = results.collect(command=["benchmarks.train", "--backend", options.backend], config=fields)
    words = [word for name, value in fields.items() for word in (f"--{name}", str(value))]
    own = environment() | ({"DS_ACCELERATOR": "cpu"} if options.toys else {})
    command = Starting(1, "deepspeed --num_accelerators 1").line(["launch", "launchers/extend_llama.py", *words])
    code = subprocess.run(command, env=own).returncode
    if code != 0:
        return code
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rate = statistics.median(each["tokens_per_second"] for each in steps[min(SETTLED, len(steps) - 1) :])
    name = f"{table.stem('train', device)}_{options.backend}.json"
    results.save(started.finish({"tokens_per_second": rate, "steps": steps}), options.out / name)
    print(f"{options.backend}: {rate:,.0f} tokens/s, loss {steps[0]['loss']:.3f} -> {steps[-1]['loss']:.3f}")
    return 0 if all(math.isfinite(each["loss"]) for each in steps) else 1


def make_checkpoint(folder: Path, sizes: dict[str, Any], device: torch.device) -> None:
    """A Llama of these sizes with random weights in bf16, and a tokenizer of little more than bytes."""
    tokenizer.train(["stdlib:typing.py"], VOCABULARY, folder)
    torch.manual_seed(0)
    with device:
        model = LlamaForCausalLM(LlamaConfig(**sizes, torch_dtype="bfloat16")).to(torch.bfloat16)
    model.save_pretrained(folder)


if __name__ == "__main__":
    sys.exit(main())
