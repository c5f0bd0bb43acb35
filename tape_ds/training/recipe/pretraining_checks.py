"""Whether the parts of a pretraining recipe agree: sizes of a model, its vocabulary, lengths that can be scored."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tape_ds.errors import Problem, UserError
from tape_ds.training.recipe import address_checks
from tape_ds.training.recipe.checks import Checks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tape_ds.training.recipe.pretraining import PretrainingRecipe

CHECKS = Checks()

_SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    "head_dim",
)
_ENCODING = ("position_encoding", "position_options", "rope_parameters", "state_dtype", "attention_backend")


@CHECKS.reads(*_SIZES, *_ENCODING, "rms_norm_eps", "initializer_range", "vocab_size", "window")
def _model(recipe: "PretrainingRecipe") -> Iterator[Problem]:
    """Sizes that are numbers of something; then whatever the model's own configuration refuses."""
    from huggingface_hub.errors import StrictDataclassError

    model, free_heads = recipe.model, "head_dim" in recipe.given
    small = [name for name in _SIZES if getattr(model, name) < 1 and (name != "head_dim" or free_heads)]
    for name in small:
        yield Problem(name, getattr(model, name), "too small", "give 1 or more")
    unscaled = [name for name in ("rms_norm_eps", "initializer_range") if getattr(model, name) <= 0]
    for name in unscaled:
        yield Problem(name, getattr(model, name), "out of range", "give a number above 0")
    if small or unscaled or (model.vocab_size is not None and model.vocab_size < 1):
        return
    if not free_heads and model.hidden_size % model.num_attention_heads:
        wrong = f"not divisible by num_attention_heads = {model.num_attention_heads}"
        yield Problem("hidden_size", model.hidden_size, wrong, "choose a multiple, or give head_dim")
        return
    from tape_ds.model import positions

    wrong_options = positions.check_options(model.position_encoding, model.position_options)
    if wrong_options:
        yield from wrong_options
        return
    try:
        recipe.model_config(_some_tokenizer(), model.vocab_size or 2**31)
    except UserError as error:
        yield from error.problems
    except (StrictDataclassError, ValueError) as error:
        reason = " ".join(str(error).split())
        yield Problem("model", recipe.name, f"transformers refuses it: {reason}", "change the field it names")


def _some_tokenizer() -> "PreTrainedTokenizerBase":
    """Stands in for the run's tokenizer, which no check loads, where an encoding takes something from it."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({".": 0}, unk_token=".")))


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
