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
from torch import Tensor, nn

from tape_ds import checkpoint
from tape_ds.checkpoint import saving
from tape_ds.checkpoint.engine_state import EngineState, is_divided

logger = logging.getLogger(__name__)


def load_engine(engine: Any, folder: Path, step: int, *, processes: int, stage: int | None) -> None:
    """Load the engine's part of a checkpoint, with the files of ``global_stepN``, into a new engine of this job's
    ``processes`` and ZeRO ``stage`` that trains the same parameters; all ranks must call it. Under tensor parallelism
    both have equally many pieces."""
    tag = f"global_step{step}"
    manifest = checkpoint.read(folder)
    is_same_job = manifest.processes == processes and manifest.stage == stage
    # at stage 0 there are no shards
    if is_same_job or not stage:
        # frozen weights are in no checkpoint, which is why it is not strict
        path, _ = engine.load_checkpoint(str(folder), tag=tag, load_module_strict=False)
        # DeepSpeed only warns of a folder that it cannot read
        if path is None:
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
    trained = {}
    for name, parameter in engine.module.named_parameters():
        if parameter.requires_grad:
            trained[name] = parameter
    if trained.keys() != state.shapes.keys():
        raise ValueError("its engine has trained other parameters than this run does")
    sliced = isinstance(zero, DeepSpeedZeroOptimizer_Stage3)
    if sliced:
        zero.checkpoint_event_prologue()
        zero._set_fp32_optimizer_param_groups()

    optimizer = zero.optimizer
    saved_states = state.states()
    divided_keys = [key for key, value in saved_states.items() if is_divided(value)]
    _start_states(optimizer, saved_states, state.optimizer()["param_groups"])
    if sliced:
        zero._clear_fp32_optimizer_param_groups()
    else:
        # at stage 1 in bf16 with gradients summed in fp32 (data_types.grad_accum_dtype) another class holds them
        if isinstance(zero, BF16_Optimizer):
            parts = zero.bf16_groups
            masters = zero.fp32_groups_flat_partition
        else:
            parts = zero.bit16_groups
            masters = zero.single_partition_of_fp32_groups
        for parameters, flat in zip(parts, masters, strict=True):
            utils.lazy_init_hp_params_optimizer_state(parameters, flat, optimizer.state)

    for name, parameter in trained.items():
        # nothing of it is this rank's
        if not sliced and parameter._hp_mapping is None:
            continue
        # None: its fp32 weights
        for key in (None, *divided_keys):
            value = state.whole(name, key)
            # the interface for whole parameters fails at stage 3 where the ranks do not divide one
            if sliced:
                set_weights = utils.safe_set_local_fp32_param
                set_state = utils.safe_set_local_optimizer_state
                value = _slice_of_rank(value, parameter)
            else:
                set_weights = utils.safe_set_full_fp32_param
                set_state = utils.safe_set_full_optimizer_state
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


def _start_states(
    optimizer: torch.optim.Optimizer, saved: dict[str, Any], saved_groups: list[dict[str, Any]]
) -> None:
    """Give an optimizer over flat tensors the saved settings of its groups and the saved single values, such as
    ``step``, and zeros for the values that are divided among ranks, which come after."""
    states: dict[int, dict[str, Any]] = {}
    if saved:
        for group in optimizer.param_groups:
            for flat in group["params"]:
                state = {}
                for key, value in saved.items():
                    if is_divided(value):
                        state[key] = torch.zeros_like(flat)
                    else:
                        # a copy for each flat tensor: optimizers change their values in place
                        state[key] = copy.deepcopy(value)
                states[len(states)] = state
    groups = []
    for settings, group in zip(saved_groups, optimizer.state_dict()["param_groups"], strict=True):
        groups.append({**settings, "params": group["params"]})
    # torch's own loading moves the values where the optimizer needs them
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def _slice_of_rank(value: Tensor, parameter: Any) -> Tensor:
    """Return this rank's slice of a whole value at stage 3, flat; the last one is padded with zeros."""
    size = parameter.ds_tensor.numel()
    rank = torch.distributed.get_rank(parameter.ds_process_group)
    part = value.flatten()[rank * size : (rank + 1) * size]
    return nn.functional.pad(part, (0, size - part.numel()))
