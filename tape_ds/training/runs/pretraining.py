"""Runs that pretrain a new model: its tokenizer, sequences packed or streamed, and perplexity on held-out documents."""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from transformers import PreTrainedTokenizerBase, TrainerCallback

from tape_ds import encodings, paths
from tape_ds.config.pretraining import PretrainingRecipe
from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.mix import MixedSequences, mix
from tape_ds.data.order import TrainingSequences
from tape_ds.data.pack import pack
from tape_ds.data.retrieval.sequences import RetrievalForm, RetrievalSequences, writer_of
from tape_ds.data.selection import select
from tape_ds.data.sources import generated, weights
from tape_ds.data.stream import StreamedSequences
from tape_ds.data.tokenized import scored_rows
from tape_ds.errors import Problem, UserError
from tape_ds.scoring import tables
from tape_ds.training.held_out import (
    EvalDocument,
    Model,
    ScoredAfter,
    perplexities,
    read_perplexities,
)
from tape_ds.training.job import TrainingJob
from tape_ds.training.run import Data, Figures, Run, sample_count

SCORES = "results/perplexity.json"


Sequences: TypeAlias = TrainingSequences | StreamedSequences | RetrievalSequences | MixedSequences


@dataclass(frozen=True, kw_only=True)
class DataToPretrain(Data):
    """Training sequences of a new model, and its held-out documents."""

    sequences: Sequences
    held_out: list[EvalDocument]
    left_out: int
    """Held-out documents that are too short for the longest length."""


class Pretraining(Run[PretrainingRecipe, DataToPretrain]):
    """A run that trains a model from nothing."""

    @classmethod
    def read_data(cls, job: TrainingJob[PretrainingRecipe]) -> DataToPretrain:
        recipe = job.recipe
        tokenizer = job.fetched.tokenizer
        bad_rows = BadRows(recipe.data.skip.bad_rows)
        held_out, left_out = held_out_documents(recipe, tokenizer, bad_rows)
        sequences = training_sequences(recipe, tokenizer, bad_rows)
        return DataToPretrain(
            sequences=sequences, bad_rows=bad_rows, held_out=held_out, left_out=left_out
        )

    def outline(self) -> dict[str, str]:
        data = self.recipe.data
        config = self.config
        sequences = self.data.sequences
        if isinstance(sequences, MixedSequences):
            read = sequences.origin
        elif isinstance(sequences, RetrievalSequences):
            read = f"{weights.described(data.train_data)}: {sequences.origin}"
        elif isinstance(sequences, StreamedSequences):
            read = f"{', '.join(sequences.specs)}: streamed by {sequences.stream.workers} workers"
        else:
            read = (
                f"{weights.described(data.train_data)}: {len(sequences.stored):,} packed sequences"
            )
        held_out = "nothing"
        if self.data.held_out:
            tokens = sum(document.input_ids_1T.shape[1] for document in self.data.held_out)
            held_out = f"{len(self.data.held_out)} documents, {tokens:,} tokens"
            if self.data.left_out:
                held_out += f" ({self.data.left_out} shorter than the longest length left out)"
        return {
            "model": self.new_model,
            "encoding": encodings.described(config),
            "tokenizer": f"{data.tokenizer or 'trained on train_data'}, {config.vocab_size:,} entries",
            **tokenizers.bos_note(self.tokenizer, config),
            "data": read,
            "held out": held_out,
        }

    def scoring(self) -> list[TrainerCallback]:
        if not self.data.held_out:
            return []
        lengths = self.recipe.evaluation.eval_lengths
        listed = ", ".join(f"{length:,}" for length in lengths)

        def measure(model: Model) -> dict[int, dict[str, object]]:
            return {
                length: found.to_dict()
                for length, found in perplexities(model, self.data.held_out, lengths).items()
            }

        announcement = f"scoring {len(self.data.held_out)} held-out documents at lengths {listed}"
        return [ScoredAfter(announcement, measure, self.output / SCORES)]

    def figures(self) -> Figures:
        found = read_perplexities(self.output / SCORES) if self.data.held_out else {}
        return {"perplexity": {str(length): one.to_dict() for length, one in found.items()}}

    def show(self) -> None:
        if self.data.held_out:
            tables.print_perplexity(read_perplexities(self.output / SCORES), self.recipe.window)


def training_sequences(
    recipe: PretrainingRecipe, tokenizer: PreTrainedTokenizerBase, bad_rows: BadRows
) -> Sequences:
    data = recipe.data
    cache = paths.data_cache(data.data_cache)
    samples = sample_count(recipe, sequences=0)

    def sequences_of(
        specs: list[str], seed: int
    ) -> TrainingSequences | StreamedSequences | RetrievalSequences:
        source = generated.only_one(specs)
        if source is not None:
            writer = writer_of(source, tokenizer, cache, bad_rows)
            return RetrievalSequences(
                source, writer, RetrievalForm(data.window), samples=samples, seed=seed
            )
        if data.streaming:
            return StreamedSequences(
                specs,
                tokenizer,
                data.window,
                samples=samples,
                seed=seed,
                workers=data.stream_workers,
                skip_bad_rows=data.skip.bad_rows,
            )
        documents = select(specs, tokenizer, "train", cache, bad_rows=bad_rows).documents
        sequences = pack(documents, data.window, cache, specs=specs)
        return TrainingSequences(sequences, samples=sample_count(recipe, len(sequences)), seed=seed)

    return mix(data.train_data, sequences_of, samples=samples, seed=recipe.trainer.seed)


def held_out_documents(
    recipe: PretrainingRecipe, tokenizer: PreTrainedTokenizerBase, bad_rows: BadRows
) -> tuple[list[EvalDocument], int]:
    """Return documents for perplexity, ``eval_tokens`` at most, and how many were too short for the longest length.
    Each is cut to whole blocks of the longest length, so that all lengths that divide it read the same tokens."""
    longest = max(recipe.evaluation.eval_lengths)
    room = recipe.evaluation.eval_tokens
    documents: list[EvalDocument] = []
    if not recipe.data.eval_data:
        return documents, 0
    left_out = 0
    longest_document = 0
    cache = paths.data_cache(recipe.data.data_cache)
    for row in scored_rows(recipe.data.eval_data, tokenizer, cache, bad_rows):
        tokens = len(row["input_ids"])
        longest_document = max(longest_document, tokens)
        if tokens < longest:
            left_out += 1
        kept = min(tokens, room) // longest * longest
        if kept:
            documents.append(EvalDocument(row["name"], torch.tensor([row["input_ids"][:kept]])))
            room -= kept
        if room < longest:
            break
    if not documents:
        wrong = f"no document has {longest} tokens, the longest of eval_lengths "
        wrong += f"(the longest document has {longest_document})"
        raise UserError(
            Problem(
                "eval_data",
                recipe.data.eval_data,
                wrong,
                "name longer documents or shorter lengths",
            )
        )
    return documents, left_out
