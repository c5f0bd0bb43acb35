"""The model: a Llama decoder whose positional encoding is a pair of hooks.

No encoding is named here. ``registry.build`` returns the part that runs once per forward, ``registry.build_layer`` the
part of every block; parameters outside ``layers.N.position`` are those of HF Llama, name for name and bit for bit.

Shape letters: B batch, T tokens of this call, S keys (cached ones included), H query heads, G key/value heads, K head
size, V value width (K, plus the columns that the encoding carries), D hidden size.
"""

import functools
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from tape_ds import encodings
from tape_ds.attention.attend import attend, attend_with_weights
from tape_ds.attention.document_layout import DocumentLayout
from tape_ds.attention.score_bias import ScoreBias
from tape_ds.attention.shifted_groups import attend_in_groups, cut_ahead
from tape_ds.encodings import base, log_scale, registry
from tape_ds.models import cached_positions
from tape_ds.models.changed_positions import positions_of
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.inputs import Documents, local_embeddings, past_length, resolve_backend
from tape_ds.models.language_model import LanguageModel
from tape_ds.models.output_head import OutputHead
from tape_ds.models.rms_norm import RMSNorm
from tape_ds.models.sharding import UNSHARED, SequenceSharding, Shards, shards_of


class BlockInputs(NamedTuple):
    """Inputs that the blocks of one forward share."""

    heads: slice
    """The query heads that this process computes."""
    position: base.PositionLayer
    """The layer of the block that reads this."""
    start: Tensor | None = None
    """See :meth:`PositionEncoding.start`; of the tokens whose queries and keys this process rotates."""
    update_start: Tensor | None = None
    """The same of the tokens whose position state this process updates."""
    layout: DocumentLayout | None = None
    offset: int | Tensor = 0
    query_positions: Tensor | None = None
    key_positions: Tensor | None = None
    positions_to_cache: Tensor | None = None
    """Integers [B, T, N] that the first layer's keys carry into the cache."""
    query_scale: Tensor | None = None
    shards: Shards = UNSHARED
    cache: Cache | None = None
    made: dict[Hashable, Any] | None = None
    """See :attr:`ScoreBias.made`."""

    def to(self, device: Any, non_blocking: bool = False) -> "BlockInputs":
        """Move the tensors. accelerate calls this on a block's arguments; it must move neither the encoding's layer,
        whose weights may be on disk, nor the cache."""
        moved: dict[str, Any] = {}
        for name, value in self._asdict().items():
            if isinstance(value, Tensor | DocumentLayout):
                moved[name] = value.to(device, non_blocking=non_blocking)
        return self._replace(**moved)


def _no_keys() -> None:
    """Return the keys of a cache that is not there."""


