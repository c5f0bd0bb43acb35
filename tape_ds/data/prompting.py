"""Token ids of a prompt: with the tokenizer's beginning of a text, without its end.

A tokenizer may end every text with EOS (``add_eos_token``, a template in its ``tokenizer.json``), which would change a
model's answer to a prompt and the score of a text.
"""

from typing import Any


def prompt_ids(text: str, tokenizer: Any) -> list[int]:
    # verbose=False: no warning about the native length, which a prompt may exceed
    ids = _encoded(text, tokenizer)
    return ids[prompt_part(ids, tokenizer)]


def middle_ids(text: str, tokenizer: Any) -> list[int]:
    """Return the ids of a text that continues another."""
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def prompt_part(ids: list[int], tokenizer: Any) -> slice:
    """Return the slice of a text's ids without its end, and without a second BOS before a text that begins with one, as
    a rendered chat does."""
    begin, end = around(tokenizer)
    doubled = begin == 1 and ids[: len(ids) - end][:2] == [tokenizer.bos_token_id] * 2
    return slice(int(doubled), len(ids) - end)


def beginning(tokenizer: Any) -> list[int]:
    """Return the ids that the tokenizer adds before every text: BOS, nothing, or several."""
    begin, _ = around(tokenizer)
    return _encoded(_probe(tokenizer), tokenizer)[:begin]


def around(tokenizer: Any) -> tuple[int, int]:
    """Return how many tokens the tokenizer adds before every text, and after it."""
    # Measured with a text of this vocabulary: a last EOS may also be part of the prompt.
    probe = _probe(tokenizer)
    bare = middle_ids(probe, tokenizer)
    whole = _encoded(probe, tokenizer)
    added = len(whole) - len(bare)
    return next(
        (added - end, end)
        for end in range(added + 1)
        if whole[added - end : len(whole) - end] == bare
    )


def _encoded(text: str, tokenizer: Any) -> list[int]:
    return list(tokenizer(text, verbose=False)["input_ids"])


def _probe(tokenizer: Any) -> str:
    """Return a short text of ordinary tokens."""
    special = {*tokenizer.all_special_ids, *tokenizer("")["input_ids"]}
    texts = (tokenizer.decode([index]) for index in range(len(tokenizer)) if index not in special)
    return next(text for text in texts if text.strip())
