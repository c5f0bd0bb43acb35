"""The probability of every token of a prompt, for ``echo`` with ``logprobs``."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tape_ds.scoring.losses import head_of
from tape_ds.serving.generation import Scored, require_finite, scored
from tape_ds.serving.refusal import RefusalError
from tape_ds.serving.served import Served

CHUNK = 1024
"""Positions whose logits exist at once: those of 16,384 and 49,152 entries would be 3 GiB."""


@torch.no_grad()
def score_prompt(
    served: Served, ids: Sequence[int], likeliest: int, check: Callable[[], None]
) -> tuple[list[Scored], Tensor]:
    """Return the tokens of a prompt with their probabilities, and the logits [V] of the token after it.

    Args:
        served: its model.
        ids: the prompt's, one or more; the first has no probability.
        likeliest: how many of the likeliest tokens to name.
        check: is called before each part; raises once the client has left.
    """
    try:
        head = head_of(served.model)
    except ValueError as error:
        raise RefusalError(f"echo with logprobs: {error}.", "echo") from error
    check()
    ids_1T = torch.tensor([ids], device=served.device)
    hidden_TD = served.model.base_model(input_ids=ids_1T, use_cache=False).last_hidden_state[0]
    found = [Scored(ids[0])]
    targets = ids[1:]
    for start in range(0, len(targets), CHUNK):
        check()
        part = targets[start : start + CHUNK]
        found += scored(head(hidden_TD[start : start + len(part)]), part, likeliest)
    logits_V = head(hidden_TD[-1:])[0].float()
    require_finite(logits_V)
    return found, logits_V
