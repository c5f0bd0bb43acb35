"""The data of a run that extends a pretrained model: training sequences, held-out documents and questions."""

from dataclasses import dataclass
from typing import Self, TypeAlias

import torch
from transformers import PreTrainedTokenizerBase

from tape_ds import paths
from tape_ds.config.extension import ExtensionRecipe
from tape_ds.data import passkey
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.mix import MixedSequences, mix
from tape_ds.data.order import NoSamples, TrainingSequences
from tape_ds.data.pack import pack
from tape_ds.data.pose import PoseSequences
from tape_ds.data.retrieval.sequences import RetrievalForm, RetrievalSequences, writer_of
from tape_ds.data.selection import select, token_counts, upsampled
from tape_ds.data.sources import generated, weights
from tape_ds.data.tokenized import scored_rows
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.scoring.ruler_questions import RulerQuestion
from tape_ds.training.held_out import EvalDocument
from tape_ds.training.retrieval import draw_ruler
from tape_ds.training.run import Data, sample_count

Sequences: TypeAlias = TrainingSequences | RetrievalSequences | MixedSequences | NoSamples


@dataclass(frozen=True, kw_only=True)
class DataToExtend(Data):
    """Training sequences, held-out documents and questions of an extension."""

    sequences: Sequences
    held_out: list[EvalDocument]
    prompts: list[passkey.PasskeyQuestion]
    """Each hides a number that the model is asked for."""
    ruler: list[RulerQuestion]

    @classmethod
    def read(cls, recipe: ExtensionRecipe, tokenizer: PreTrainedTokenizerBase, seed: int) -> Self:
        """Read everything; ``seed`` draws the passkeys."""
        asked = recipe.evaluation
        bad_rows = BadRows(recipe.data.skip.bad_rows)
        held_out = held_out_documents(recipe, tokenizer, bad_rows)
        # the same for every method
        prompts = passkey.draw(
            tokenizer, asked.passkey_lengths, asked.passkey_trials, seed, asked.passkey_form
        )
        ruler = draw_ruler(tokenizer, recipe.ruler)
        sequences: Sequences = NoSamples()
        if recipe.trains:
            sequences = training_sequences(recipe, tokenizer, bad_rows)
        return cls(
            sequences=sequences, bad_rows=bad_rows, held_out=held_out, prompts=prompts, ruler=ruler
        )

    def outline(self, recipe: ExtensionRecipe) -> str:
        sequences = self.sequences
        if isinstance(sequences, NoSamples):
            return sequences.origin
        form = f"packing {recipe.data.packing}"
        if recipe.data.pose.chunks > 1:
            form = f"PoSE with {recipe.data.pose.chunks} chunks"
        outline = f"{sequences.origin}, {form}"
        # which name their sources themselves
        if not isinstance(sequences, MixedSequences):
            outline = f"{weights.described(recipe.data.train_data)}: {outline}"
        return outline


def training_sequences(
    recipe: ExtensionRecipe, tokenizer: PreTrainedTokenizerBase, bad_rows: BadRows
) -> TrainingSequences | RetrievalSequences | MixedSequences:
    data = recipe.data
    cache = paths.data_cache(data.data_cache)
    end = None
    if data.append_eos:
        if tokenizer.eos_token_id is None:
            wrong = "the model's tokenizer has no EOS token"
            raise UserError(
                Problem(
                    "append_eos", True, wrong, "remove it; borders are kept in document_ids anyway"
                )
            )
        end = int(tokenizer.eos_token_id)

    def sequences_of(specs: list[str], seed: int) -> TrainingSequences | RetrievalSequences:
        pose = None
        if data.pose.chunks > 1:
            pose = PoseSequences(data.window, recipe.model.target_length, data.pose)
        source = generated.only_one(specs)
        if source is not None:
            form = RetrievalForm(data.window, pose, data.packing == "single", data.attend_across)
            writer = writer_of(source, tokenizer, cache, bad_rows, end)
            return RetrievalSequences(source, writer, form, samples=samples, seed=seed)
        found = select(
            specs, tokenizer, "train", cache, data.min_document_tokens, data.max_documents, bad_rows
        )
        origin = str(found)
        if data.min_document_tokens > 1:
            origin += f", none below {data.min_document_tokens:,}"
        documents = upsampled(found.documents, data.upsample)
        if data.upsample:
            origin += f"; long ones again: {len(documents):,} documents, {int(token_counts(documents).sum()):,} tokens"
        sequences = documents
        if pose is None:
            sequences = pack(documents, data.window, cache, data.packing, end, specs=specs)
            origin += f"; {int(token_counts(sequences).sum()):,} in {len(sequences):,} sequences"
        return TrainingSequences(
            sequences,
            samples=sample_count(recipe, len(sequences)),
            seed=seed,
            pose=pose,
            attend_across=data.attend_across,
            origin=origin,
        )

    # of a source that ends, sequences_of counts its own
    samples = sample_count(recipe, sequences=0)
    return mix(data.train_data, sequences_of, samples=samples, seed=recipe.trainer.seed)


def held_out_documents(
    recipe: ExtensionRecipe, tokenizer: PreTrainedTokenizerBase, bad_rows: BadRows
) -> list[EvalDocument]:
    """Return the evaluation documents, each cut to ``eval_length`` tokens, so that positions compare."""
    length = recipe.evaluation.eval_length
    cache = paths.data_cache(recipe.data.data_cache)
    documents: list[EvalDocument] = []
    problems = []
    for spec in recipe.data.eval_data:
        for row in scored_rows([spec], tokenizer, cache, bad_rows):
            if len(row["input_ids"]) < length:
                wrong = f"{row['name']} has {len(row['input_ids'])} tokens, fewer than eval_length = {length}"
                problems.append(
                    Problem("eval_data", spec, wrong, "name longer documents, or lower eval_length")
                )
                continue
            name = row["name"]
            # two specs may each have a document of this name
            if any(document.name == name for document in documents):
                name = f"{name} ({spec})"
            documents.append(EvalDocument(name, torch.tensor([row["input_ids"][:length]])))
    raise_if_any(problems)
    return documents
