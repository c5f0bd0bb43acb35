"""Run by two ranks: every method that trains, over tied and untied embeddings, sharded by ZeRO-3.

Leaves for each a folder of trained weights, and beside it the logits of the model as it was when its training ended.
"""

import sys
from pathlib import Path

import torch
from accelerate.state import PartialState
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

from tape_ds import methods
from tape_ds.checkpoint.trained import TrainedRecord, save_trained
from tape_ds.data.order import collate
from tape_ds.methods.prepare import prepare_model
from tape_ds.models import convert
from tape_ds.models.loading import extendable
from tape_ds.training.trainer import TapeTrainer
from tests.integration.workers.common import (
    LENGTH,
    VOCABULARY,
    Sequences,
    arguments,
    end,
    run_worker,
)
from tests.methods.test_methods import settings

ANGLES = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
TIED = {"tied": True, "untied": False}


def name_of(method: str, tying: str) -> str:
    """Folder of one training."""
    return f"{method}-{tying}"


def probe() -> torch.Tensor:
    """The tokens that logits are compared on, [2, LENGTH]."""
    return torch.stack([Sequences()[index]["input_ids"] for index in (3, 4)])


def save_base(folder: Path, tied: bool) -> None:
    """A tiny random Llama with grouped heads."""
    torch.manual_seed(7)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "vocab_size": VOCABULARY,
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, **heads, tie_word_embeddings=tied, initializer_range=0.2)
    LlamaForCausalLM(config).save_pretrained(folder)


def train(folder: Path, method: str, tying: str) -> None:
    """Three steps under ZeRO-3, then the logits, then the folder of trained weights."""
    kind, base = methods.METHODS[method], folder / tying
    plan = arguments(folder / "run", 3, max_steps=3, gradient_checkpointing=True)
    set_seed(5)
    config = convert.tape_config(
        extendable.read(base), position_encoding=kind.encoding, rope_parameters=ANGLES
    )
    chosen = settings(
        train_position=kind.learns_positions, train_embeddings=kind.embeddings, group_tokens=8
    )
    prepared = prepare_model(method, convert.load(base, config, dtype=torch.float32), chosen)
    record = TrainedRecord(base=str(base), method=method, names=prepared.names)
    trainer = TapeTrainer(
        record=record,
        tokens_per_step=4 * LENGTH,
        flops_per_token=1.0,
        model=prepared.model,
        args=plan,
        train_dataset=Sequences(),
        data_collator=collate,
    )
    trainer.train()
    trained = folder / name_of(method, tying)
    save_trained(trained, trainer.model, record)
    with torch.no_grad():
        logits = trainer.model.eval()(input_ids=probe()).logits
    if PartialState().is_main_process:
        torch.save(logits, trained / "logits.pt")
    end(trainer)


def everything(folder: Path, only: list[str]) -> None:
    """These of the methods over these embeddings, one after another."""
    if PartialState().is_main_process:
        for tying, tied in TIED.items():
            save_base(folder / tying, tied)
    PartialState().wait_for_everyone()
    for method in methods.trained():
        for tying in TIED:
            if name_of(method, tying) in only:
                train(folder, method, tying)


def main() -> int:
    """See :func:`everything`."""
    return run_worker(everything)


if __name__ == "__main__":
    sys.exit(main())
