"""Token ids of a text that something follows: begun as the tokenizer begins a text, without the end that some add.

A tokenizer may end every text with EOS (``add_eos_token``, a template in its ``tokenizer.json``). A model that reads a
prompt with that end answers something else, and a score that counts the end is not the text's.
"""

from typing import Any


def prompt_ids(text: str, tokenizer: Any) -> list[int]:
    """Return the ids of a prompt."""
    # verbose=False: no advice about the native length, which a prompt may exceed
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]
    return ids[prompt_part(ids, tokenizer)]


def prompt_part(ids: list[int], tokenizer: Any) -> slice:
    """Return which of a text's ids are a prompt: not the end, and not a second BOS where the text begins with one, as
    what a chat template made does."""
    begin, end = around(tokenizer)
    doubled = begin == 1 and ids[: len(ids) - end][:2] == [tokenizer.bos_token_id] * 2
    return slice(int(doubled), len(ids) - end)


def appended(tokenizer: Any) -> int:
    """Return how many tokens the tokenizer adds after every text."""
    return around(tokenizer)[1]


def around(tokenizer: Any) -> tuple[int, int]:
    """Return how many tokens the tokenizer adds before every text, and after it."""
    # Measured, since a last EOS may also be a prompt's own; with a text that this vocabulary has.
    special = {*tokenizer.all_special_ids, *tokenizer("")["input_ids"]}
    texts = (tokenizer.decode([index]) for index in range(len(tokenizer)) if index not in special)
    probe = next(text for text in texts if text.strip())
    own = tokenizer(probe, add_special_tokens=False, verbose=False)["input_ids"]
    whole = tokenizer(probe, verbose=False)["input_ids"]
    added = len(whole) - len(own)
    return next((added - end, end) for end in range(added + 1) if whole[added - end : len(whole) - end] == own)
