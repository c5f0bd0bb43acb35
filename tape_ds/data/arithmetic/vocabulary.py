"""The tokenizer of a task: a token for every letter, and four special ones before them."""

from typing import TYPE_CHECKING

from tape_ds.data.arithmetic.tasks import SPECIAL, TASKS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, UNK, BOS, EOS = 0, 1, 2, 3
"""Ids of the special tokens. Rows have no BOS, as published."""


def tokenizer(task_name: str) -> "PreTrainedTokenizerFast":
    """The tokenizer of a task; ``AutoTokenizer`` reads the folder that it is saved in.

    It adds nothing to a text: the rows of training add EOS, and a prompt is encoded as it stands.

    Raises:
        KeyError: there is no such task.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pad, unk, bos, eos = SPECIAL
    entries = {token: number for number, token in enumerate(TASKS[task_name].vocabulary)}
    backend = Tokenizer(models.WordLevel(entries, unk_token=unk))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        unk_token=unk,
        bos_token=bos,
        eos_token=eos,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
