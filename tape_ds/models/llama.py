"""The one model file: a Llama decoder whose positional encoding is a pair of hooks.

No encoding is named here. ``registry.build`` gives what runs once per forward, ``registry.build_layer`` what runs in
every block; parameters outside ``layers.N.position`` are those of HF Llama, name for name and bit for bit.

Shape letters: B batch, T tokens of this call, S keys (cached ones included), H query heads, G key/value heads, K head
size, V value width (K, plus whatever columns the encoding carries), D hidden size.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from tape_ds import encodings
from tape_ds.attention.attend import attend, attend_with_weights
from tape_ds.attention.document_layout import DocumentLayout
from tape_ds.attention.shifted_groups import attend_in_groups, cut_ahead, require_every_head
from tape_ds.encodings import base, log_scale, registry
from tape_ds.models import cached_positions, flops
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.inputs import (
    Documents,
    dedupe_positions,
    local_embeddings,
    past_length,
    require_weights,
    resolve_backend,
)
from tape_ds.models.language_model import LanguageModel
from tape_ds.models.output_head import OutputHead
from tape_ds.models.sharding import UNSHARED, SequenceSharding, Shards, shards_of


class RMSNorm(LlamaRMSNorm):
    """Llama's norm, on CUDA by torch's fused kernel, which reads and writes once and keeps no fp32 copy."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the normed states. The kernel rounds once where Llama's operators round twice."""
        weight = self.weight
        if not hidden_states.is_cuda or hidden_states.dtype != weight.dtype or torch.is_autocast_enabled("cuda"):
            return super().forward(hidden_states)  # the kernel takes one dtype, and autocast would make it fp32
        return F.rms_norm(hidden_states, weight.shape, weight, self.variance_epsilon)


