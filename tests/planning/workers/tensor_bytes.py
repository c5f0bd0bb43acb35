"""Run by two ranks: trains two steps of each case with a real engine, and counts the tensors of the second.

Rank 0 writes one JSON: case -> bytes at the peak, and when nothing is going on.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import deepspeed
import torch
from accelerate.state import PartialState
from peft import LoraConfig, get_peft_model
from transformers import initialization as init

from tape_ds import TapeForCausalLM
from tape_ds.distributed.layout import Layout
from tape_ds.distributed.processes import leave_process_group
from tape_ds.distributed.tensor import use_tensor_parallelism
from tape_ds.distributed.ulysses import use_sequence_parallel
from tape_ds.methods.recompute import use_recompute
from tape_ds.methods.tiling import use_tiles
from tape_ds.training.environment import prepare_process
from tests.planning.cases import CASES, ENGINE, RANK, TARGETS, Case
from tests.planning.live_tensors import LiveTensors


def settings(case: Case) -> dict:
    shared = {"tensor_parallel": {"autotp_size": case.tensor}} if case.tensor > 1 else {}
    return shared | {
        "train_micro_batch_size_per_gpu": case.sequences,
        "gradient_accumulation_steps": case.accumulation,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": case.element == 2},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": case.zero,
            "overlap_comm": ENGINE.overlap,
            "reduce_bucket_size": ENGINE.reduce_bucket,
            "allgather_bucket_size": ENGINE.reduce_bucket,
            "stage3_prefetch_bucket_size": ENGINE.prefetch_bucket,
            "stage3_max_live_parameters": ENGINE.max_live,
            "stage3_max_reuse_distance": ENGINE.max_live,
            "stage3_param_persistence_threshold": ENGINE.persistence,
        },
    }


def model_of(case: Case) -> torch.nn.Module:
    """The case's model, of which its method's parameters are trained."""
    if case.zero == 3:  # as transformers makes and loads models under ZeRO-3
        with deepspeed.zero.Init(config_dict_or_path=settings(case)), init.no_init_weights():
            model = TapeForCausalLM(case.config())
        with torch.no_grad():
            for parameter in model.parameters():
                with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                    parameter.normal_(std=0.02)
    else:
        sixteen = case.element == 2 and case.zero is not None
        model = TapeForCausalLM(case.config()).to(torch.bfloat16 if sixteen else torch.float32)
    if case.layers_again is not None:
        use_recompute(model, case.layers_again)
    if case.tiles > 1:
        use_tiles(model, case.tiles)
    if case.method == "lora":
        norms = [name for name, _ in model.named_modules() if name.endswith("norm")]
        config = LoraConfig(
            r=RANK, target_modules=list(TARGETS), modules_to_save=norms, task_type="CAUSAL_LM"
        )
        return get_peft_model(model, config, autocast_adapter_dtype=False)
    if case.method == "frozen":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("norm" in name or ".position." in name)
    return model


def count(case: Case) -> dict[str, int]:
    with LiveTensors() as live:
        model = model_of(case).train()
        share(model, case)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
        train = (
            plainly(model, optimizer) if case.zero is None else by_engine(model, optimizer, case)
        )
        ids = torch.randint(1_000, (case.sequences, case.length))
        for _ in range(2):
            # gloo's threads let go of the last bucket a moment after its sum is there: 400,000 bytes, once in some runs
            time.sleep(0.2)
            gc.collect()
            live.begin_anew()
            idle = live.now
            train(ids)
        return {"peak": live.peak, "idle": idle}


def share(model: torch.nn.Module, case: Case) -> None:
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if case.sequence > 1:
        use_sequence_parallel(model, Layout(world, sequence=case.sequence), rank)
    if case.tensor > 1:
        use_tensor_parallelism(model, Layout(world, tensor=case.tensor), rank)


def by_engine(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, case: Case
) -> Callable[[torch.Tensor], None]:
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings(case))

    def train(ids: torch.Tensor) -> None:
        for _ in range(case.accumulation):
            loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
            engine.backward(loss)
            del loss
            engine.step()

    return train


def plainly(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[torch.Tensor], None]:
    """An optimizer step on fp32 weights, computed in bf16 by autocast."""

    def train(ids: torch.Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad()

    return train


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", required=True)
    options = parser.parse_args()
    prepare_process()
    PartialState(cpu=True)
    deepspeed.init_distributed("gloo")
    found = {}
    # zero.Init replaces torch's linear map for good
    for case in sorted(CASES, key=lambda each: each.zero or 0):
        if case.name in options.cases:
            found[case.name] = count(case)
            gc.collect()
    if torch.distributed.get_rank() == 0:
        options.output.write_text(json.dumps(found))
    leave_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
