"""The tokenizer of a task: a token for every letter, and four special ones before them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tape_ds.data.arithmetic.tasks import SPECIAL, TASKS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, UNK, BOS, EOS = 0, 1, 2, 3
"""Ids of the special tokens. Sequences have no BOS, as published."""


def ids_of(vocabulary: Sequence[str]) -> dict[str, int]:
    """Return the id of each token."""
    return {token: number for number, token in enumerate(vocabulary)}


def tokenizer(task_name: str) -> "PreTrainedTokenizerFast":
    """Return the tokenizer of a task; ``AutoTokenizer`` reads the folder that it is saved in.

    It adds nothing to a text: the sequences of training add EOS, and a prompt is encoded as it stands.

    Raises:
        KeyError: there is no such task.
    """
    from tokenizers import Regex, decoders, pre_tokenizers

    found = of_words(TASKS[task_name].vocabulary)
    found.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    found.backend_tokenizer.decoder = decoders.Fuse()
    return found


def of_words(vocabulary: Sequence[str]) -> "PreTrainedTokenizerFast":
    """Return a tokenizer of texts whose tokens stand apart from one another by a space.

    Args:
        vocabulary: the tokens in the order of their ids, :data:`tape_ds.data.arithmetic.tasks.SPECIAL` first.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pad, unk, bos, eos = SPECIAL
    backend = Tokenizer(models.WordLevel(ids_of(vocabulary), unk_token=unk))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        unk_token=unk,
        bos_token=bos,
        eos_token=eos,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