class TapeAttention(nn.Module):
    """Projections, the encoding's rotation, the cache and one softmax over a value that may be wider than its key.

    A head of keys and values serves H / G heads of queries that follow one another. With H = 8 and G = 2::

        queries, H    0  1  2  3   4  5  6  7
        keys, G       0            1
        values, G     0            1
    """

    q_norm: RMSNorm | None
    k_norm: RMSNorm | None
    group_tokens: int | None = None
    """Size of the groups within which attention works in training mode, see
    :func:`tape_ds.attention.shifted_groups.use_groups`; None: no groups."""

    def __init__(self, config: TapeConfig, layer_idx: int):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        query_width = config.num_attention_heads * config.head_dim
        key_width = config.num_key_value_heads * config.head_dim
        biased = config.attention_bias or config.qkv_bias
        self.q_proj = nn.Linear(config.hidden_size, query_width, bias=biased)
        self.k_proj = nn.Linear(config.hidden_size, key_width, bias=biased)
        self.v_proj = nn.Linear(config.hidden_size, key_width, bias=biased)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=config.attention_bias)
        self.q_norm = None
        self.k_norm = None
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)
            self.k_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def forward(
        self, x_BTD: Tensor, state: Tensor | None, inputs: BlockInputs
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the output [B, T, D], the weights [B, H, T, S] (``reference`` backend without groups, else None) and
        the attended columns of :meth:`PositionLayer.carry` [B, H, T, C]."""
        q_BHTK, k_BGTK, v_BGTK, carried_BGTC = self.project(
            x_BTD, state, inputs.start, inputs.query_scale, inputs.position, inputs.heads
        )
        values = [v_BGTK]
        if carried_BGTC is not None:
            values.append(carried_BGTC)  # apart: kernels read the two without a copy

        out_BHTK, attended_BHTC, weights = self.attend(q_BHTK, k_BGTK, values, carried_BGTC, inputs)
        return self.o_proj(out_BHTK.transpose(1, 2).flatten(2)), weights, attended_BHTC

    def project(
        self,
        x_BTD: Tensor,
        state: Tensor | None,
        start: Tensor | None,
        query_scale: Tensor | None,
        position: base.PositionLayer,
        heads: slice,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return queries [B, H, T, K] and keys [B, G, T, K] as attention sees them, values [B, G, T, K], and the
        columns of :meth:`PositionLayer.carry` [B, G, T, C]."""
        # the width of a projection is cut into heads: under tensor parallelism a process has some of them
        shape = (*x_BTD.shape[:2], -1, self.config.head_dim)
        q_BTHK = self.q_proj(x_BTD).view(shape)
        k_BTGK = self.k_proj(x_BTD).view(shape)
        v_BTGK = self.v_proj(x_BTD).view(shape)
        if self.q_norm is not None and self.k_norm is not None:
            q_BTHK = self.q_norm(q_BTHK)
            k_BTGK = self.k_norm(k_BTGK)
        q_BHTK = q_BTHK.transpose(1, 2)
        k_BGTK = k_BTGK.transpose(1, 2)
        v_BGTK = v_BTGK.transpose(1, 2)

        # the encoding turns queries and keys, and may add columns to the values
        observed = position.observe(x_BTD, heads)
        q_BHTK, k_BGTK = position.rotate(q_BHTK, k_BGTK, start, state, observed)
        if position.log_scaled and query_scale is not None:
            q_BHTK = position.scaled(q_BHTK, query_scale)
        return q_BHTK, k_BGTK, v_BGTK, position.carry(start, state, v_BGTK)

    def attend(
        self,
        q_BHTK: Tensor,
        k_BGTK: Tensor,
        values: list[Tensor],
        carried_BGTC: Tensor | None,
        inputs: BlockInputs,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return attention's output [B, H, T, K], the attended columns [B, H, T, C] and the weights.

        ``values`` are [B, G, T, K] and the carried columns, or one tensor of both. Whole sequences of some heads;
        sequence parallelism wraps this method, see :mod:`tape_ds.distributed.ulysses`.
        """
        position = inputs.position
        cache = inputs.cache
        width = self.config.head_dim
        grouped = self.training and self.group_tokens is not None
        if len(values) > 1 and (cache is not None or grouped):
            # a cache and groups take one value
            values = [torch.cat(values, dim=-1)]

        # an encoding may make a key of all keys before it
        past_keys: base.PastKeys = _no_keys
        if cache is not None:
            # else nothing here depends on the block's number, and blocks share their graph
            past_keys = functools.partial(
                cached_positions.keys_before, cache, self.layer_idx, inputs.offset
            )
        documents = None if inputs.layout is None else inputs.layout.ids_BS
        k_BGSK = position.accumulate(k_BGTK, past_keys, documents, inputs.offset)

        # T -> S: what the cache has comes before this call's tokens
        carried_BGSC = carried_BGTC
        if cache is not None:
            if inputs.positions_to_cache is not None and self.layer_idx == 0:
                k_BGSK = cached_positions.attach(k_BGSK, inputs.positions_to_cache)
            k_BGSK, values[0] = cached_positions.extend(cache, k_BGSK, values[0], self.layer_idx)
            # without the positions that were attached
            k_BGSK = k_BGSK[..., : k_BGTK.shape[-1]]
            if carried_BGTC is not None:
                carried_BGSC = values[0][..., width:]

        positions: Any = None
        if inputs.query_positions is not None:
            positions = (inputs.query_positions, inputs.key_positions)
        carried: Any = None
        if carried_BGTC is not None:
            carried = (carried_BGTC, carried_BGSC)
        score_bias = position.score_bias(positions, carried, inputs.heads)
        if isinstance(score_bias, ScoreBias):
            score_bias = score_bias._replace(made=inputs.made)

        # the columns that an encoding adds to keys do not count in the scale
        arguments: dict[str, Any] = {"layout": inputs.layout, "scale": width**-0.5}
        backend = resolve_backend(self.config)
        weights = None
        outs: tuple[Tensor, ...]
        if grouped:
            # a head's number decides which half it is in
            if inputs.heads != base.EVERY_HEAD:
                raise ValueError(
                    "attention within groups needs every head in one process, and processes that share sequences share "
                    "heads: train without sequence or tensor parallelism, or without groups"
                )
            if score_bias is not None:
                raise ValueError(
                    f"{self.config.position_encoding} adds a bias to the scores, which attention within groups cannot: "
                    "train with an encoding that rotates queries and keys, or without groups"
                )
            arguments |= {"group": self.group_tokens, "backend": backend}
            outs = (attend_in_groups(q_BHTK, k_BGSK, values[0], **arguments),)
        elif backend == "reference":
            arguments |= {"offset": inputs.offset, "score_bias": score_bias}
            outs, weights = attend_with_weights(q_BHTK, k_BGSK, values, **arguments)
        else:
            arguments |= {"offset": inputs.offset, "score_bias": score_bias, "backend": backend}
            outs = attend(q_BHTK, k_BGSK, values, **arguments)

        if carried_BGTC is None:
            return outs[0], None, weights
        if len(outs) == 1:
            # one value was attended: its first columns are the output
            outs = outs[0].split((width, outs[0].shape[-1] - width), dim=-1)
        return outs[0], outs[1], weights


class TapeDecoderLayer(GradientCheckpointingLayer):
    """A Llama block with the encoding's hooks around attention and feed-forward."""

    def __init__(self, config: TapeConfig, layer_idx: int):
        super().__init__()
        self.self_attn = TapeAttention(config, layer_idx)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.position = registry.build_layer(config, layer_idx)

    def forward(
        self,
        hidden_BTD: Tensor,
        state: Tensor | None,
        inputs: BlockInputs,
        past_key_values: Cache | None = None,
        use_cache: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the hidden states and the position state, flat tensors for activation checkpointing, which also takes
        ``past_key_values`` and ``use_cache`` away."""
        inputs = inputs._replace(
            position=self.position, cache=past_key_values if use_cache else None
        )
        return self.compute(hidden_BTD, state, inputs)

    def compute(
        self, hidden_BTD: Tensor, state: Tensor | None, inputs: BlockInputs
    ) -> tuple[Tensor, Tensor | None]:
        """Return the hidden states and the position state, of inputs with this block's position and cache."""
        attended_BTD, _, attended_BHTC = self.self_attn(
            self.input_layernorm(hidden_BTD), state, inputs
        )
        return self.finish(hidden_BTD, attended_BTD, attended_BHTC, state, inputs.update_start)

    def finish(
        self,
        hidden_BTD: Tensor,
        attended_BTD: Tensor,
        attended_BHTC: Tensor | None,
        state: Tensor | None,
        start: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the block's hidden states and position state, from attention's output and its attended columns."""
        hidden_BTD = hidden_BTD + attended_BTD
        y_BTD = self.mlp(self.post_attention_layernorm(hidden_BTD))
        state = self.position.next_state(start, state, attended_BHTC, y_BTD)
        return hidden_BTD + y_BTD, state


class TapePreTrainedModel(PreTrainedModel):
    config_class = TapeConfig
    config: TapeConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["TapeDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values", "cache"]
    _supports_sdpa = True
    # Older Llama checkpoints (Llama 2's among them) store their frequencies; they follow from the configuration.
    _keys_to_ignore_on_load_unexpected = [r"rotary_emb\.inv_freq$"]
    _can_record_outputs = {"hidden_states": TapeDecoderLayer, "attentions": TapeAttention}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, base.Parameters):
            # transformers calls this with the parameters gathered, under zero.Init too
            normal = functools.partial(init.normal_, mean=0.0, std=self.config.initializer_range)
            module.initialise(normal, init.constant_)


class TapeModel(TapePreTrainedModel):
    sequence_sharding: SequenceSharding | None = None
    """Shares sequences with other processes, see :mod:`tape_ds.models.sharding`."""

    def __init__(self, config: TapeConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(
            TapeDecoderLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.encoding = registry.build(config)
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cu_seq_lens_q: Tensor | None = None,
        max_length_q: int | None = None,
        seq_idx: Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Return hidden states of one call; this process's tokens under sequence parallelism.

        Args:
            input_ids: int64 [B, T]; or ``inputs_embeds`` [B, T, D].
            attention_mask: [B, S] with 0 at padding (left, right or between).
            position_ids: int64 [B or 1, T], any offsets and jumps; default: the tokens' places.
            document_ids: int32 [B, S], the document each token belongs to, -1 = padding.
            past_key_values: any transformers cache; a layer's value may be wider than its key.
            cu_seq_lens_q: int32 [N + 1], first tokens of the documents in all sequences, one after the other, and the
                number of tokens, as transformers' collators give it with ``max_length_q``, the longest document.
                Nothing then waits for the device. (``cu_seq_lens_k`` and ``max_length_k`` are the same, and not read.)
            seq_idx: as ``document_ids``, by the name that transformers' collators use.
            cache: ``past_key_values`` by transformers' name since 5.24.

            Without these, ``attention_mask`` and a cache, a position id that does not increase starts a document, as in
            packed sequences of other libraries (PoSE's only jump forward). A compiled graph cannot check this, and
            masks every sequence: give it ``cu_seq_lens_q``, or no position ids that only count. ``cu_seq_lens_q`` comes
            before ``document_ids``, and that before ``seq_idx``. A later call with the cache of such a sequence needs
            ``document_ids``.

        Raises:
            ValueError: neither or both of ids and embeddings, a 4D mask, masks of the wrong length, attention weights
                from a backend without them, a cache with shared sequences, ``cu_seq_lens_q`` with a cache or that do
                not fit the sequences.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        weights_asked = kwargs.get("output_attentions", self.config.output_attentions)
        if weights_asked and resolve_backend(self.config) != "reference":
            raise ValueError(
                "output_attentions: only the reference backend computes attention weights; "
                "load the model with attn_implementation='eager' or attention_backend='reference'"
            )
        given = input_ids if inputs_embeds is None else inputs_embeds
        assert given is not None
        tokens = given.shape[1]

        # the cache, and the processes that share these sequences
        if past_key_values is None:
            past_key_values = cache
        shards = shards_of(self, tokens, bool(use_cache) or past_key_values is not None)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        offset = past_length(past_key_values)

        # which tokens belong together
        packed = Documents(
            attention_mask, document_ids, seq_idx, cu_seq_lens_q, max_length_q, position_ids
        )
        layout = packed.layout(given.shape[0], tokens, offset)
        first: Any = self.layers[0]
        cut_ahead(layout, first.self_attn)

        # positions, of this call and of the keys in the cache
        if position_ids is None:
            position_ids = torch.arange(tokens, device=given.device)[None] + offset
        if cu_seq_lens_q is None and document_ids is None:
            # else a collator did, without asking the device
            position_ids = base.dedupe_positions(position_ids)
        remembers = self.encoding.remembers
        past_positions = cached_positions.recall(
            past_key_values, offset, remembers, self.config.head_dim
        )
        documents = None if layout is None else layout.ids_BS
        context = base.TokenContext(input_ids, documents, offset, past_positions)
        if self.encoding.draws:
            shards.agree_on_draws(given.device)
        positions_BTN = self.encoding.positions_for(position_ids, context)

        # peft's Shadow removes the embedding, and gives embeddings
        embedding: Any = getattr(self, "embed_tokens", None)
        hidden_BTD = local_embeddings(shards, embedding, input_ids, inputs_embeds, layout)
        hidden_BTD = self.encoding.embed(hidden_BTD, shards.local_tokens(positions_BTN))

        # what the blocks share; a process may rotate other tokens than it updates
        start = self.encoding.start(shards.mapped_tokens(positions_BTN))
        update_start = start
        if start is not None and not shards.splits_sequences:
            update_start = shards.local_tokens(start, dim=2)
        query_scale = None
        if self.encoding.log_window is not None:
            if self.encoding.log_positions:
                seen_BT = position_ids + 1
            else:
                seen_BT = log_scale.keys_seen(context, tokens, given.device)
            query_scale = log_scale.factors(shards.mapped_tokens(seen_BT), self.encoding.log_window)
        inputs = BlockInputs(
            heads=base.EVERY_HEAD,
            position=first.position,  # each block puts in its own
            start=start,
            update_start=update_start,
            layout=layout,
            offset=offset,
            query_positions=self.encoding.for_layers(positions_BTN),
            key_positions=self.encoding.for_layers(context.whole(positions_BTN)),
            positions_to_cache=positions_BTN if remembers else None,
            query_scale=query_scale,
            shards=shards,
            made=None if torch.compiler.is_compiling() else {},
        )

        # the position state goes from block to block with the hidden states
        state = None
        use_cache = past_key_values is not None
        for layer in self.layers:
            hidden_BTD, state = layer(
                hidden_BTD,
                state,
                inputs=inputs,
                past_key_values=past_key_values,
                use_cache=use_cache,
            )
        hidden_BTD = self.norm(hidden_BTD)
        return BaseModelOutputWithPast(hidden_BTD, past_key_values)


class TapeForCausalLM(LanguageModel, TapePreTrainedModel, GenerationMixin):
    """The language model; a converted Llama gives the Llama's logits until its position updates are trained."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    tensor_parallel_plan = {
        "model.embed_tokens": "vocabulary",
        "model.layers.*.self_attn.q_proj": "colwise",
        "model.layers.*.self_attn.k_proj": "key_value",
        "model.layers.*.self_attn.v_proj": "key_value",
        "model.layers.*.self_attn.o_proj": "rowwise",
        "model.layers.*.mlp.gate_proj": "colwise",
        "model.layers.*.mlp.up_proj": "colwise",
        "model.layers.*.mlp.down_proj": "rowwise",
        "lm_head": "vocabulary",
    }
    """The dimension of each module that processes share, see :mod:`tape_ds.distributed.tensor`: outputs (by heads; keys
    and values by their own), inputs, or the vocabulary. Everything else is whole in each. It is not
    ``base_model_tp_plan``, which transformers would apply itself, without the exchange of heads and states."""

    def __init__(self, config: TapeConfig):
        super().__init__(config)
        self.model = TapeModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = OutputHead(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def with_rope_parameters(
        self, rope_parameters: Mapping[str, Any]
    ) -> AbstractContextManager[None]:
        """Compute plain RoPE with these parameters and the present weights in this block."""
        return positions_of(self, encodings.plain(self.config, rope_parameters))
