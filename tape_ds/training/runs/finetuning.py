"""From a checked fine-tuning recipe to a run: a whole model, sequences of prompts and answers; of SCROLLS: its
questions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from tape_ds import methods, paths
from tape_ds.checkpoint import trained
from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.scrolls import examples, sequences
from tape_ds.data.selection import token_counts
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.models import rows as rows_of_vocabulary
from tape_ds.models.loading import configuration, extendable, model_folder
from tape_ds.models.loading.extendable import Config
from tape_ds.encodings import scaling, trained_rope
from tape_ds.config.finetuning import HELD_OUT, TRAIN, ChatRecipe, FinetuningRecipe, ScrollsRecipe
from tape_ds.scoring.answers import Prompt
from tape_ds.training import identity, model_config
from tape_ds.training.runs.answering import Finetuning, Tokenized
from tape_ds.training.runs.chat import ChatTuning
from tape_ds.training.runs.extension import base_path
from tape_ds.training.run import Started, sample_count, start, weights_dtype


@dataclass(frozen=True, kw_only=True)
class ScrollsTuning(Finetuning):
    """A run that learns to answer the questions of one data set."""

    recipe: ScrollsRecipe

    @staticmethod
    def fingerprints_of(recipe: ScrollsRecipe, *, held_out: bool) -> dict[str, str]:
        """Of each split that is read."""
        data = recipe.data
        return {
            f"scrolls:{data.dataset}/{split}": examples.fingerprint(data.dataset, split, data.data_dir)
            for split in ([TRAIN, HELD_OUT] if held_out else [TRAIN])
        }

    @staticmethod
    def fit(recipe: ScrollsRecipe, tokenizer: PreTrainedTokenizerBase) -> list[Problem]:
        """An answer must be able to end."""
        if tokenizer.eos_token_id is not None:
            return []
        remedy = "give a model whose tokenizer names its eos_token"
        return [Problem("model", recipe.model.model, "its tokenizer has no EOS token, so no answer could end", remedy)]

    @staticmethod
    def tokenized(recipe: ScrollsRecipe, tokenizer: PreTrainedTokenizerBase, day: date, bad_rows: BadRows) -> Tokenized:
        """A sequence for each reference answer; of the held-out questions one for each."""
        data = recipe.data
        read = partial(
            sequences.tokenize,
            data.dataset,
            data_dir=data.data_dir,
            tokenizer=tokenizer,
            form=sequences.SequenceForm(data.max_tokens, data.answer_tokens, data.reference_format),
            cache_dir=paths.data_cache(data.data_cache),
            bad_rows=bad_rows,
        )
        train = read(TRAIN)
        held_out = read(HELD_OUT, questions=data.eval_examples) if data.eval_examples else []
        return Tokenized(
            sequences=train,
            lengths=token_counts(train),
            asked=[Prompt(torch.tensor([row["input_ids"]]), row["targets"]) for row in held_out],
            cut={"train": sequences.cut(train)} | ({"held out": sequences.cut(held_out)} if held_out else {}),
            ends=(int(tokenizer.eos_token_id),),
        )

    def describe_data(self) -> dict[str, str]:
        """Sequences and questions."""
        return {
            "data": f"{self.recipe.data.named}: {len(self.sequences.lengths):,} sequences",
            "held out": f"{len(self.asked):,} questions of {HELD_OUT}" if self.asked else "nothing",
            **tokenizers.bos_note(self.tokenizer, self.config),
        }


def assemble(recipe: FinetuningRecipe) -> Finetuning:
    """Build everything up to the trainer.

    Raises:
        UserError: whatever only the model's own files or the data can tell, on every rank alike.
    """
    kind: type[Finetuning] = ChatTuning if isinstance(recipe, ChatRecipe) else ScrollsTuning
    base = model_folder.resolve(base_path(recipe.model.model))
    native = configuration.read(base)
    raise_if_any(model_config.check_fit(recipe, native))
    config = model_config.finetuned(recipe, native)
    tokenizer = tokenizers.load(base, "model")
    raise_if_any([*rows_of_vocabulary.check_rows(native, tokenizer), *kind.fit(recipe, tokenizer)])
    read = partial(kind.fingerprints_of, recipe, held_out=False)
    decides = identity.of(recipe, tokenizer, read(), base) | kind.decides(tokenizer)
    started = start(recipe, config, decides, read)
    arguments, bad_rows = started.arguments, BadRows(recipe.data.skip.bad_rows)
    found = kind.tokenized(recipe, tokenizer, _first_day(started), bad_rows)
    length_note = _note_beyond(recipe, found.lengths, native, config, kind.TEXTS)
    samples = sample_count(recipe, len(found.sequences))
    config = model_config.finetuned(recipe, native, int(found.lengths.max()))
    model = extendable.load(base, config, dtype=weights_dtype(arguments))
    _stop_at(found.ends, model.generation_config)
    prepared = methods.prepare("full", model, settings=None)
    return kind(
        recipe=recipe,
        arguments=arguments,
        origin=trained.origin(base_path(recipe.model.model), base),
        config=config,
        model=prepared.model,
        names=prepared.names,
        tokenizer=tokenizer,
        sequences=kind.SERVING(
            found.sequences, samples=samples, seed=arguments.seed, step_sequences=recipe.global_batch_size
        ),
        bad_rows=bad_rows,
        asked=found.asked,
        cut=found.cut,
        notes={**found.notes, **length_note},
        identity={**decides, **found.decides},
        resumed=started.resumed,
    )


def _first_day(started: Started) -> date:
    """Return the day on which the run was first started, the same on all ranks."""
    saved = started.resumed.manifest.identity.get(identity.DATE) if started.resumed else None
    return date.fromisoformat(started.rank_sync.first(saved or date.today().isoformat()))


def reach(native: PreTrainedConfig, config: Config) -> float:
    """Return the tokens of a text that a base model, used as ``config``, has rotary angles for; infinite where its
    encoding is another, or is scaled by the text's length."""
    rope = config.rope_parameters or {}
    if getattr(config, "position_encoding", model_config.PLAIN) != model_config.PLAIN or scaling.is_dynamic(rope):
        return math.inf
    return trained_rope.read(native.to_dict(), native.name_or_path).reach


