"""The probability of every token of a prompt, for ``echo`` with ``logprobs``."""

from collections.abc import Callable

import torch

from tape_ds.models.inputs import CACHE
from tape_ds.scoring.losses import head_of
from tape_ds.serving.generation import Scored, require_finite, scored
from tape_ds.serving.read_prompt import ReadPrompt
from tape_ds.serving.refusal import RefusalError

CHUNK = 1024
"""Positions whose logits exist at once: those of 16,384 and 49,152 entries would be 3 GiB."""


@torch.no_grad()
def score_prompt(
    prompt: ReadPrompt, likeliest: int, check: Callable[[], None], *, with_cache: bool
) -> list[Scored]:
    """Return the tokens of a prompt with their probabilities, and keep the logits of the token after it.

    Args:
        prompt: with its model; the first of its tokens has no probability.
        likeliest: how many of the likeliest tokens to name.
        check: is called before each part; raises once the client has left.
        with_cache: whether answers of more than one token follow.
    """
    served = prompt.served
    try:
        head = head_of(served.model)
    except ValueError as error:
        raise RefusalError(f"echo with logprobs: {error}.", "echo") from error
    check()
    cache = prompt.new_cache() if with_cache else None
    inputs = {
        "input_ids": torch.tensor([prompt.ids], device=served.device),
        "use_cache": cache is not None,
    }
    if cache is not None:
        inputs[CACHE] = cache
    hidden_TD = served.model.base_model(**inputs).last_hidden_state[0]
    found = [Scored(prompt.ids[0])]
    targets = prompt.ids[1:]
    for start in range(0, len(targets), CHUNK):
        # between pieces: a client that has left must not hold up the others for a whole prompt
        check()
        part = targets[start : start + CHUNK]
        found += scored(head(hidden_TD[start : start + len(part)]), part, likeliest)
    logits_1V = head(hidden_TD[-1:]).float()
    require_finite(logits_1V)
    prompt.keep(logits_1V, cache, grows=False)
    return found
