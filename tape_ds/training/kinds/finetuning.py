"""From a checked fine-tuning recipe to a run: a whole model, sequences of prompts and answers; of SCROLLS: its
questions."""

from dataclasses import dataclass
from typing import Any

import datasets
import torch
from transformers import PreTrainedTokenizerBase

from tape_ds import methods, paths
from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.scrolls import examples, sequences
from tape_ds.data.scrolls.sequences import AnswerSequences
from tape_ds.errors import Problem, raise_if_any
from tape_ds.model import convert, extendable
from tape_ds.model import rows as rows_of_vocabulary
from tape_ds.recipe.finetuning import HELD_OUT, TRAIN, ChatRecipe, FinetuningRecipe, ScrollsRecipe, data_origin
from tape_ds.recipe.scale import check_model
from tape_ds.recipe.sections import check_trained, learns
from tape_ds.scoring.answers import Asked
from tape_ds.training import identity, model_config
from tape_ds.training.kinds.answering import Finetuning, Material
from tape_ds.training.kinds.chat import ChatTuning
from tape_ds.training.kinds.extension import base_path
from tape_ds.training.run import require_room, require_same, sample_count, start, weights_dtype


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
    def decides(recipe: ScrollsRecipe, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """Nothing more."""
        return {}

    @staticmethod
    def material(recipe: ScrollsRecipe, tokenizer: PreTrainedTokenizerBase) -> Material:
        """A sequence for each reference answer; of the held-out questions one for each."""
        train = tokenized(recipe, tokenizer, TRAIN)
        count = recipe.data.eval_examples
        held_out = tokenized(recipe, tokenizer, HELD_OUT, count) if count else None
        return Material(
            sequences=train,
            serving=AnswerSequences,
            asked=[Asked(torch.tensor([row["input_ids"]]), row["targets"]) for row in held_out or []],
            cut={"train": sequences.cut(train)}
            | ({"held out": sequences.cut(held_out)} if held_out is not None else {}),
        )

    def describe_data(self) -> dict[str, str]:
        """Sequences and questions."""
        data = self.recipe.data
        return {
            "data": f"{data.dataset} of {data.data_dir or data_origin(data.dataset)}: "
            f"{len(self.sequences.lengths):,} sequences",
            "held out": f"{len(self.asked):,} questions of {HELD_OUT}" if self.asked else "nothing",
        }


def assemble(recipe: FinetuningRecipe) -> Finetuning:
    """Build everything up to the trainer.

    Raises:
        UserError: whatever only the model's own files or the data can tell, on every rank alike.
    """
    kind: type[Finetuning] = ChatTuning if isinstance(recipe, ChatRecipe) else ScrollsTuning
    base = convert.resolve(base_path(recipe.model.model))
    native = extendable.read_config(base)
    raise_if_any([*extendable.check(native), *check_model(recipe.scale, native)])
    config = model_config.finetuned(recipe, native)
    learned = learns(config.position_encoding, getattr(config, "position_options", None) or {})
    raise_if_any(list(check_trained(recipe.optimization, learned)))
    read = kind.fingerprints_of(recipe, held_out=False)
    started = start(recipe, read)
    arguments = started.arguments
    tokenizer = tokenizers.load(base, "model")
    raise_if_any([*rows_of_vocabulary.check_rows(native, tokenizer), *kind.fit(recipe, tokenizer)])
    decides = identity.of(recipe, tokenizer, read, base) | kind.decides(recipe, tokenizer)
    require_same(recipe, started, decides)
    found = kind.material(recipe, tokenizer)
    samples = sample_count(recipe, len(found.sequences))
    require_room(recipe, config, started.rank_sync)
    model = extendable.load(base, config, dtype=weights_dtype(arguments))
    prepared = methods.prepare("full", model, settings=None)
    return kind(
        recipe=recipe,
        arguments=arguments,
        config=config,
        model=prepared.model,
        names=prepared.names,
        tokenizer=tokenizer,
        sequences=found.serving(
            found.sequences, samples=samples, seed=arguments.seed, step_sequences=recipe.global_batch_size
        ),
        asked=found.asked,
        cut=found.cut,
        identity=decides,
        resumed=started.resumed,
    )


def tokenized(
    recipe: ScrollsRecipe, tokenizer: PreTrainedTokenizerBase, split: str, questions: int | None = None
) -> datasets.Dataset:
    """Return the sequences of a split, one for each reference answer; or of so many questions, one for each.

    Raises:
        UserError: the data.
    """
    data = recipe.data
    form = sequences.SequenceForm(data.max_tokens, data.answer_tokens, data.reference_format)
    cache = paths.data_cache(data.data_cache)
    return sequences.tokenized(data.dataset, split, data.data_dir, tokenizer, form, cache, questions)