def _note_beyond(
    recipe: FinetuningRecipe, lengths: np.ndarray, native: PreTrainedConfig, config: Config, texts: str
) -> dict[str, str]:
    """Return a line of the outline where texts are longer than the model reaches, and the run is forced.

    Raises:
        UserError: it is not.
    """
    reached = reach(native, config)
    beyond = int((lengths > reached).sum())
    if not beyond:
        return {}
    limit, longest = int(reached), int(lengths.max())
    wrong = f"{beyond:,} of {len(lengths):,} {texts} are longer than the model's native length, {limit:,} tokens (the "
    wrong += f"longest: {longest:,}), and its RoPE has no scaling for them"
    remedy = f"extend the model first (tape-ds extend), or --max_tokens {limit}, or --force to train as it is"
    rope = trained_rope.read(native.to_dict(), native.name_or_path)
    if rope.window is None:  # config.json does not decide it
        wrong += f", unless its {scaling.described(rope.parameters)} begins there"
        remedy += f"; if it does, write max_sequence_length: {round(rope.factor * limit)} into its config.json"
    if not recipe.memory.force:
        raise UserError(Problem("max_tokens", recipe.data.max_tokens, wrong, remedy))
    return {"length": wrong}


def _stop_at(ends: Sequence[int], generation: GenerationConfig) -> None:
    """Name what ends an answer among the ends of a model's generation, which are saved with it."""
    own = generation.eos_token_id
    known = [] if own is None else own if isinstance(own, list) else [own]
    if missing := [each for each in ends if each not in known]:
        generation.eos_token_id = [*known, *missing]
        generation._from_model_config = False  # else transformers may take the configuration's single one instead
