"""Greedy replies to prompts: the prompt is read once, into a cache, then the reply is read token by token.

A text that several questions share is read once; each question continues a cache of the text. A cache of full layers is
cut back after a reply. Other layers (sliding windows, states) have forgotten what stood there, so each question gets a
copy of the cache.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from tape_ds.models.inputs import CACHE
from tape_ds.registration import TYPES
from tape_ds.scoring import CHUNK


def reads_in_pieces(causal_lm: Any) -> bool:
    """Return whether reading a text in pieces, from a cache, is exact: an encoding of this project declares it with
    ``cache_exact``; transformers' models promise nothing."""
    return bool(getattr(getattr(causal_lm.base_model, "encoding", None), "cache_exact", False))


def why_unshared(config: PreTrainedConfig) -> str | None:
    """Return why questions that continue a cache of their text would get other replies than whole prompts do.

    None: they get the same.
    """
    text_config = config.get_text_config()
    rope: Any = getattr(text_config, "rope_parameters", None) or {}
    # some models have one for each kind of layer
    by_layer = [rope, *(each for each in rope.values() if isinstance(each, dict))]
    follows_length = {"dynamic"}
    # models of this project compute for one length, see models.used_at
    if config.model_type not in TYPES:
        follows_length.add("longrope")
    for each in by_layer:
        if each.get("rope_type") in follows_length:
            return f"its rotations follow the length of what is read at once (rope_type {each['rope_type']})"
    for layer in DynamicCache(config=config).layers:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            return f"its cache has states besides keys and values ({type(layer).__name__})"
    return None


def reply(
    causal_lm: Any,
    ids: Sequence[int],
    *,
    new_tokens: int,
    ends: Sequence[int] = (),
    chunk: int = CHUNK,
    length: int | None = None,
    use_cache: bool = True,
) -> list[int]:
    """Return the greedy continuation of a prompt, in evaluation mode.

    Args:
        causal_lm: bare, see :func:`tape_ds.scoring.losses.bare`.
        new_tokens: of the reply; without ``ends`` exactly as many.
        ends: tokens that end the reply, and are part of it.
        chunk: tokens of the prompt that are read at once, if the model :func:`reads_in_pieces`.
        length: reads in as many pieces as a prompt of this length, so that prompts of one nominal length call the same
            modules equally often. Default: the prompt's own.
        use_cache: False reads the whole text again for every new token.
    """
    cache = DynamicCache(config=causal_lm.config) if use_cache else None
    pieces = 1
    if reads_in_pieces(causal_lm):
        pieces = -(-(length or len(ids)) // chunk)
    return _continue(causal_lm, ids, cache, pieces, new_tokens, ends)


def until(ids: Sequence[int], ends: Sequence[int]) -> Sequence[int]:
    """Return the tokens in front of the first end."""
    for place, token in enumerate(ids):
        if token in ends:
            return ids[:place]
    return ids


def shared_beginning(prompts: Sequence[Sequence[int]]) -> int:
    """Return how many tokens all prompts begin with, at most all but the last one of the shortest."""
    shortest = min(map(len, prompts))
    for place in range(shortest - 1):
        if len({ids[place] for ids in prompts}) > 1:
            return place
    # a reply follows a token that was read for it alone
    return shortest - 1


def replies_sharing(
    causal_lm: Any,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    ends: Sequence[int] = (),
    chunk: int = CHUNK,
) -> list[list[int]]:
    """Return the reply to each prompt, as :func:`reply` does; what all begin with is read once.

    The beginning is found in token ids, so that the model reads exactly those of each prompt. It must be a model that
    :func:`why_unshared` allows.
    """
    # a cache of what all begin with is read on from by each
    shared = shared_beginning(prompts)
    reading: dict[str, Any] = {"new_tokens": new_tokens, "ends": ends, "chunk": chunk}
    if shared == 0:
        return [reply(causal_lm, ids, **reading) for ids in prompts]
    rest = [ids[shared:] for ids in prompts]
    return list(replies_about(causal_lm, prompts[0][:shared], rest, **reading))


def is_cuttable(cache: Any) -> bool:
    """Return whether a cache can be cut back to what it held before: layers of other kinds keep less than all."""
    return set(map(type, cache.layers)) <= {DynamicLayer}


def replies_about(
    causal_lm: Any,
    text: Sequence[int],
    questions: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    ends: Sequence[int] = (),
    chunk: int = CHUNK,
) -> Iterator[list[int]]:
    """Yield the reply to each of the questions that follow a text; the text is read once. See :func:`reply`."""
    cache = DynamicCache(config=causal_lm.config)
    pieces = 1
    if reads_in_pieces(causal_lm):
        pieces = -(-len(text) // chunk)
    _continue(causal_lm, text, cache, pieces, 1, ())
    cuttable = is_cuttable(cache)
    for question in questions:
        of_question = cache if cuttable else copy.deepcopy(cache)
        ids = _continue(causal_lm, question, of_question, 1, new_tokens, ends)
        yield ids
        if cuttable:
            # the last new token was not read
            cache.crop(-(len(question) + len(ids) - 1))


@torch.no_grad()
def _continue(
    causal_lm: Any,
    ids: Sequence[int],
    cache: DynamicCache | None,
    pieces: int,
    new_tokens: int,
    ends: Sequence[int],
) -> list[int]:
    """Read ``ids`` in a number of pieces, after the tokens of the cache; return the greedy continuation. Only the
    logits of the last token are computed."""
    ids_1T = torch.tensor([ids], device=causal_lm.get_input_embeddings().weight.device)

    def next_token(unread_1T: Tensor) -> Tensor:
        inputs = {
            "input_ids": unread_1T,
            CACHE: cache,
            "use_cache": cache is not None,
            "logits_to_keep": 1,
        }
        token_1: Tensor = causal_lm(**inputs).logits[:, -1].argmax(dim=-1)
        return token_1

    unread = ids_1T
    if cache is not None:
        *first, unread = ids_1T.tensor_split(min(pieces, len(ids)), dim=1)
        for piece_1T in first:
            next_token(piece_1T)
    chosen = [next_token(unread)]
    # without ends nothing waits for the device
    while len(chosen) < new_tokens and not (ends and int(chosen[-1]) in ends):
        last_1T = chosen[-1][None]
        ids_1T = torch.cat((ids_1T, last_1T), dim=1)
        chosen.append(next_token(ids_1T if cache is None else last_1T))
    return torch.cat(chosen).tolist()
