"""Whether a fine-tuning recipe's model and data are there, and whether a row has room for what it is to hold."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tape_ds.data.scrolls import examples
from tape_ds.data.scrolls.prompts import reserved
from tape_ds.errors import Problem
from tape_ds.training.recipe import address_checks
from tape_ds.training.recipe.checks import Checks

if TYPE_CHECKING:
    from tape_ds.training.recipe.finetuning import FinetuningRecipe

SMALLEST_PROMPT = 16
"""Tokens of a text below which nothing could be learnt of it; a summary's request alone has about seven."""

CHECKS = Checks()


@CHECKS.reads("model")
def _model_is_there(recipe: "FinetuningRecipe") -> Iterator[Problem]:
    yield from address_checks.check_pretrained("model", recipe.model.model, ("config.json",))


@CHECKS.reads("attention_backend")
def _attention(recipe: "FinetuningRecipe") -> Iterator[Problem]:
    from tape_ds.model import attention

    yield from attention.problems(recipe.model.attention_backend)


@CHECKS.reads("dataset", "data_dir", "eval_examples")
def _data(recipe: "FinetuningRecipe") -> Iterator[Problem]:
    """What the hub holds is known once it has been downloaded."""
    data = recipe.data
    splits = ("train", "validation") if data.eval_examples else ("train",)
    yield from examples.check(data.dataset, splits, data.data_dir)


@CHECKS.reads("max_tokens", "answer_tokens", "eval_examples")
def _sizes(recipe: "FinetuningRecipe") -> Iterator[Problem]:
    data = recipe.data
    if data.answer_tokens < 1:
        yield Problem("answer_tokens", data.answer_tokens, "too small", "give 1 or more")
    elif data.max_tokens < (least := reserved(data.answer_tokens) + SMALLEST_PROMPT):
        wrong = f"answer_tokens = {data.answer_tokens} and EOS leave fewer than {SMALLEST_PROMPT} for the text"
        yield Problem("max_tokens", data.max_tokens, wrong, f"give {least} or more, or fewer answer_tokens")
    if data.eval_examples < 0:
        yield Problem("eval_examples", data.eval_examples, "negative", "give 0 to score nothing, or more")
