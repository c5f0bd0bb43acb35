"""An engine's files made by hand, and a sealed checkpoint around them: what tools read, without an engine.

The layouts are DeepSpeed's, written here once more in the plainest way: whole tensors are joined, padded and cut.
"""

from collections import OrderedDict
from pathlib import Path

import torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from torch import Tensor

from tape_ds import checkpoint
from tape_ds.checkpoint import Manifest

MOMENTS = {"exp_avg": lambda master: master / 3, "exp_avg_sq": lambda master: master**2}
"""What stands for an optimizer's states of a parameter."""


def parts_joined(group: list[Tensor], processes: int) -> list[Tensor]:
    """A group's flat tensor of each rank at stages 1 and 2, padding included."""
    flat = torch.cat([tensor.flatten() for tensor in group])
    padding = torch.zeros(-len(flat) % (2 * processes))
    return list(torch.cat([flat, padding]).chunk(processes))


def parts_sliced(group: list[Tensor], processes: int) -> list[Tensor]:
    """The same at stage 3."""
    slices = []
    for tensor in group:
        padding = torch.zeros(-tensor.numel() % processes)
        slices.append(torch.cat([tensor.flatten(), padding]).chunk(processes))
    return [torch.cat(each) for each in zip(*slices, strict=True)]


def write_engine(
    folder, groups, stage, processes, *, dtype=torch.float32, shared=None, moments=None
):
    """Write an engine's files to ``folder``, a ``global_stepN``.

    ``groups`` are the optimizer's, each a dict of fp32 tensors; ``dtype`` is the weights'. ``shared`` has the name of a
    tied parameter -> the one it is kept under; ``moments`` are the optimizer's states, by default :data:`MOMENTS`.
    """
    folder.mkdir(parents=True)
    moments = MOMENTS if moments is None else moments
    divide = parts_sliced if stage == 3 else parts_joined
    masters = {name: tensor for group in groups for name, tensor in group.items()}
    weights = {
        name: torch.empty(0, dtype=dtype) if stage == 3 else each.to(dtype)
        for name, each in masters.items()
    }
    weights |= {name: weights[origin] for name, origin in (shared or {}).items()}
    common = {"ds_config": {"zero_optimization": {"stage": stage}}, "ds_version": "0.19.8"}
    model = {
        "module": OrderedDict({**weights, "steps": torch.tensor([1.0, 2.0])}),
        "buffer_names": ["steps"],
        "param_shapes": [
            OrderedDict((name, each.shape) for name, each in group.items()) for group in groups
        ],
        "shared_params": shared or {},
        "dp_world_size": processes,
        "global_steps": 7,
        **common,
    }
    flats = [divide(list(group.values()), processes) for group in groups]
    for rank in range(processes):
        if stage == 3 or rank == 0:
            name = (
                f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
                if stage == 3
                else "mp_rank_00_model_states.pt"
            )
            torch.save(model, folder / name)
        own = [each[rank] for each in flats]
        states = {
            number: {
                "step": torch.tensor(7.0),
                **{key: moment(flat) for key, moment in moments.items()},
            }
            for number, flat in enumerate(own)
        }
        base = {
            "state": states,
            "param_groups": [{"lr": 0.1, "params": [number]} for number in range(len(groups))],
        }
        scaling = {"loss_scaler": LossScaler(1.0), "dynamic_loss_scale": False, "overflow": False}
        if stage == 3:
            part = {
                "optimizer_state_dict": base,
                "fp32_flat_groups": own,
                "partition_count": processes,
            }
        else:
            lengths = [sum(each.numel() for each in group.values()) for group in groups]
            ends = [
                min(max(length - rank * len(flat), 0), len(flat))
                for length, flat in zip(lengths, own, strict=True)
            ]
            part = {
                "base_optimizer_state": base,
                "group_paddings": [len(flat) - end for flat, end in zip(own, ends, strict=True)],
                "single_partition_of_fp32_groups": [
                    flat[:end] for flat, end in zip(own, ends, strict=True)
                ],
                "partition_count": [processes] * len(groups),
            }
        part = {
            "optimizer_state_dict": {"zero_stage": ZeroStageEnum(stage), **scaling, **part},
            **common,
        }
        torch.save(part, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


def example_groups(seed: int = 0) -> list[dict[str, Tensor]]:
    """Two groups of parameters of odd sizes, a single number among them."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [
        {"a.weight": (5, 7), "b.weight": (3, 3, 3)},
        {"a.bias": (5,), "gain": (1,), "c": (11,)},
    ]
    return [
        {name: torch.randn(shape, generator=generator) for name, shape in group.items()}
        for group in shapes
    ]


def seal(folder: Path, stage: int | None, processes: int, step: int = 7) -> Path:
    """Make a committed checkpoint of a folder, in its place."""
    aside = folder.with_name(folder.name + checkpoint.WRITING)
    folder.rename(aside)
    files = {
        path.relative_to(aside).as_posix(): checkpoint.entry(path)
        for path in aside.rglob("*")
        if path.is_file()
    }
    manifest = Manifest(
        step=step, processes=processes, stage=stage, files=files, identity={"recipe.seed": 1}
    )
    checkpoint.commit(aside, folder, manifest)
    return folder
