"""Loading an engine from the shards of another number of ranks, or of another ZeRO stage.

DeepSpeed refuses such shards although they hold the same numbers: an fp32 weight and the optimizer's values for each
trained element. So every rank reads one parameter after another from the mapped files of all ranks
(:mod:`.engine_state`), and keeps its part by DeepSpeed's interface to partitioned states. Nothing is converted first,
and no more than one parameter is in memory.
"""

import copy
import logging
from pathlib import Path
from typing import Any

import torch
from deepspeed import utils
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch import nn

from tape_ds import checkpoint
from tape_ds.checkpoint import saving
from tape_ds.checkpoint.engine_state import EngineState, is_divided

logger = logging.getLogger(__name__)


def load_engine(engine: Any, folder: Path, step: int, *, processes: int, stage: int | None) -> None:
    """Load the engine's part of a checkpoint, with the files of ``global_stepN``, into a new engine of this job's
    ``processes`` and ZeRO ``stage`` that trains the same parameters; all ranks must call it. Under tensor parallelism
    both have equally many pieces."""
    tag, manifest = f"global_step{step}", checkpoint.read(folder)
    # at stage 0 there are no shards
    if not stage or (manifest.processes, manifest.stage) == (
        processes,
        stage,
    ):
        found, _ = engine.load_checkpoint(str(folder), tag=tag, load_module_strict=False)
        if found is None:
            raise RuntimeError(f"the engine did not load {folder}/{tag}")
        return
    try:
        _reshard(engine, folder / tag)
    except ValueError as error:
        remedy = (
            f"start {manifest.processes} processes at ZeRO stage {manifest.stage}, as it was saved; or start a new run "
            "from its weights (tape-ds consolidate)"
        )
        raise saving.refusal(str(folder), error, remedy) from error
    logger.info(
        "the engine's shards are of %d processes at ZeRO stage %s: resharded",
        manifest.processes,
        manifest.stage,
    )


def _reshard(engine: Any, folder: Path) -> None:
    zero = engine.optimizer
    # settings that hide an engine's states from DeepSpeed's interface
    hidden = "offload to NVMe" if engine.zero_nvme_offload_optimizer() else None
    if getattr(zero, "round_robin_gradients", False):
        hidden = "round_robin_gradients"
    if type(zero) not in (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3, BF16_Optimizer):
        hidden = f"optimizer ({type(zero).__name__})"
    if hidden:
        raise ValueError(
            f"shards of other ranks, or of another ZeRO stage, do not go with this job's {hidden}"
        )
    state = EngineState(folder, engine.checkpoint_mp_rank)
    trained = {
        name: weight for name, weight in engine.module.named_parameters() if weight.requires_grad
    }
    if trained.keys() != state.shapes.keys():
        raise ValueError("its engine has trained other parameters than this run does")
    sliced = isinstance(zero, DeepSpeedZeroOptimizer_Stage3)
    if sliced:
        zero.checkpoint_event_prologue()
        zero._set_fp32_optimizer_param_groups()

    # settings of the groups, single values such as ``step`` (one for each flat tensor: optimizers change them in
    # place), and zeros for the rest; torch's own loading moves them where the optimizer needs them
    optimizer, kept = zero.optimizer, state.states()
    own, saved = optimizer.state_dict()["param_groups"], state.optimizer()["param_groups"]
    flats = [flat for group in optimizer.param_groups for flat in group["params"]]
    states = [
        {
            key: torch.zeros_like(flat) if is_divided(value) else copy.deepcopy(value)
            for key, value in kept.items()
        }
        for flat in flats
    ]
    groups = [
        {**settings, "params": group["params"]} for settings, group in zip(saved, own, strict=True)
    ]
    optimizer.load_state_dict(
        {"state": dict(enumerate(states)) if kept else {}, "param_groups": groups}
    )
    if sliced:
        zero._clear_fp32_optimizer_param_groups()
    else:
        # at stage 1 in bf16 with gradients summed in fp32 (data_types.grad_accum_dtype) another class holds them
        is_bf16 = isinstance(zero, BF16_Optimizer)
        parts = zero.bf16_groups if is_bf16 else zero.bit16_groups
        masters = (
            zero.fp32_groups_flat_partition if is_bf16 else zero.single_partition_of_fp32_groups
        )
        for parameters, flat in zip(parts, masters, strict=True):
            utils.lazy_init_hp_params_optimizer_state(parameters, flat, optimizer.state)

    for name, parameter in trained.items():
        # nothing of it is this rank's
        if not sliced and parameter._hp_mapping is None:
            continue
        set_weights, set_state = utils.safe_set_full_fp32_param, utils.safe_set_full_optimizer_state
        if sliced:
            # the interface for whole parameters fails at stage 3 where the ranks do not divide one
            set_weights, set_state = (
                utils.safe_set_local_fp32_param,
                utils.safe_set_local_optimizer_state,
            )
        for key in (None, *(key for key, value in kept.items() if is_divided(value))):
            value = state.whole(name, key)
            if sliced:
                size, rank = (
                    parameter.ds_tensor.numel(),
                    torch.distributed.get_rank(parameter.ds_process_group),
                )
                part = value.flatten()[rank * size : (rank + 1) * size]
                value = nn.functional.pad(part, (0, size - part.numel()))
            if key is None:
                set_weights(parameter, value)
            else:
                set_state(parameter, value, key)
    # the weights that the model computes with follow from the fp32 ones, as after a step
    if sliced:
        for number in range(len(zero.fp16_groups)):
            zero._reassign_or_swap_out_partitioned_parameters(number)
        zero.checkpoint_event_epilogue()
    else:
        zero.update_lp_params()

    for name in ("global_steps", "global_samples", "skipped_steps"):
        setattr(engine, name, state.model[name])
    for name in ("loss_scaler", "dynamic_loss_scale", "overflow"):
        # absent where bf16 was summed in fp32 at stage 1
        if name in state.parts[0]:
            setattr(zero, name, state.parts[0][name])
    if engine.lr_scheduler is not None:
        engine.lr_scheduler.load_state_dict(state.model["lr_scheduler"])
    buffers = {name: state.model["module"][name] for name in state.model["buffer_names"]}
    engine.module.load_state_dict(buffers, strict=False)
