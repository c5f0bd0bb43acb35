"""Whether the parts of a pretraining recipe agree: the vocabulary, lengths that can be scored, what is streamed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tape_ds.errors import Problem
from tape_ds.training.recipe import address_checks
from tape_ds.training.recipe.checks import Checks

if TYPE_CHECKING:
    from tape_ds.training.recipe.pretraining import PretrainingRecipe

CHECKS = Checks()


@CHECKS.reads("tokenizer", "vocab_size")
def _vocabulary(recipe: "PretrainingRecipe") -> Iterator[Problem]:
    """One of the two decides; that a given tokenizer has that many entries is known once it is loaded."""
    tokenizer, size = recipe.data.tokenizer, recipe.model.vocab_size
    if tokenizer is None and size is None:
        remedy = "give the entries of the tokenizer to train, or tokenizer: a folder, a hub id or smollm2"
        yield Problem("vocab_size", None, "missing, and so is a tokenizer", remedy)
    if size is not None and size < 1:
        yield Problem("vocab_size", size, "too small", "give some thousands")
    if tokenizer is not None:
        files = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
        yield from address_checks.check_pretrained("tokenizer", tokenizer, files)


@CHECKS.reads("window", "eval_lengths", "eval_tokens")
def _lengths(recipe: "PretrainingRecipe") -> Iterator[Problem]:
    window, lengths, tokens = recipe.data.window, recipe.evaluation.eval_lengths, recipe.evaluation.eval_tokens
    if window < 2:
        yield Problem("window", window, "too small", "give 2 tokens or more (the first is no target)")
        return
    if not lengths:
        yield Problem("eval_lengths", lengths, "nothing to score", "leave it out, or empty eval_data instead")
    elif min(lengths) < 2:
        yield Problem("eval_lengths", lengths, "too small", "give 2 tokens or more (the first is no target)")
    elif len(set(lengths)) < len(lengths):
        yield Problem("eval_lengths", lengths, "a length is there twice", "give each once")
    elif tokens < max(lengths):
        wrong = f"fewer than one block of {max(lengths)}, the longest of eval_lengths"
        yield Problem("eval_tokens", tokens, wrong, f"give {max(lengths)} or more")


@CHECKS.reads("streaming", "stream_lanes", "train_data", "max_steps", "dataloader_num_workers")
def _streaming(recipe: "PretrainingRecipe") -> Iterator[Problem]:
    data = recipe.data
    if not data.streaming:
        return
    from tape_ds.data.sources import KINDS

    if data.stream_lanes < 1:
        yield Problem("stream_lanes", data.stream_lanes, "too small", "give 1 or more")
    for address in data.train_data:
        kind = KINDS.get(address.partition(":")[0])
        if kind is not None and kind.tokenised:
            wrong = "holds token ids already, and is read from disk as it is needed"
            yield Problem("train_data", address, wrong, "set streaming: false")
    if (recipe.training_kwargs.get("max_steps") or 0) <= 0:
        wrong = "how many rows a stream has is not known before it has been read"
        yield Problem("max_steps", recipe.training_kwargs.get("max_steps"), wrong, "say how many steps to train")
    workers = recipe.trainer_value("dataloader_num_workers")
    if workers > 1:
        wrong = "each would read and tokenise the same stream"
        yield Problem("dataloader_num_workers", workers, wrong, "give 1 (reads ahead while training goes on) or 0")
