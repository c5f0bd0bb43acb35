"""The tokenizer of a generated task: its words, and four special tokens before them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tape_ds.data.generated.task import SPECIAL, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def ids_of(vocabulary: Sequence[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(vocabulary)}


def tokenizer(task: Task) -> "PreTrainedTokenizerFast":
    """Return the tokenizer of a task; ``AutoTokenizer`` loads the folder that it is saved in.

    It adds nothing to a text: training sequences have the EOS of their task, and prompts are encoded as they are.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pad, unk, bos, eos = SPECIAL
    backend = Tokenizer(models.WordLevel(ids_of(task.vocabulary), unk_token=unk))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if task.by_character:
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