class TapeAttention(nn.Module):
    """Projections, the encoding's rotation, the cache and one softmax over a value that may be wider than its key."""

    q_norm: RMSNorm | None
    k_norm: RMSNorm | None
    group_tokens: int | None = None
    """In training mode attention is within groups of so many tokens, see
    :func:`tape_ds.attention.shifted_groups.use_groups`; None: over everything."""

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
        self.q_norm, self.k_norm = None, None
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)
            self.k_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def forward(
        self,
        x_BTD: Tensor,
        position: base.InAttention,
        start: Tensor | None,
        state: Tensor | None,
        layout: DocumentLayout | None,
        offset: int | Tensor,
        query_positions: Tensor | None,
        key_positions: Tensor | None,
        past_key_values: Cache | None,
        remembered: Tensor | None,
        shards: Shards,
        query_scale: Tensor | None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Returns the output [B, T, D], the weights [B, H, T, S] (``reference`` backend only, not within groups,
        else None) and what became of the carried columns [B, H, T, C].

        Where sequences are shared, inputs and outputs are of this process's tokens, and the weights of its heads;
        masks, the queries' places and the keys' are of whole sequences, and ``start`` and ``query_scale`` are of the
        tokens it rotates.

        Raises:
            ValueError: attention within groups with a bias on the scores, with a cache that is not empty, or where
                sequences are shared.
        """
        x_BTD = shards.gather(x_BTD)
        start, state = shards.to_rotate(start, state)
        heads = (*x_BTD.shape[:2], -1, self.config.head_dim)
        q_BTHK, k_BTGK = self.q_proj(x_BTD).view(heads), self.k_proj(x_BTD).view(heads)
        if self.q_norm is not None and self.k_norm is not None:
            q_BTHK, k_BTGK = self.q_norm(q_BTHK), self.k_norm(k_BTGK)
        q_BHTK, k_BGTK = q_BTHK.transpose(1, 2), shards.key_heads(k_BTGK.transpose(1, 2))
        v_BGTV = shards.key_heads(self.v_proj(x_BTD).view(heads).transpose(1, 2))
        heads_read = shards.heads(self.config.num_attention_heads)
        every_head = q_BHTK.shape[1] == self.config.num_attention_heads  # also where they are exchanged below
        observed = position.observe(x_BTD, base.EVERY_HEAD if every_head else heads_read)
        q_BHTK, k_BGTK = position.rotate(q_BHTK, k_BGTK, start, state, observed)
        if query_scale is not None:
            q_BHTK = position.scaled(q_BHTK, query_scale)
        carried_BGTC = position.carry(start, state, v_BGTV)
        width = self.config.head_dim
        grouped = self.training and self.group_tokens is not None
        # One wide value where it is kept, sent or cut as a whole; else kernels read the two where they lie.
        wide = past_key_values is not None or shards.splits_sequences or grouped
        if wide and carried_BGTC is not None:
            v_BGTV = torch.cat((v_BGTV, carried_BGTC), dim=-1)
        q_BHTK, k_BGTK, v_BGTV = shards.to_heads(q_BHTK, k_BGTK, v_BGTV)
        if shards.splits_sequences and carried_BGTC is not None:
            carried_BGTC = v_BGTV[..., width:]

        key_width = k_BGTK.shape[-1]
        past_keys = functools.partial(cached_positions.keys_before, past_key_values, self.layer_idx, offset)
        k_BGTK = position.accumulate(k_BGTK, past_keys, None if layout is None else layout.ids_BS, offset)
        k_BGSK, v_BGSV = k_BGTK, v_BGTV
        if past_key_values is not None:
            k_BGTK = k_BGTK if remembered is None else cached_positions.attach(k_BGTK, remembered)
            k_BGSK, v_BGSV = cached_positions.extend(past_key_values, k_BGTK, v_BGTV, self.layer_idx)
            k_BGSK = k_BGSK[..., :key_width]
        carried_BGSC = v_BGSV[..., width:] if wide and carried_BGTC is not None else carried_BGTC
        score_bias = position.score_bias(query_positions, carried_BGTC, key_positions, carried_BGSC, heads_read)
        arguments: dict[str, Any] = {"layout": layout, "offset": offset, "score_bias": score_bias}
        arguments["scale"] = width**-0.5  # whatever columns the encoding added to queries and keys
        values = [v_BGSV] if wide or carried_BGSC is None else [v_BGSV, carried_BGSC]
        backend = resolve_backend(self.config)
        weights = None
        outs: tuple[Tensor, ...]
        if grouped:
            require_every_head(shards)
            if score_bias is not None:
                raise ValueError(
                    f"{self.config.position_encoding} adds a bias to the scores, which attention within groups cannot: "
                    "train with an encoding that rotates queries and keys, or with attention over everything"
                )
            groups: dict[str, Any] = {"group": self.group_tokens, "layout": layout, "backend": backend}
            outs = (attend_in_groups(q_BHTK, k_BGSK, v_BGSV, scale=arguments["scale"], **groups),)
        elif backend == "reference":
            outs, weights = attend_with_weights(q_BHTK, k_BGSK, values, **arguments)
        else:
            outs = attend(q_BHTK, k_BGSK, values, **arguments, backend=backend)

        outs = tuple(shards.to_tokens(out_BHTV) for out_BHTV in outs)
        if wide and carried_BGTC is not None:
            outs = outs[0].split((width, outs[0].shape[-1] - width), dim=-1)
        out_BHTK, attended_BHTC = outs if len(outs) == 2 else (outs[0], None)
        return shards.scatter(self.o_proj(out_BHTK.transpose(1, 2).flatten(2))), weights, attended_BHTC


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
        start: Tensor | None = None,
        layout: DocumentLayout | None = None,
        offset: int | Tensor = 0,
        query_positions: Tensor | None = None,
        key_positions: Tensor | None = None,
        past_key_values: Cache | None = None,
        remembered: Tensor | None = None,
        use_cache: bool = False,
        shards: Shards = UNSHARED,
        query_scale: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the hidden states and the position state; both are flat tensors, so checkpointing tracks both."""
        x_BTD = self.input_layernorm(hidden_BTD)
        past_key_values = past_key_values if use_cache else None
        places = (layout, offset, query_positions, key_positions)
        kept = (past_key_values, remembered)
        query_scale = query_scale if self.position.log_scaled else None
        attended_BTD, _, attended_BHTC = self.self_attn(
            x_BTD, self.position.in_attention(), start, state, *places, *kept, shards, query_scale
        )
        hidden_BTD = hidden_BTD + attended_BTD
        y_BTD = shards.scatter(self.mlp(shards.gather(self.post_attention_layernorm(hidden_BTD))))
        start, attended_BHTC = shards.to_update(start, attended_BHTC)
        state = self.position.next_state(start, state, attended_BHTC, y_BTD)
        return hidden_BTD + y_BTD, state


class TapePreTrainedModel(PreTrainedModel):
    """What transformers needs to know about these models."""

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
    """Embedding, blocks and final norm."""

    sequence_sharding: SequenceSharding | None = None
    """How sequences are shared with other processes, see :mod:`tape_ds.models.sharding`; None: they are not."""

    def __init__(self, config: TapeConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(TapeDecoderLayer(config, index) for index in range(config.num_hidden_layers))
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
            cu_seq_lens_q: int32 [N + 1], where documents begin in all sequences' tokens one after the other, and how
                many tokens there are: as transformers' collators say it, with ``max_length_q``, the longest document.
                Nothing then waits for the device. (``cu_seq_lens_k`` and ``max_length_k`` are the same, and not read.)
            seq_idx: as ``document_ids``, by the name that transformers' collators use.
            cache: ``past_key_values`` by the name that transformers has for it since 5.24.

            Where none of these nor ``attention_mask`` is given and there is no cache, a position id that does not
            increase starts a document, as packed sequences of other libraries have it (PoSE's only jump forward). A
            compiled graph cannot look whether one does, and masks every sequence: give it ``cu_seq_lens_q``, or no
            position ids that only count. ``cu_seq_lens_q`` comes before ``document_ids``, and that before ``seq_idx``.
            A later call with the cache of such a sequence needs ``document_ids``.

        Raises:
            ValueError: neither or both of ids and embeddings, a 4D mask, masks of the wrong length, attention
                weights asked of a backend that has none, a cache where sequences are shared, ``cu_seq_lens_q`` with a
                cache or that do not fit the sequences.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        require_weights(self.config, kwargs)
        given = input_ids if inputs_embeds is None else inputs_embeds
        assert given is not None
        tokens = given.shape[1]
        past_key_values = cache if past_key_values is None else past_key_values
        shards = shards_of(self, tokens, bool(use_cache) or past_key_values is not None)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        offset = past_length(past_key_values)
        packed = Documents(attention_mask, document_ids, seq_idx, cu_seq_lens_q, max_length_q, position_ids)
        layout = packed.layout(given.shape[0], tokens, offset)
        cut_ahead(layout, self.layers[0].self_attn)
        documents = None if layout is None else layout.ids_BS
        if position_ids is None:
            position_ids = torch.arange(tokens, device=given.device)[None] + offset
        if cu_seq_lens_q is None and document_ids is None:  # else a collator has looked, without asking the device
            position_ids = dedupe_positions(position_ids)
        remembers = self.encoding.remembers
        past_positions = cached_positions.recall(past_key_values, offset, remembers, self.config.head_dim)
        text = base.TokenContext(input_ids, documents, offset, past_positions)
        if self.encoding.draws:
            shards.agree_on_draws(given.device)
        positions_BTN = self.encoding.positions_for(position_ids, text)
        query_positions = self.encoding.for_layers(positions_BTN)
        key_positions = self.encoding.for_layers(text.whole(positions_BTN))
        embedding: Any = getattr(self, "embed_tokens", None)  # peft's Shadow takes it away, and gives embeddings
        hidden_BTD = local_embeddings(shards, embedding, input_ids, inputs_embeds, layout)
        hidden_BTD = self.encoding.embed(hidden_BTD, shards.mine(positions_BTN))
        start = self.encoding.start(shards.rotated(positions_BTN))
        query_scale = None
        if self.encoding.log_window is not None:
            seen_BT = log_scale.keys_seen(text, tokens, given.device)
            query_scale = log_scale.factors(shards.rotated(seen_BT), self.encoding.log_window)
        state = None
        for layer in self.layers:
            hidden_BTD, state = layer(
                hidden_BTD,
                state,
                start=start,
                layout=layout,
                offset=offset,
                query_positions=query_positions,
                key_positions=key_positions,
                past_key_values=past_key_values,
                remembered=positions_BTN if remembers and layer is self.layers[0] else None,
                use_cache=past_key_values is not None,
                shards=shards,
                query_scale=query_scale,
            )
        hidden_BTD = shards.gather(self.norm(hidden_BTD))
        return BaseModelOutputWithPast(hidden_BTD, past_key_values)


@contextmanager
def positions_of(model: "TapeForCausalLM", config: TapeConfig) -> Iterator[None]:
    """Within the block, ``model`` computes with the encoding of ``config``, see :func:`change_positions`.

    So a model is measured as the Llama it was before (``positions.plain``), with RoPE scaled or its updates off,
    without being loaded twice.

    Raises:
        ValueError: the encoding has parameters that the model has not.
    """
    kept = change_positions(model, config)
    try:
        yield
    finally:
        _set_positions(model.model, kept)


def change_positions(model: "TapeForCausalLM", config: TapeConfig) -> nn.ModuleList:
    """Have ``model`` compute with the encoding of ``config`` (one without parameters of its own, or the model's own
    with other RoPE parameters or fewer updates) and its present weights; return what it computed with.

    No weights are made or copied, so sharded ones stay as they are.

    Raises:
        ValueError: the encoding has parameters that the model has not.
    """
    decoder: Any = model.model
    kept = nn.ModuleList([decoder.encoding, *(layer.position for layer in decoder.layers)])
    others = [registry.build(config), *(registry.build_layer(config, index) for index in range(len(decoder.layers)))]
    borrowed = nn.ModuleList(others).train(decoder.training)
    own, off = model.config, encodings.without_updates(model.config)
    if any(encodings.same_parameters(config, each) for each in (own, off) if each is not None):
        _take_over(kept, borrowed)
    present = {id(weight) for weight in kept.parameters()}
    if any(id(weight) not in present for weight in borrowed.parameters()):
        raise ValueError(f"{config.position_encoding} has parameters of its own: load a model that has them")
    _set_positions(decoder, borrowed)
    return kept


@contextmanager
def evaluated_at(model: "TapeForCausalLM", length: int) -> Iterator[None]:
    """Within the block, ``model`` computes as its encoding says for texts of ``length`` tokens.

    Most encodings are the same at every length. ``yarn`` is trained on plain RoPE and scaled, from the window it was
    trained for, to the length it is used at.
    """
    config = encodings.config_at(model.config, length)
    if config is model.config:
        yield
        return
    with positions_of(model, config):
        yield


_SAVED_WHOLE = re.compile(r"\.modules_to_save\.[^.]+")


def _take_over(kept: nn.Module, borrowed: nn.Module) -> None:
    """Have ``borrowed`` use the parameters of ``kept``: the modules that own them, and the hooks of an engine with
    them."""
    # peft keeps a module that it trains whole (`modules_to_save`) one step further in
    own = {_SAVED_WHOLE.sub("", name): part for name, part in kept.named_modules()}
    for name, part in list(borrowed.named_modules()):
        if isinstance(part, base.Parameters) and name in own:
            parent, _, attribute = name.rpartition(".")
            setattr(borrowed.get_submodule(parent), attribute, own[name])


def _set_positions(decoder: Any, encoding_and_layers: nn.ModuleList) -> None:
    encoding, *layers = encoding_and_layers
    decoder.encoding = encoding
    for layer, position in zip(decoder.layers, layers, strict=True):
        layer.position = position


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
    """What processes share of each module, see :mod:`tape_ds.distributed.tensor`: outputs (by heads; those of keys and
    values by theirs), inputs, or the vocabulary. Everything else is whole in each. It is not ``base_model_tp_plan``,
    which transformers would carry out by itself, without what processes tell each other of heads and states."""

    def __init__(self, config: TapeConfig):
        super().__init__(config)
        self.model = TapeModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = OutputHead(config.hidden_size, config.vocab_size)
        self.post_init()

    def with_rope_parameters(self, rope_parameters: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Within the block, the model computes plain RoPE with these parameters and its present weights."""
        return positions_of(self, encodings.plain(self.config, rope_parameters))

    def flops(self, length: int, causal: bool = True) -> float:
        """FLOPs of a forward over one sequence of ``length`` tokens, see :mod:`tape_ds.models.flops`."""
        return 2.0 * flops.multiply_adds(self.config, length, causal)
