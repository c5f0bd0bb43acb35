"""A decoder's arguments before the first block: documents, padding, embeddings, the backend.

Shape letters: B batch, T tokens of this call, S keys (cached ones included), D hidden size.
"""

import dataclasses
from typing import NamedTuple

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
    """Return tokens already in the cache: an int, or a new tensor inside a compiled graph (a static cache counts in
    place, and a length that changes the shapes would recompile at every token)."""
    length = past_key_values.get_seq_length() if past_key_values is not None else 0
    if isinstance(length, Tensor):
        if torch.compiler.is_compiling():
            return length.clone()
        return int(length)
    return length


def local_embeddings(
    shards: Shards,
    embedding: nn.Module,
    input_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    layout: DocumentLayout | None,
) -> Tensor:
    """Return embeddings of this process's tokens, [B, T, D] if sequences are not shared. Those of padding, and beyond a
    shared sequence's end, are 0: a weight's gradient is a sum over all sequences, and 0 times NaN is NaN."""
    if inputs_embeds is None:
        assert input_ids is not None
        hidden_BTD = embedding(shards.mapped_tokens(input_ids, filling=0))
        tokens = input_ids.shape[1]
    else:
        hidden_BTD = shards.local_tokens(inputs_embeds, filling=0)
        tokens = inputs_embeds.shape[1]
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
        """Return the layout of ``sequences`` sequences of ``tokens`` new tokens after ``offset`` cached ones; None
        without padding and a second document.

        Raises:
            ValueError: see :meth:`tape_ds.models.llama.TapeModel.forward`.
        """
        self._check(sequences, tokens, offset)
        mask = self.attention_mask
        if self.cu_seq_lens is not None and mask is None:
            assert self.longest is not None
            return layout_of_packed_sequences(self.cu_seq_lens, self.longest, sequences, tokens)

        # the document of each key, -1 = padding: by packed sequences, ids, a mask or positions, the first that is given
        ids = self.document_ids if self.document_ids is not None else self.seq_idx
        if self.cu_seq_lens is not None:
            ids = ids_of_packed_sequences(self.cu_seq_lens, sequences, tokens)
        if mask is not None:
            ids = (
                torch.where(mask == 0, -1, 0)
                if ids is None
                else ids.masked_fill(mask[:, : ids.shape[1]] == 0, -1)
            )
        elif (
            ids is None
            and self.position_ids is not None
            and tokens > 1
            and isinstance(offset, int)
            and offset == 0
        ):
            ids = ids_of_positions(self.position_ids)
        if ids is None:
            return None

        if isinstance(offset, int):
            # without the unused end of a static cache
            ids = ids[:, : offset + tokens]
        layout = layout_of_ids(ids.expand(sequences, -1), tokens, offset)
        if layout is not None and tokens > FEW_QUERIES and not torch.compiler.is_compiling():
            # now, so that no layer waits for the device
            _ = layout.packed
        return layout

    def _check(self, sequences: int, tokens: int, offset: int | Tensor) -> None:
        for name in ("attention_mask", "document_ids", "seq_idx"):
            mask: Tensor | None = getattr(self, name)
            if mask is None:
                continue
            if mask.dim() != 2:
                raise ValueError(
                    f"{name} has {mask.dim()} dimensions; give [batch, tokens] (0 = padding), or document_ids for "
                    "documents packed into one sequence: ready-made 4D masks are not supported"
                )
            if isinstance(offset, int) and mask.shape[1] < offset + tokens:
                needed = f"{offset} cached and {tokens} new ones"
                raise ValueError(f"{name} has {mask.shape[1]} columns; give one per key: {needed}")
        if self.cu_seq_lens is None:
            return
        if not isinstance(offset, int) or offset:
            raise ValueError(
                "cu_seq_lens_q packs sequences without a cache: call the model with use_cache=False"
            )
        if self.longest is None:
            raise ValueError(
                "cu_seq_lens_q needs max_length_q too, the tokens of the longest document"
            )
        check_packed_sequences(self.cu_seq_lens, self.longest, sequences, tokens)


def resolve_backend(config: PreTrainedConfig) -> str:
    """Return the configured attention backend, or the environment's; transformers' "eager" means ``reference``."""
    backend = requested(config.attention_backend)
    if backend == "auto" and config._attn_implementation == "eager":
        return "reference"
    return backend
