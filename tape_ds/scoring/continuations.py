"""How likely a text goes on in given ways: the sum over a continuation's tokens of their log-probabilities.

Multiple choice is scored so. What is read is often shared: all one-token answers to a question hang on the same text,
so a sequence is read once for all of its continuations. Sequences are padded on the right, where nothing real looks;
the output head is applied only where a continuation stands, a stretch at a time, so that memory does not grow with the
vocabulary times the length. Log-probabilities come from fp32 logits and are summed in fp64.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tape_ds.scoring.causal_lm import bare, evaluating, head_of

CHUNK = 1024
"""Positions whose logits exist at once."""


@dataclass(frozen=True)
class ContinuationSequence:
    """What the model reads, and the continuations that end one token behind it."""

    read: tuple[int, ...]
    """Token ids: the context, and all of a continuation but its last token."""
    continuations: tuple[tuple[int, ...], ...]
    """Token ids; of each, all but the last are the end of ``read``."""


class ContinuationScore(NamedTuple):
    """Of one continuation."""

    log_probability: float
    """Sum over its tokens, in nats."""
    greedy: bool
    """Whether every token of it was the most likely one."""


@torch.no_grad()
def score(
    model: nn.Module, sequences: Sequence[ContinuationSequence], *, chunk: int = CHUNK
) -> list[list[ContinuationScore]]:
    """Score every continuation of every sequence, in one forward pass.

    Args:
        model: a causal LM of transformers or of this project, bare or wrapped; it is asked in evaluation mode.
        sequences: of any lengths; memory is that of the longest times their number.
        chunk: positions whose logits exist at once.

    Raises:
        ValueError: an empty sequence or continuation, a continuation longer than what is read, ``chunk`` below 1, or
            what :func:`head_of` refuses.
    """
    if chunk < 1 or not sequences or not all(_fits(sequence) for sequence in sequences):
        raise ValueError(
            f"{len(sequences)} sequences, chunk = {chunk}: each needs tokens and continuations that end behind"
        )
    causal_lm = bare(model)
    head = head_of(causal_lm)
    device = causal_lm.get_input_embeddings().weight.device
    ids_BT = torch.zeros(len(sequences), max(len(sequence.read) for sequence in sequences), dtype=torch.long)
    for number, sequence in enumerate(sequences):
        ids_BT[number, : len(sequence.read)] = torch.tensor(sequence.read)
    with evaluating(causal_lm):
        hidden_BTD = causal_lm.base_model(input_ids=ids_BT.to(device), use_cache=False).last_hidden_state
        found = _targets(head, hidden_BTD, sequences, chunk)
    return [
        [ContinuationScore(*found[number, each]) for each in sequence.continuations]
        for number, sequence in enumerate(sequences)
    ]


def _fits(sequence: ContinuationSequence) -> bool:
    return bool(sequence.continuations) and all(0 < len(each) <= len(sequence.read) for each in sequence.continuations)


def _targets(
    head: Callable[[Tensor], Tensor], hidden_BTD: Tensor, sequences: Sequence[ContinuationSequence], chunk: int
) -> dict[tuple[int, tuple[int, ...]], tuple[float, bool]]:
    """Log-probability and greediness of each (sequence, continuation).

    E entries: a target token each, in the order of the positions that predict them.
    """
    entries = sorted(
        (number, len(sequence.read) - len(each) + place, token, number, each)
        for number, sequence in enumerate(sequences)
        for each in set(sequence.continuations)
        for place, token in enumerate(each)
    )
    places = sorted({(number, position) for number, position, *_ in entries})
    order = {place: index for index, place in enumerate(places)}
    at_E = torch.tensor([order[number, position] for number, position, *_ in entries])
    token_E = torch.tensor([token for _, _, token, *_ in entries])
    where_M2 = torch.tensor(places, device=hidden_BTD.device)
    hidden_MD = hidden_BTD[where_M2[:, 0], where_M2[:, 1]]
    log_probability_E = torch.empty(len(entries), dtype=torch.float64)
    greedy_E = torch.empty(len(entries), dtype=torch.bool)
    for start in range(0, len(places), chunk):
        logits_CV = head(hidden_MD[start : start + chunk]).float()
        first, last = torch.searchsorted(at_E, torch.tensor([start, start + chunk])).tolist()
        rows_E, wanted_E = (at_E[first:last] - start).to(logits_CV.device), token_E[first:last].to(logits_CV.device)
        normaliser_C = logits_CV.logsumexp(dim=-1)
        log_probability_E[first:last] = (logits_CV[rows_E, wanted_E] - normaliser_C[rows_E]).cpu().double()
        greedy_E[first:last] = (logits_CV.argmax(dim=-1)[rows_E] == wanted_E).cpu()
    found: dict[tuple[int, tuple[int, ...]], tuple[float, bool]] = {}
    pairs = zip(entries, log_probability_E.tolist(), greedy_E.tolist(), strict=True)
    for (*_, number, each), log_probability, greedy in pairs:
        total, all_greedy = found.get((number, each), (0.0, True))
        found[number, each] = (total + log_probability, all_greedy and greedy)
    return found
