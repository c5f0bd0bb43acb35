"""From a checked fine-tuning recipe to a run: a whole model, sequences of prompts and answers; of SCROLLS: its
questions."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from tape_ds import methods, paths
from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.scrolls import examples, sequences
from tape_ds.errors import Problem, raise_if_any
from tape_ds.model import convert, extendable
from tape_ds.model import rows as rows_of_vocabulary
from tape_ds.recipe.finetuning import HELD_OUT, TRAIN, ChatRecipe, FinetuningRecipe, ScrollsRecipe
from tape_ds.recipe.scale import check_model
from tape_ds.recipe.sections import check_trained, learns
from tape_ds.scoring.answers import Asked
from tape_ds.training import identity, model_config
from tape_ds.training.kinds.answering import Cut, Finetuning
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
    def tokenized(
        recipe: ScrollsRecipe, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[Dataset, list[Asked], Mapping[str, Cut]]:
        """A sequence for each reference answer; of the held-out questions one for each."""
        data = recipe.data
        read = partial(
            sequences.tokenized,
            data.dataset,
            data_dir=data.data_dir,
            tokenizer=tokenizer,
            form=sequences.SequenceForm(data.max_tokens, data.answer_tokens, data.reference_format),
            cache_dir=paths.data_cache(data.data_cache),
        )
        train = read(TRAIN)
        if not data.eval_examples:
            return train, [], {"train": sequences.cut(train)}
        held_out = read(HELD_OUT, questions=data.eval_examples)
        asked = [Asked(torch.tensor([row["input_ids"]]), row["targets"]) for row in held_out]
        return train, asked, {"train": sequences.cut(train), "held out": sequences.cut(held_out)}

    def describe_data(self) -> dict[str, str]:
        """Sequences and questions."""
        return {
            "data": f"{self.recipe.data.named}: {len(self.sequences.lengths):,} sequences",
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
    decides = identity.of(recipe, tokenizer, read, base) | kind.decides(tokenizer)
    require_same(recipe, started, decides)
    stored, asked, cut = kind.tokenized(recipe, tokenizer)
    samples = sample_count(recipe, len(stored))
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
        sequences=kind.SERVING(stored, samples=samples, seed=arguments.seed, step_sequences=recipe.global_batch_size),
        asked=asked,
        cut=cut,
        identity=decides,
        resumed=started.resumed,
    )
