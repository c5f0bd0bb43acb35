"""From a checked recipe to everything a training run needs: model, data, held-out documents, what is trained.

The order matters and is kept by :func:`assemble`: TrainingArguments first (under ZeRO-3 its DeepSpeed configuration
must exist before a model is built, so that weights are sharded as they load), then model, then data.
"""

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase, TrainingArguments, set_seed

from tape_ds.data import sources
from tape_ds.data.dataset import TrainingRows, collate
from tape_ds.data.packing import pack, tokenize
from tape_ds.data.pose import Pose
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.model import convert
from tape_ds.model.configuration import TapeConfig
from tape_ds.model.flops import training_flops_per_token
from tape_ds.model.positions import scaling
from tape_ds.training import methods, resume
from tape_ds.training.callbacks import LossByPosition, Progress, SaveTrained
from tape_ds.training.checkpoint import Record, check_whole
from tape_ds.training.environment import join_process_group, keep_trackers_in
from tape_ds.training.held_out import HeldOut
from tape_ds.training.recipe.arguments import Recipe, check_against_model
from tape_ds.training.trainer import ExtensionTrainer

SCORES = "results/loss_by_position.json"
METRICS = "metrics.jsonl"
TRAINED = "trained"


@dataclass(frozen=True)
class Run:
    """A run about to start."""

    recipe: Recipe
    arguments: TrainingArguments
    native: PreTrainedConfig
    """Configuration of the base model."""
    config: TapeConfig
    """Configuration of the extended model."""
    model: nn.Module
    names: tuple[str, ...]
    """Exact names of the trained parameters."""
    tokenizer: PreTrainedTokenizerBase
    rows: TrainingRows
    held_out: list[HeldOut]
    resume: str | None = None
    """The checkpoint it goes on from."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights as they are held between steps."""
        return weights_dtype(self.arguments)

    @property
    def output(self) -> Path:
        """The run's folder."""
        return Path(self.arguments.output_dir)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step, all ranks together."""
        return self.recipe.global_batch_size * self.recipe.data.window

    @property
    def parameter_counts(self) -> tuple[int, int]:
        """All parameters and trained ones, ZeRO-3's shards counted whole."""
        sizes = {name: getattr(p, "ds_numel", p.numel()) for name, p in self.model.named_parameters()}
        return sum(sizes.values()), sum(sizes[name] for name in self.names)

    @property
    def variants(self) -> dict[str, dict[str, Any] | None]:
        """What is scored before training: the base model, and its angles scaled without training where they differ."""
        if not self.recipe.evaluation.eval_before:
            return {}
        own, extended = dict(self.native.rope_parameters), dict(self.config.rope_parameters)
        variants: dict[str, dict[str, Any] | None] = {"untouched": own}
        plain, scaled = (scaling.frequencies(angles, self.config.head_dim)[0] for angles in (own, extended))
        if not np.array_equal(plain, scaled):
            variants[untrained_name(extended)] = extended
        return variants


def untrained_name(rope_parameters: dict[str, Any]) -> str:
    """How the scaled but untrained start is called in tables: ``yarn x2, untrained``."""
    factor = rope_parameters.get("factor")
    scale = f" x{factor:g}" if factor else ""
    return f"{rope_parameters['rope_type']}{scale}, untrained"


def assemble(recipe: Recipe) -> Run:
    """Build everything up to the trainer.

    Raises:
        UserError: whatever only the model's own files or the data can tell, on every rank alike.
    """
    resumed = resume.find(
        recipe.resume_from_checkpoint,
        recipe.trainer_value("output_dir"),
        deepspeed=recipe.deepspeed is not None,
        processes=recipe.world_size,
    )
    base = convert.resolve(base_address(recipe.model.model))
    raise_if_any(check_whole("model", recipe.model.model, base))
    native = convert.read_config(base)
    raise_if_any([*convert.check_llama_shaped(native), *check_against_model(recipe, native)])
    arguments = recipe.training_arguments()
    join_process_group(arguments)
    set_seed(arguments.seed)
    tokenizer = load_tokenizer(recipe.model.model, base)
    rows = training_rows(recipe, arguments, tokenizer)
    # the rows hold every epoch already; the trainer would otherwise run its epochs over all of them
    arguments.max_steps = len(rows) // recipe.global_batch_size
    held_out = held_out_documents(recipe, tokenizer)
    config = convert.tape_config(
        native,
        position_encoding=recipe.model.position_encoding,
        position_options=recipe.model.position_options or None,
        state_dtype=recipe.model.state_dtype,
        attention_backend=recipe.model.attention_backend,
        max_position_embeddings=recipe.model.target_length,
        rope_parameters=scaling.extended(
            native.rope_parameters, recipe.model.rope_parameters, native.max_position_embeddings
        ),
    )
    model = convert.load(base, config, dtype=weights_dtype(arguments))
    prepared = methods.prepare(recipe.method.method, model, recipe.method)
    return Run(recipe, arguments, native, config, prepared.model, prepared.names, tokenizer, rows, held_out, resumed)


