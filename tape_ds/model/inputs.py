"""What a decoder's forward makes of its arguments before the first block: places, masks, padding, the backend.

Shape letters: B batch, T tokens of this call, S keys (cached ones included), D hidden size.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache

from tape_ds.model.attention import requested
from tape_ds.model.sharding import Shards


def past_length(past_key_values: Cache | None) -> int | Tensor:
    """Tokens already in the cache: an int, or a tensor of its own inside a compiled graph (a static cache counts in
    place, and a length that changes the shapes would recompile at every token)."""
    length = past_key_values.get_seq_length() if past_key_values is not None else 0
    if isinstance(length, Tensor):
        return length.clone() if torch.compiler.is_compiling() else int(length)
    return length


def rows_that_differ(position_ids: Tensor) -> Tensor:
    """One row [1, T] where all rows are alike, as in packed training: angles and biases are then computed once for the
    batch, not once for each row."""
    if len(position_ids) == 1 or torch.compiler.is_compiling():
        return position_ids
    return position_ids[:1] if bool((position_ids == position_ids[:1]).all()) else position_ids


def own_embeddings(
    shards: Shards,
    embedding: nn.Module,
    input_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    documents: Tensor | None,
    offset: int | Tensor,
) -> Tensor:
    """Embeddings of this process's tokens, [B, T, D] where rows are not shared; those of padding, and of what lies
    behind a shared row's end, are 0: a weight's gradient is a sum over all rows, and 0 times NaN is NaN.

    Args:
        shards: of rows of T tokens.
        embedding: the decoder's.
        input_ids: int64 [B, T]; or ``inputs_embeds`` [B, T, D].
        inputs_embeds: see there.
        documents: int [B, S], of all keys, -1 = padding; None: neither padding nor a second document.
        offset: place of the first token on the key axis.
    """
    if inputs_embeds is None:
        assert input_ids is not None
        hidden_BTD, tokens = shards.embed(embedding, input_ids), input_ids.shape[1]
    else:
        hidden_BTD, tokens = shards.mine(inputs_embeds, filling=0), inputs_embeds.shape[1]
    if documents is None:
        return hidden_BTD
    places = torch.arange(tokens, device=hidden_BTD.device) + offset
    own_BT = shards.mine(documents.index_select(1, places), filling=-1)
    return hidden_BTD.masked_fill((own_BT < 0)[..., None], 0.0)


def merge_masks(
    attention_mask: Tensor | None, document_ids: Tensor | None, tokens: int, offset: int | Tensor
) -> Tensor | None:
    """One int tensor [B, S] for ``attend``, or None where there is neither padding nor a second document."""
    for name, mask in (("attention_mask", attention_mask), ("document_ids", document_ids)):
        if mask is None:
            continue
        if mask.dim() != 2:
            raise ValueError(
                f"{name} has {mask.dim()} dimensions; give [batch, tokens] (0 = padding), or document_ids for "
                "documents packed into one row: ready-made 4D masks are not supported"
            )
        if isinstance(offset, int) and mask.shape[1] < offset + tokens:
            raise ValueError(
                f"{name} has {mask.shape[1]} columns; give one per key: {offset} cached and {tokens} new ones"
            )
    if attention_mask is None:
        documents = document_ids
    elif document_ids is None:
        documents = torch.where(attention_mask == 0, -1, 0)
    else:
        documents = document_ids.masked_fill(attention_mask[:, : document_ids.shape[1]] == 0, -1)
    if documents is None or torch.compiler.is_compiling():
        return documents
    one_document = (documents == documents[:, :1]) & (documents >= 0)
    return None if bool(one_document.all()) else documents


def resolve_backend(config: PreTrainedConfig) -> str:
    """The configured attention backend, or the environment's; transformers' "eager" means the one that returns
    weights."""
    backend = requested(config.attention_backend)
    return "reference" if backend == "auto" and config._attn_implementation == "eager" else backend


def require_weights(config: PreTrainedConfig, asked: Mapping[str, Any]) -> None:
    """Raise ValueError where a call asks for attention weights that the backend does not compute."""
    if asked.get("output_attentions", config.output_attentions) and resolve_backend(config) != "reference":
        raise ValueError(
            "output_attentions: only the reference backend computes attention weights; "
            "load the model with attn_implementation='eager' or attention_backend='reference'"
        )
