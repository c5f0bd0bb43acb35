"""The targets of recipes that fine-tune a whole model, which keeps its encoding and its RoPE parameters."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from transformers import PreTrainedTokenizerBase

from tape_ds import encodings
from tape_ds.config.finetuning import HELD_OUT, TRAIN, ChatRecipe, FinetuningRecipe, ScrollsRecipe
from tape_ds.config.sections import check_trained, learns
from tape_ds.data import sources
from tape_ds.data.chat import conversations, template
from tape_ds.data.scrolls import examples
from tape_ds.data.tokenized import FIELD_OF
from tape_ds.errors import Problem
from tape_ds.models.files.config_file import TAPE
from tape_ds.models.loading.extendable import Config
from tape_ds.targets.base import BaseModel
from tape_ds.targets.fit import check_base
from tape_ds.targets.target import PretrainedTarget

F_co = TypeVar("F_co", bound=FinetuningRecipe, covariant=True)


@dataclass(frozen=True)
class FinetuningTarget(PretrainedTarget[F_co], Generic[F_co]):
    """A pretrained model that learns answers."""

    @classmethod
    def problems(cls, recipe: FinetuningRecipe, base: BaseModel) -> Iterator[Problem]:
        yield from check_base(recipe, base)
        learned = learns(base.position_encoding, base.position_options)
        yield from check_trained(recipe.optimization, recipe.trains_positions and learned)

    @classmethod
    def configure(
        cls,
        recipe: FinetuningRecipe,
        base: BaseModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> Config:
        return finetuned(recipe, base, recipe.data.max_tokens)

    def outline(self) -> dict[str, str]:
        lines = super().outline()
        note = self.recipe.note_of_length(
            self.recipe.data.max_tokens, self.config.max_position_embeddings
        )
        if note is not None:
            lines["length"] = note
        return lines


class ScrollsTarget(FinetuningTarget[ScrollsRecipe]):
    """It learns to answer the questions of a data set."""

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> list[Problem]:
        if tokenizer.eos_token_id is not None:
            return []
        wrong = "its tokenizer has no EOS token, so no answer could end"
        remedy = "give a model whose tokenizer names its eos_token"
        return [Problem("model", self.recipe.model.model, wrong, remedy)]

    def fingerprints(self, *, held_out: bool = False) -> dict[str, str]:
        data = self.recipe.data
        splits = [TRAIN]
        if held_out and data.eval_examples:
            splits.append(HELD_OUT)
        found = {}
        for split in splits:
            found[f"scrolls:{data.dataset}/{split}"] = examples.fingerprint(
                data.dataset, split, data.data_dir
            )
        return found


class ChatTarget(FinetuningTarget[ChatRecipe]):
    """It learns the assistant's turns of conversations, rendered by its own chat template or the recipe's."""

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> list[Problem]:
        return template.give(tokenizer, self.recipe.data.chat_template, self.recipe.model.model)

    def identity(self, tokenizer: PreTrainedTokenizerBase) -> Mapping[str, str]:
        return {"chat_template": hashlib.sha256(tokenizer.get_chat_template().encode()).hexdigest()}

    def fingerprints(self, *, held_out: bool = False) -> dict[str, str]:
        data = self.recipe.data
        found = {}
        for split, specs in {"train": data.train_data, "heldout": data.eval_data}.items():
            if split == "heldout" and not (held_out and data.eval_examples):
                continue
            for spec in specs:
                source = sources.parse(conversations.completed(spec), FIELD_OF[split])
                found[f"chat:{spec}/{split}"] = conversations.fingerprint(source, split)
        return found


def finetuned(recipe: FinetuningRecipe, base: BaseModel, longest: int) -> Config:
    """Return the configuration of a fine-tuned model.

    ``max_position_embeddings`` becomes ``longest``, the tokens of the longest text, where that is more; an encoding
    that depends on the length, such as ``yarn``, is trained for it.
    """
    length = max(longest, base.length)
    changes: dict[str, Any] = {"max_position_embeddings": length}
    if base.config.model_type == TAPE:
        changes["position_options"] = encodings.kept_options(base.config) or None
    config = base.as_it_is(recipe.model.attention_backend, **changes)
    if config.model_type == TAPE:
        return encodings.config_at(config, length)
    return config
