"""A decoder's arguments before the first block: documents, padding, embeddings, the backend.

Shape letters: B batch, T tokens of this call, S keys (cached ones included), D hidden size.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast

from tape_ds.attention import requested
from tape_ds.attention.document_layout import (
    FEW_QUERIES,
    DocumentLayout,
    check_packed_sequences,
    ids_of_packed_sequences,
    ids_of_positions,
    layout_of_ids,
    layout_of_packed_sequences,
)
from tape_ds.models.sharding import Shards

CACHE = dataclasses.fields(BaseModelOutputWithPast)[1].name
"""transformers' name of a cache in arguments and outputs: ``cache``, or ``past_key_values`` before 5.24."""


def past_length(past_key_values: Cache | None) -> int | Tensor:
    """Return tokens already in the cache: an int, or a tensor of its own inside a compiled graph (a static cache counts
    in place, and a length that changes the shapes would recompile at every token)."""
    length = past_key_values.get_seq_length() if past_key_values is not None else 0
    if isinstance(length, Tensor):
        return length.clone() if torch.compiler.is_compiling() else int(length)
    return length


def local_embeddings(
    shards: Shards,
    embedding: nn.Module,
    input_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    layout: DocumentLayout | None,
) -> Tensor:
    """Return embeddings of this process's tokens, [B, T, D] where sequences are not shared. Those of padding, and
    beyond a shared sequence's end, are 0: a weight's gradient is a sum over all sequences, and 0 times NaN is NaN."""
    if inputs_embeds is None:
        assert input_ids is not None
        hidden_BTD, tokens = embedding(shards.mapped_tokens(input_ids, filling=0)), input_ids.shape[1]
    else:
        hidden_BTD, tokens = shards.local_tokens(inputs_embeds, filling=0), inputs_embeds.shape[1]
    if layout is None or not (layout.may_pad or shards.splits_sequences):
        return hidden_BTD
    places = torch.arange(tokens, device=hidden_BTD.device) + layout.offset
    own_BT = shards.local_tokens(layout.ids_BS.index_select(1, places), filling=-1)
    return hidden_BTD.masked_fill((own_BT < 0)[..., None], 0.0)


class Documents(NamedTuple):
    """Documents and padding of a call, as :meth:`tape_ds.models.llama.TapeModel.forward` takes them."""

    attention_mask: Tensor | None
    document_ids: Tensor | None
    seq_idx: Tensor | None
    cu_seq_lens: Tensor | None
    longest: int | None
    position_ids: Tensor | None

    def layout(self, sequences: int, tokens: int, offset: int | Tensor) -> DocumentLayout | None:
        """Return what layers read of it, for ``sequences`` sequences of ``tokens`` new tokens behind ``offset`` cached
        ones; None where there is neither padding nor a second document."""
        self._check(sequences, tokens, offset)
        if self.cu_seq_lens is not None and self.attention_mask is None:
            assert self.longest is not None
            return layout_of_packed_sequences(self.cu_seq_lens, self.longest, sequences, tokens)
        ids = self._ids(sequences, tokens, offset)
        if ids is None:
            return None
        if isinstance(offset, int):
            ids = ids[:, : offset + tokens]  # an unused end of a static cache plays no part
        layout = layout_of_ids(ids.expand(sequences, -1), tokens, offset)
        if layout is not None and tokens > FEW_QUERIES and not torch.compiler.is_compiling():
            _ = layout.packed  # now, so that no layer waits for the device
        return layout

    def _ids(self, sequences: int, tokens: int, offset: int | Tensor) -> Tensor | None:
        """Return the document of each key, -1 = padding; the first that is told: packed sequences, ids, a mask,
        positions."""
        mask, ids = self.attention_mask, self.document_ids if self.document_ids is not None else self.seq_idx
        if self.cu_seq_lens is not None:
            ids = ids_of_packed_sequences(self.cu_seq_lens, sequences, tokens)
        if mask is not None:
            return torch.where(mask == 0, -1, 0) if ids is None else ids.masked_fill(mask[:, : ids.shape[1]] == 0, -1)
        if ids is not None:
            return ids
        cached = not isinstance(offset, int) or offset > 0
        return None if self.position_ids is None or cached or tokens < 2 else ids_of_positions(self.position_ids)

    def _check(self, sequences: int, tokens: int, offset: int | Tensor) -> None:
        for name in ("attention_mask", "document_ids", "seq_idx"):
            _check_mask(name, getattr(self, name), tokens, offset)
        if self.cu_seq_lens is None:
            return
        if not isinstance(offset, int) or offset:
            raise ValueError("cu_seq_lens_q packs sequences without a cache: call the model with use_cache=False")
        if self.longest is None:
            raise ValueError("cu_seq_lens_q needs max_length_q, the tokens of the longest document, beside it")
        check_packed_sequences(self.cu_seq_lens, self.longest, sequences, tokens)


def _check_mask(name: str, mask: Tensor | None, tokens: int, offset: int | Tensor) -> None:
    if mask is None:
        return
    if mask.dim() != 2:
        raise ValueError(
            f"{name} has {mask.dim()} dimensions; give [batch, tokens] (0 = padding), or document_ids for "
            "documents packed into one sequence: ready-made 4D masks are not supported"
        )
    if isinstance(offset, int) and mask.shape[1] < offset + tokens:
        raise ValueError(f"{name} has {mask.shape[1]} columns; give one per key: {offset} cached and {tokens} new ones")


def resolve_backend(config: PreTrainedConfig) -> str:
    """Return the configured attention backend, or the environment's; transformers' "eager" means the one that returns
    weights."""
    backend = requested(config.attention_backend)
    return "reference" if backend == "auto" and config._attn_implementation == "eager" else backend


def require_weights(config: PreTrainedConfig, asked: Mapping[str, Any]) -> None:
    if asked.get("output_attentions", config.output_attentions) and resolve_backend(config) != "reference":
        raise ValueError(
            "output_attentions: only the reference backend computes attention weights; "
            "load the model with attn_implementation='eager' or attention_backend='reference'"
        )
