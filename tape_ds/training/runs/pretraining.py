"""From a checked pretraining recipe to a run: a tokenizer, a new model, sequences packed or streamed, documents to
score."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, TrainerCallback

from tape_ds import methods, paths
from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.order import TrainingSequences
from tape_ds.data.mix import MixedSequences, mix
from tape_ds.data.pack import pack
from tape_ds.data.tokenized import scored_rows, tokenize
from tape_ds.data.sources import weights
from tape_ds.data.stream import StreamedSequences
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.methods import init_weights
from tape_ds import encodings
from tape_ds.config.pretraining import PretrainingRecipe
from tape_ds.config.scale import check_model
from tape_ds.training import identity, tables
from tape_ds.training.callbacks import ScoredAfter
from tape_ds.training.held_out import HeldOut, perplexities, read_perplexities
from tape_ds.training.run import Run, fingerprints, sample_count, start, weights_dtype

SCORES = "results/perplexity.json"


@dataclass(frozen=True, kw_only=True)
class Pretraining(Run):
    """A run that trains a model from nothing."""

    recipe: PretrainingRecipe
    held_out: list[HeldOut]
    left_out: int
    """Held-out documents that are too short for the longest length."""

    def outline(self) -> dict[str, str]:
        """Model, encoding, tokenizer, sequences and documents."""
        data, config = self.recipe.data, self.config
        if isinstance(self.sequences, MixedSequences):
            read = self.sequences.origin
        elif isinstance(self.sequences, StreamedSequences):
            read = f"{', '.join(self.sequences.specs)}: streamed by {self.sequences.stream.workers} workers"
        else:
            read = f"{weights.described(data.train_data)}: {len(self.sequences.stored):,} packed sequences"
        tokens = sum(document.input_ids_1T.shape[1] for document in self.held_out)
        skipped = f" ({self.left_out} shorter than the longest length left out)" if self.left_out else ""
        return {
            "model": f"new, {self.parameter_counts[0] / 1e6:,.1f} M parameters, {config.num_hidden_layers} layers of "
            f"{config.hidden_size:,}, {config.num_attention_heads} heads",
            "encoding": encodings.described(config),
            "tokenizer": f"{data.tokenizer or 'trained on train_data'}, {config.vocab_size:,} entries",
            **tokenizers.bos_note(self.tokenizer, config),
            "data": read,
            "held out": f"{len(self.held_out)} documents, {tokens:,} tokens{skipped}" if self.held_out else "nothing",
        }

    def scoring(self) -> list[TrainerCallback]:
        """Return perplexity by length, where there is text to score."""
        if not self.held_out:
            return []
        lengths = self.recipe.evaluation.eval_lengths
        listed = ", ".join(f"{length:,}" for length in lengths)

        def measure(model: Any) -> dict[int, Any]:
            return {length: found.to_dict() for length, found in perplexities(model, self.held_out, lengths).items()}

        announcement = f"scoring {len(self.held_out)} held-out documents at lengths {listed}"
        return [ScoredAfter(announcement, measure, self.output / SCORES)]

    def figures(self) -> dict[str, Any]:
        """Return perplexity, by length."""
        found = read_perplexities(self.output / SCORES) if self.held_out else {}
        return {"perplexity": {str(length): one.to_dict() for length, one in found.items()}}

    def show(self) -> None:
        """A table, a row per length."""
        if self.held_out:
            tables.print_perplexity(read_perplexities(self.output / SCORES), self.recipe.window)


def assemble(recipe: PretrainingRecipe) -> Pretraining:
    """Build everything up to the trainer.

    Raises:
        UserError: whatever only the tokenizer's files or the data can tell, on every rank alike.
    """
    tokenizer = choose_tokenizer(recipe)
    config = recipe.model_config(tokenizer)
    raise_if_any(check_model(recipe.scale, config))
    read = partial(fingerprints, weights.specs_of(recipe.data.train_data))
    decides = identity.of(recipe, tokenizer, read())
    started = start(recipe, config, decides, read)
    arguments = started.arguments
    bad_rows = BadRows(recipe.data.skip.bad_rows)
    sequences = training_sequences(recipe, tokenizer, bad_rows)
    held_out, left_out = held_out_documents(recipe, tokenizer, bad_rows)
    model = init_weights.build(config, arguments.seed, weights_dtype(arguments))
    prepared = methods.prepare("full", model, settings=None)
    return Pretraining(
        recipe=recipe,
        arguments=arguments,
        config=config,
        model=prepared.model,
        names=prepared.names,
        tokenizer=tokenizer,
        sequences=sequences,
        bad_rows=bad_rows,
        held_out=held_out,
        left_out=left_out,
        identity=decides,
        resumed=started.resumed,
    )


def choose_tokenizer(recipe: PretrainingRecipe) -> PreTrainedTokenizerBase:
    """Return the recipe's tokenizer; where it names none, one trained on its data, by whichever run comes first.

    Raises:
        UserError: it cannot be read or trained, or has another number of entries than the recipe says.
    """
    data, size = recipe.data, recipe.model.vocab_size
    if data.tokenizer is None:
        assert size is not None, "checked with the recipe"
        return tokenizers.cached(
            weights.specs_of(data.train_data), size, paths.data_cache(data.data_cache), data.skip.bad_rows
        )
    tokenizer = tokenizers.load(data.tokenizer)
    if size is not None and size != len(tokenizer):
        wrong = f"the tokenizer {data.tokenizer} has {len(tokenizer)} entries"
        raise UserError(Problem("vocab_size", size, wrong, "leave it out"))
    return tokenizer


def training_sequences(
    recipe: PretrainingRecipe, tokenizer: PreTrainedTokenizerBase, bad_rows: BadRows | None = None
) -> TrainingSequences | StreamedSequences | MixedSequences:
    """Return the run's samples: as many as its steps (or epochs) consume."""
    bad_rows = bad_rows or BadRows(recipe.data.skip.bad_rows)
    samples, seed = sample_count(recipe, sequences=0), recipe.trainer_value("seed")
    sequences_of = partial(_sequences_of, recipe, tokenizer, bad_rows)
    return mix(recipe.data.train_data, sequences_of, samples=samples, seed=seed)


