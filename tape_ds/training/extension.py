"""From a checked extension recipe to a run: a pretrained model, what of it is trained, rows and held-out documents."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, TrainerCallback

from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.dataset import TrainingRows
from tape_ds.data.packing import pack, tokenize
from tape_ds.data.pose import Pose
from tape_ds.errors import Problem, raise_if_any
from tape_ds.model import convert, positions
from tape_ds.model.positions import scaling
from tape_ds.scoring.loss_by_position import SpanLosses
from tape_ds.training import methods, plots, tables
from tape_ds.training.callbacks import LossByPosition
from tape_ds.training.checkpoint import Record, check_whole
from tape_ds.training.held_out import HeldOut, Scores, read_scores
from tape_ds.training.recipe.extension import ExtensionRecipe
from tape_ds.training.recipe.extension_checks import check_against_model
from tape_ds.training.run import RESULTS, Run, find_checkpoint, sample_count, start, weights_dtype

SCORES = "results/loss_by_position.json"


@dataclass(frozen=True, kw_only=True)
class Extension(Run):
    """A run that extends a pretrained model."""

    recipe: ExtensionRecipe
    native: PreTrainedConfig
    """Configuration of the base model."""
    held_out: list[HeldOut]

    @property
    def record(self) -> Record:
        """The base under the address of the recipe, so that it is found from any folder."""
        base = base_address(self.recipe.model.model)
        return Record(base=base, method=self.recipe.method.method, names=self.names)

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

    def outline(self) -> dict[str, str]:
        """Model with its lengths, encoding, rows and documents."""
        recipe, config, angles = self.recipe, self.config, self.config.rope_parameters
        chunks = recipe.data.pose_chunks
        factor = f" x{angles['factor']:g}" if angles.get("factor") else ""
        return {
            "model": f"{recipe.model.model}, {self.parameter_counts[0] / 1e6:,.1f} M parameters, native context "
            f"{self.native.max_position_embeddings:,} -> {recipe.model.target_length:,}",
            "encoding": f"{config.position_encoding} {config.position_options or ''} from {angles['rope_type']} "
            f"angles{factor}, theta {angles['rope_theta']:g}",
            "data": f"{', '.join(recipe.data.train_data)}: {len(self.rows.rows):,} "
            + (f"documents, PoSE with {chunks} chunks" if chunks > 1 else "packed rows"),
            "held out": ", ".join(document.name for document in self.held_out) or "nothing",
        }

    def scoring(self) -> list[TrainerCallback]:
        """Loss by position, where there is text to score."""
        if not self.held_out:
            return []
        after = f"{self.recipe.method.method}, trained"
        span = self.recipe.evaluation.eval_span
        return [LossByPosition(self.held_out, self.variants, after, span, self.output / SCORES)]

    def _scores(self) -> Scores:
        return read_scores(self.output / SCORES) if self.held_out else {}

    def figures(self) -> dict[str, Any]:
        """Loss by position: variant -> document -> spans."""
        scores = self._scores()
        return {
            "loss_by_position": {v: {n: part.to_dict() for n, part in parts.items()} for v, parts in scores.items()}
        }

    def show(self) -> None:
        """A picture of all documents together, and a table for each."""
        scores, native = self._scores(), self.native.max_position_embeddings
        if scores:
            merged = {variant: SpanLosses.merge(parts.values()) for variant, parts in scores.items()}
            plots.loss_by_position(merged, self.output / RESULTS / "loss_by_position.png", native)
            tables.print_loss_by_position(scores, native)


def untrained_name(rope_parameters: dict[str, Any]) -> str:
    """How the scaled but untrained start is called in tables: ``yarn x2, untrained``."""
    factor = rope_parameters.get("factor")
    scale = f" x{factor:g}" if factor else ""
    return f"{rope_parameters['rope_type']}{scale}, untrained"


def assemble(recipe: ExtensionRecipe) -> Extension:
    """Build everything up to the trainer.

    Raises:
        UserError: whatever only the model's own files or the data can tell, on every rank alike.
    """
    resumed = find_checkpoint(recipe)
    base = convert.resolve(base_address(recipe.model.model))
    raise_if_any(check_whole("model", recipe.model.model, base))
    native = convert.read_config(base)
    raise_if_any([*convert.check_llama_shaped(native), *check_against_model(recipe, native)])
    arguments = start(recipe)
    tokenizer = tokenizers.load(base, "model")
    rows = training_rows(recipe, tokenizer)
    held_out = held_out_documents(recipe, tokenizer)
    encoding = recipe.model.position_encoding
    config = convert.tape_config(
        native,
        position_encoding=encoding,
        position_options=positions.options_for(encoding, recipe.model.position_options, tokenizer) or None,
        state_dtype=recipe.model.state_dtype,
        attention_backend=recipe.model.attention_backend,
        max_position_embeddings=recipe.model.target_length,
        rope_parameters=scaling.extended(
            native.rope_parameters, recipe.model.rope_parameters, native.max_position_embeddings
        ),
    )
    model = convert.load(base, config, dtype=weights_dtype(arguments))
    prepared = methods.prepare(recipe.method.method, model, recipe.method)
    return Extension(
        recipe=recipe,
        arguments=arguments,
        native=native,
        config=config,
        model=prepared.model,
        names=prepared.names,
        tokenizer=tokenizer,
        rows=rows,
        held_out=held_out,
        resume=resumed,
    )


def base_address(model: str) -> str:
    """The recipe's model so that it is found from any folder: a path absolute, anything else as it is."""
    path = Path(model).expanduser()
    return str(path.absolute()) if model != convert.SMOLLM2 and path.exists() else model


def training_rows(recipe: ExtensionRecipe, tokenizer: PreTrainedTokenizerBase) -> TrainingRows:
    """The run's samples: as many as its steps (or epochs) consume."""
    data, cache = recipe.data, Path(recipe.data.data_cache).expanduser()
    documents = tokenize(data.train_data, tokenizer, "train", cache, min_tokens=data.min_document_tokens)
    if data.pose_chunks > 1:
        rows, pose = documents, Pose(window=data.window, target=recipe.model.target_length, chunks=data.pose_chunks)
    else:
        rows, pose = pack(documents, data.window, cache), None
    seed = recipe.trainer_value("seed")
    return TrainingRows(rows, samples=sample_count(recipe, len(rows)), seed=seed, pose=pose)


def held_out_documents(recipe: ExtensionRecipe, tokenizer: PreTrainedTokenizerBase) -> list[HeldOut]:
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
