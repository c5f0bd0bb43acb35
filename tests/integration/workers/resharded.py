"""Run by any number of ranks: tiny engines of every ZeRO stage, each begun or gone on with, saved, and trained on.

The jobs are in ``jobs.json``; what each of them computed goes to ``done.json`` beside it.
"""

import argparse
import json
import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed.checkpoint.constants import (
    UNIVERSAL_CHECKPOINT_INFO,
    UNIVERSAL_CHECKPOINT_VERSION_KEY,
    UNIVERSAL_CHECKPOINT_VERSION_VALUE,
)
from torch import nn

from tape_ds.checkpoint.resharding import load_engine
from tape_ds.distributed.processes import leave_process_group
from tape_ds.training.environment import prepare_process

SEQUENCES, TOKENS, VOCABULARY, STEPS = 8, 6, 11, 3
INFO = {
    UNIVERSAL_CHECKPOINT_INFO: {
        UNIVERSAL_CHECKPOINT_VERSION_KEY: UNIVERSAL_CHECKPOINT_VERSION_VALUE
    }
}


class Odd(nn.Module):
    """Parameters that no number of ranks divides, a single number, tied and frozen ones, and a buffer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(VOCABULARY, 7)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.up, self.down = nn.Linear(7, 13), nn.Linear(13, 7)
        self.norm = nn.LayerNorm(7)
        self.gain = nn.Parameter(torch.ones(1))
        self.register_buffer("kept", torch.arange(3.0))
        self.head = nn.Linear(7, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        """Mean loss of the next token."""
        hidden = self.embed(ids)
        hidden = hidden + self.gain * self.down(torch.tanh(self.up(self.frozen(hidden))))
        return nn.functional.cross_entropy(
            self.head(self.norm(hidden))[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten()
        )


def engine(stage: int, bf16: bool, settings: dict, universal: bool, accumulation: str | None):
    """An engine of three groups: one that decays, one that does not, and a single number with a rate of its own, of
    which some ranks have nothing but padding."""
    config = {
        "train_micro_batch_size_per_gpu": SEQUENCES // torch.distributed.get_world_size(),
        "gradient_clipping": 1.0,
        "bf16": {"enabled": bf16},
        "data_types": {"grad_accum_dtype": accumulation},
        "zero_optimization": {"stage": stage, **settings},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "checkpoint": {"load_universal": universal},
    }
    model = Odd()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {
            "params": [parameter for parameter in trained if parameter.dim() > 1],
            "weight_decay": 0.1,
        },
        {
            "params": [each for each in trained if each.dim() == 1 and each is not model.gain],
            "weight_decay": 0.0,
        },
        {"params": [model.gain], "weight_decay": 0.0, "lr": 3e-2},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, fused=True)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def train(machine, first: int) -> list[float]:
    """Losses of a few steps, over all ranks; step i has the same sequences whatever the number of ranks."""
    losses, world, rank = [], torch.distributed.get_world_size(), torch.distributed.get_rank()
    for step in range(first, first + STEPS):
        ids = torch.randint(
            0, VOCABULARY, (SEQUENCES, TOKENS), generator=torch.Generator().manual_seed(step)
        )
        loss = machine(ids.chunk(world)[rank])
        machine.backward(loss)
        machine.step()
        total = loss.detach().double()
        torch.distributed.all_reduce(total)
        losses.append(total.item() / world)
    return losses


def run_job(folder: Path, job: dict) -> list[float] | str:
    """Begin or go on, save, train on; losses after the save. Or the name of the error by which DeepSpeed fails where it
    is to load a universal checkpoint, on one rank."""
    machine = engine(job["stage"], job["bf16"], job["zero"], job["universal"], job["accumulation"])
    tag = f"global_step{STEPS}"
    if job["resume"] is None:
        train(machine, 0)
    elif job["universal"]:
        try:
            machine.load_checkpoint(job["resume"], tag=tag, load_module_strict=False)
        except Exception as error:
            machine.destroy()
            return type(error).__name__
        return train(machine, STEPS)
    else:
        load_engine(
            machine,
            Path(job["resume"]),
            STEPS,
            processes=torch.distributed.get_world_size(),
            stage=job["stage"],
        )
    machine.save_checkpoint(
        str(folder / job["name"]), tag=tag, client_state=INFO, exclude_frozen_parameters=True
    )
    losses = train(machine, STEPS)
    machine.destroy()
    return losses


def main() -> int:
    """All jobs, one after another."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder
    prepare_process()
    deepspeed.init_distributed("gloo")
    jobs = json.loads((folder / "jobs.json").read_text())
    losses = {job["name"]: run_job(folder, job) for job in jobs}
    if torch.distributed.get_rank() == 0:
        (folder / "done.json").write_text(json.dumps(losses))
    leave_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