def _sequences_of(
    recipe: PretrainingRecipe,
    tokenizer: PreTrainedTokenizerBase,
    bad_rows: BadRows,
    specs: list[str],
    seed: int,
) -> TrainingSequences | StreamedSequences:
    """Return samples of these sources together, with this seed."""
    data, cache = recipe.data, paths.data_cache(recipe.data.data_cache)
    if data.streaming:
        return StreamedSequences(
            specs,
            tokenizer,
            data.window,
            samples=sample_count(recipe, sequences=0),
            seed=seed,
            workers=data.stream_workers,
            skip_bad_rows=data.skip.bad_rows,
        )
    sequences = pack(tokenize(specs, tokenizer, "train", cache, bad_rows), data.window, cache, specs=specs)
    return TrainingSequences(sequences, samples=sample_count(recipe, len(sequences)), seed=seed)


def held_out_documents(
    recipe: PretrainingRecipe, tokenizer: PreTrainedTokenizerBase, bad_rows: BadRows | None = None
) -> tuple[list[HeldOut], int]:
    """Return documents for perplexity, and how many were too short for the longest length; ``eval_tokens`` ends the
    list.

    Each is cut to whole blocks of the longest length, so that all lengths which divide it read the same tokens.

    Raises:
        UserError: no document is long enough.
    """
    longest, room = max(recipe.evaluation.eval_lengths), recipe.evaluation.eval_tokens
    documents: list[HeldOut] = []
    if not recipe.data.eval_data:
        return documents, 0
    left_out = best = 0
    cache = paths.data_cache(recipe.data.data_cache)
    for row in scored_rows(recipe.data.eval_data, tokenizer, cache, bad_rows):
        found = len(row["input_ids"])
        left_out, best = left_out + (found < longest), max(best, found)
        kept = min(found, room) // longest * longest
        if kept:
            documents.append(HeldOut(row["name"], torch.tensor([row["input_ids"][:kept]])))
            room -= kept
        if room < longest:
            break
    if not documents:
        wrong = f"no document has {longest} tokens, the longest of eval_lengths (the longest document has {best})"
        raise UserError(Problem("eval_data", recipe.data.eval_data, wrong, "name longer documents or shorter lengths"))
    return documents, left_out