def base_address(model: str) -> str:
    """The recipe's model so that it is found from any folder: a path absolute, anything else as it is."""
    path = Path(model).expanduser()
    return str(path.absolute()) if model != convert.SMOLLM2 and path.exists() else model


def load_tokenizer(model: str, base: str) -> PreTrainedTokenizerBase:
    """The model's own tokenizer.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    try:
        return AutoTokenizer.from_pretrained(base)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        remedy = "give a model with its tokenizer's files beside it"
        raise UserError(Problem("model", model, f"no tokenizer could be read ({reason})", remedy)) from error


def weights_dtype(arguments: TrainingArguments) -> torch.dtype:
    """What the weights are loaded in: 16 bit only under an engine, which keeps fp32 masters of what it trains.

    Without one the optimizer steps on the weights themselves: small steps would vanish in bf16, and a gradient scaler
    refuses fp16; autocast computes in 16 bit there.
    """
    if not arguments.deepspeed:
        return torch.float32
    return torch.bfloat16 if arguments.bf16 else torch.float16 if arguments.fp16 else torch.float32


def training_rows(recipe: Recipe, arguments: TrainingArguments, tokenizer: PreTrainedTokenizerBase) -> TrainingRows:
    """The run's samples: as many as its steps (or epochs) consume."""
    data = recipe.data
    documents = tokenize(
        data.train_data, tokenizer, "train", Path(data.data_cache).expanduser(), min_tokens=data.min_document_tokens
    )
    if data.pose_chunks > 1:
        rows, pose = documents, Pose(window=data.window, target=recipe.model.target_length, chunks=data.pose_chunks)
    else:
        rows, pose = pack(documents, data.window, Path(data.data_cache).expanduser()), None
    if arguments.max_steps > 0:
        steps = arguments.max_steps
    else:
        steps = math.ceil(arguments.num_train_epochs * len(rows) / recipe.global_batch_size)
    return TrainingRows(rows, samples=steps * recipe.global_batch_size, seed=arguments.seed, pose=pose)


def held_out_documents(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> list[HeldOut]:
    """The evaluation documents, each cut to ``eval_length`` tokens.

    Raises:
        UserError: a document is shorter; all are scored at one length, so that positions compare.
    """
    length = recipe.evaluation.eval_length
    documents: list[HeldOut] = []
    problems = []
    for address in recipe.data.eval_data:
        for row in tokenize([address], tokenizer, "heldout", Path(recipe.data.data_cache).expanduser()):
            if len(row["input_ids"]) < length:
                wrong = f"{row['name']} has {len(row['input_ids'])} tokens, fewer than eval_length = {length}"
                problems.append(Problem("eval_data", address, wrong, "name longer documents, or lower eval_length"))
                continue
            taken = any(document.name == row["name"] for document in documents)  # two addresses may each have one
            name = f"{row['name']} ({address})" if taken else row["name"]
            documents.append(HeldOut(name, torch.tensor([row["input_ids"][:length]])))
    raise_if_any(problems)
    return documents


def build_trainer(run: Run) -> ExtensionTrainer:
    """The trainer with this project's callbacks instead of transformers' printing ones."""
    keep_trackers_in(run.output)
    total, trained = run.parameter_counts
    record = Record(base=base_address(run.recipe.model.model), method=run.recipe.method.method, names=run.names)
    trainer = ExtensionTrainer(
        record=record,
        tokens_per_step=run.tokens_per_step,
        flops_per_token=training_flops_per_token(run.config, run.recipe.data.window, trained / total),
        model=run.model,
        args=run.arguments,
        train_dataset=run.rows,
        data_collator=functools.partial(collate, pad_token_id=run.tokenizer.pad_token_id or 0),
        processing_class=run.tokenizer,
    )
    for callback in [c for c in trainer.callback_handler.callbacks if type(c).__name__ in _REPLACED]:
        trainer.remove_callback(callback)
    trainer.add_callback(SaveTrained(trainer, run.output / TRAINED))
    if run.held_out:
        after = f"{run.recipe.method.method}, trained"
        scores = LossByPosition(run.held_out, run.variants, after, run.recipe.evaluation.eval_span, run.output / SCORES)
        trainer.add_callback(scores)
    trainer.add_callback(Progress(trainer, run.output / METRICS))
    return trainer


_REPLACED = ("PrinterCallback", "ProgressCallback")


def source_fingerprints(recipe: Recipe) -> dict[str, str]:
    """Fingerprint of each data source, by its address, for the record of the run."""
    addresses = [*recipe.data.train_data, *recipe.data.eval_data]
    return {address: sources.parse(address).fingerprint() for address in addresses}
