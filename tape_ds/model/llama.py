"""The one model file: a Llama decoder whose positional encoding is a pair of hooks.

No encoding is named here. ``positions.build`` gives what runs once per forward, ``positions.build_layer`` what runs in
every block; parameters outside ``layers.N.position`` are those of HF Llama, name for name and bit for bit.

Shape letters: B batch, T tokens of this call, S keys (cached ones included), H query heads, G key/value heads, K head
size, V value width (K, plus whatever columns the encoding carries), D hidden size.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from tape_ds.model import flops, place_memory, positions
from tape_ds.model.attention import attend, attend_with_weights, requested
from tape_ds.model.configuration import TapeConfig
from tape_ds.model.output_head import OutputHead, causal_lm_loss


class TapeAttention(nn.Module):
    """Projections, the encoding's rotation, the cache and one softmax over a value that may be wider than its key."""

    def __init__(self, config: TapeConfig, layer_index: int):
        super().__init__()
        self.config = config
        self.layer_index = layer_index
        query_width = config.num_attention_heads * config.head_dim
        key_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_width, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, key_width, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, key_width, bias=config.attention_bias)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=config.attention_bias)

    def forward(
        self,
        x_BTD: Tensor,
        position: positions.PositionLayer,
        start: Tensor | None,
        state: Tensor | None,
        document_ids: Tensor | None,
        offset: int | Tensor,
        key_places: Tensor | None,
        past_key_values: Cache | None,
        remembered: Tensor | None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Returns the output [B, T, D], the weights [B, H, T, S] (``reference`` backend only, else None) and what
        became of the carried columns [B, H, T, C]."""
        heads = (*x_BTD.shape[:2], -1, self.config.head_dim)
        q_BHTK = self.q_proj(x_BTD).view(heads).transpose(1, 2)
        k_BGTK = self.k_proj(x_BTD).view(heads).transpose(1, 2)
        v_BGTV = self.v_proj(x_BTD).view(heads).transpose(1, 2)
        q_BHTK, k_BGTK = position.rotate(q_BHTK, k_BGTK, start, state)
        carried_BGTC = position.carry(start, state, v_BGTV)
        if carried_BGTC is not None:
            v_BGTV = torch.cat((v_BGTV, carried_BGTC), dim=-1)

        k_BGSK, v_BGSV, width = k_BGTK, v_BGTV, self.config.head_dim
        if past_key_values is not None:
            k_BGTK = k_BGTK if remembered is None else place_memory.attach(k_BGTK, remembered)
            k_BGSK, v_BGSV = past_key_values.update(k_BGTK, v_BGTV, self.layer_index)
            k_BGSK = k_BGSK[..., :width]
        carried_BGSC = None if carried_BGTC is None else v_BGSV[..., width:]
        score_bias = position.score_bias(start, state, key_places, carried_BGSC)
        arguments: dict[str, Any] = {"document_ids": document_ids, "offset": offset, "score_bias": score_bias}
        backend = resolve_backend(self.config)
        weights = None
        if backend == "reference":
            out_BHTV, weights = attend_with_weights(q_BHTK, k_BGSK, v_BGSV, **arguments)
        else:
            out_BHTV = attend(q_BHTK, k_BGSK, v_BGSV, **arguments, backend=backend)

        out_BHTK, moved_BHTC = out_BHTV, None
        if carried_BGTC is not None:
            out_BHTK, moved_BHTC = out_BHTV.split((width, carried_BGTC.shape[-1]), dim=-1)
        return self.o_proj(out_BHTK.transpose(1, 2).flatten(2)), weights, moved_BHTC


class TapeDecoderLayer(GradientCheckpointingLayer):
    """A Llama block with the encoding's hooks around attention and feed-forward."""

    def __init__(self, config: TapeConfig, layer_index: int):
        super().__init__()
        self.self_attn = TapeAttention(config, layer_index)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.position = positions.build_layer(config, layer_index)

    def forward(
        self,
        hidden_BTD: Tensor,
        state: Tensor | None,
        start: Tensor | None = None,
        document_ids: Tensor | None = None,
        offset: int | Tensor = 0,
        key_places: Tensor | None = None,
        past_key_values: Cache | None = None,
        remembered: Tensor | None = None,
        use_cache: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the hidden states and the position state; both are flat tensors, so checkpointing tracks both."""
        x_BTD = self.input_layernorm(hidden_BTD)
        past_key_values = past_key_values if use_cache else None
        attended_BTD, _, moved_BHTC = self.self_attn(
            x_BTD, self.position, start, state, document_ids, offset, key_places, past_key_values, remembered
        )
        hidden_BTD = hidden_BTD + attended_BTD
        y_BTD = self.mlp(self.post_attention_layernorm(hidden_BTD))
        state = self.position.next_state(start, state, moved_BHTC, y_BTD)
        return hidden_BTD + y_BTD, state


class TapePreTrainedModel(PreTrainedModel):
    """What transformers needs to know about these models."""

    config_class = TapeConfig
    config: TapeConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["TapeDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    # Older Llama checkpoints (Llama 2's among them) store their frequencies; they follow from the configuration.
    _keys_to_ignore_on_load_unexpected = [r"rotary_emb\.inv_freq$"]
    _can_record_outputs = {"hidden_states": TapeDecoderLayer, "attentions": TapeAttention}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, positions.Parameters):
            # transformers calls this with the parameters gathered, under zero.Init too
            normal = functools.partial(init.normal_, mean=0.0, std=self.config.initializer_range)
            module.initialise(normal, init.constant_)


class TapeModel(TapePreTrainedModel):
    """Embedding, blocks and final norm."""

    def __init__(self, config: TapeConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(TapeDecoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.encoding = positions.build(config)
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
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Hidden states of one call.

        Args:
            input_ids: int64 [B, T]; or ``inputs_embeds`` [B, T, D].
            attention_mask: [B, S] with 0 at padding (left, right or between).
            position_ids: int64 [B or 1, T], any offsets and jumps; default: the tokens' places.
            document_ids: int32 [B, S], the document each token belongs to, -1 = padding. Borders come from here
                alone; position ids never make one.
            past_key_values: any transformers cache; a layer's value may be wider than its key.

        Raises:
            ValueError: neither or both of ids and embeddings, a 4D mask, masks of the wrong length, attention
                weights asked of a backend that has none.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        if kwargs.get("output_attentions", self.config.output_attentions) and (
            resolve_backend(self.config) != "reference"
        ):
            raise ValueError(
                "output_attentions: only the reference backend computes attention weights; "
                "load the model with attn_implementation='eager' or attention_backend='reference'"
            )
        hidden_BTD = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        offset = _past_length(past_key_values)
        tokens = hidden_BTD.shape[1]
        if position_ids is None:
            position_ids = torch.arange(tokens, device=hidden_BTD.device)[None] + offset
        position_ids = _rows_that_differ(position_ids)
        documents = _merge_masks(attention_mask, document_ids, tokens, offset)
        hidden_BTD = _blank_padding(hidden_BTD, documents, offset)
        remembers = self.encoding.remembers
        past_places = place_memory.recall(past_key_values, offset, remembers, self.config.head_dim)
        text = positions.Text(input_ids, documents, offset, past_places)
        places_BTN = self.encoding.locate(position_ids, text)
        key_places = text.whole(places_BTN) if remembers else None
        hidden_BTD = self.encoding.embed(hidden_BTD, places_BTN)
        start = self.encoding.start(places_BTN)
        state = None
        for layer in self.layers:
            hidden_BTD, state = layer(
                hidden_BTD,
                state,
                start=start,
                document_ids=documents,
                offset=offset,
                key_places=key_places,
                past_key_values=past_key_values,
                remembered=places_BTN if remembers and layer is self.layers[0] else None,
                use_cache=past_key_values is not None,
            )
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden_BTD), past_key_values=past_key_values)


@contextmanager
def positions_of(model: "TapeForCausalLM", config: TapeConfig) -> Iterator[None]:
    """Within the block, ``model`` computes with the encoding of ``config``, one without parameters of its own, and its
    present weights.

    So a model is measured as the Llama it was before (``positions.plain``), or with its angles scaled, without being
    loaded twice; nothing with parameters is built, so sharded weights stay as they are.

    Raises:
        ValueError: the encoding has parameters.
    """
    decoder: Any = model.model
    kept = nn.ModuleList([decoder.encoding, *(layer.position for layer in decoder.layers)])
    others = [positions.build(config), *(positions.build_layer(config, index) for index in range(len(decoder.layers)))]
    borrowed = nn.ModuleList(others).train(decoder.training)
    if any(True for _ in borrowed.parameters()):
        raise ValueError(f"{config.position_encoding} has parameters of its own: load a model that has them")
    _set_positions(decoder, borrowed)
    try:
        yield
    finally:
        _set_positions(decoder, kept)


@contextmanager
def evaluated_at(model: "TapeForCausalLM", length: int) -> Iterator[None]:
    """Within the block, ``model`` computes as its encoding says for texts of ``length`` tokens.

    Most encodings are the same at every length. ``yarn`` is trained on plain angles and scaled, from the window it was
    trained for, to the length it is used at.
    """
    config = positions.config_at(model.config, length)
    if config is model.config:
        yield
        return
    with positions_of(model, config):
        yield


def _set_positions(decoder: Any, encoding_and_layers: nn.ModuleList) -> None:
    encoding, *layers = encoding_and_layers
    decoder.encoding = encoding
    for layer, position in zip(decoder.layers, layers, strict=True):
        layer.position = position


class TapeForCausalLM(TapePreTrainedModel, GenerationMixin):
    """The language model; a converted Llama gives the Llama's logits until its position updates are trained."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: TapeConfig):
        super().__init__(config)
        self.model = TapeModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = OutputHead(config.hidden_size, config.vocab_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """As :meth:`TapeModel.forward`, and:

        Args:
            labels: int64 [B, T], -100 where nothing is to be predicted; shifted inside. ``num_items_in_batch``
                (transformers' Trainer) turns the mean into a sum over that many targets.
            logits_to_keep: only the last n logits (0: all), or an index tensor.
            skip_logits: return ``logits=None``, the loss computed a chunk of tokens at a time. Default: yes in training
                with labels, wherever the loss is transformers' own and no ``logits_to_keep`` asks for logits. A head
                that can only give logits (see :func:`tape_ds.model.output_head.why_not`) returns them all the same.

        Raises:
            ValueError: as there; ``skip_logits`` without labels.
        """
        possible = labels is not None and self.loss_function is ForCausalLMLoss
        if skip_logits is None:
            skip_logits = possible and self.training and isinstance(logits_to_keep, int) and logits_to_keep == 0
        elif skip_logits and not possible:
            raise ValueError(
                "skip_logits leaves nothing to return: it needs labels, and transformers' own loss function"
            )
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            document_ids=document_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        hidden_BTD = outputs.last_hidden_state
        loss = logits_BTV = None
        if skip_logits and labels is not None:
            loss = causal_lm_loss(self.lm_head, hidden_BTD, labels, **kwargs)
        if loss is None:
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits_BTV = self.lm_head(hidden_BTD[:, kept])
            if labels is not None:
                loss = self.loss_function(logits=logits_BTV, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits_BTV,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _get_resized_lm_head(self, *args: Any, **kwargs: Any) -> nn.Linear:
        # transformers makes a plain nn.Linear, and moves accelerate's hooks to it after this
        return OutputHead.of(super()._get_resized_lm_head(*args, **kwargs))

    def multiply_adds(self, length: int, causal: bool = True) -> float:
        """MACs of a forward over one row of ``length`` tokens, see :mod:`tape_ds.model.flops`."""
        return flops.multiply_adds(self.config, length, causal)

    def flops(self, length: int, causal: bool = True) -> float:
        """FLOPs of a forward over one row of ``length`` tokens, see :mod:`tape_ds.model.flops`."""
        return 2.0 * flops.multiply_adds(self.config, length, causal)

    def _get_static_cache_init_shape(self) -> None:
        """Values may be wider than keys: a static cache is sized by the first call, not ahead of it."""
        return None

    @staticmethod
    def create_masks_for_generate(
        config: TapeConfig,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None,
        past_key_values: Cache,
        **kwargs: Any,
    ) -> Tensor | None:
        """The 2D mask is all that ``attend`` needs; for a static cache it is padded to the cache's own length."""
        if attention_mask is None:
            return None
        missing = past_key_values.get_max_length() - attention_mask.shape[-1]
        return nn.functional.pad(attention_mask, (0, missing)) if missing > 0 else attention_mask


def resolve_backend(config: TapeConfig) -> str:
    """The configured attention backend, or the environment's; transformers' "eager" means the one that returns
    weights."""
    backend = requested(config.attention_backend)
    return "reference" if backend == "auto" and config._attn_implementation == "eager" else backend


def _past_length(past_key_values: Cache | None) -> int | Tensor:
    """Tokens already in the cache: an int, or a tensor of its own inside a compiled graph (a static cache counts in
    place, and a length that changes the shapes would recompile at every token)."""
    length = past_key_values.get_seq_length() if past_key_values is not None else 0
    if isinstance(length, Tensor):
        return length.clone() if torch.compiler.is_compiling() else int(length)
    return length


def _rows_that_differ(position_ids: Tensor) -> Tensor:
    """One row [1, T] where all rows are alike, as in packed training: angles and biases are then computed once for the
    batch, not once for each row."""
    if len(position_ids) == 1 or torch.compiler.is_compiling():
        return position_ids
    return position_ids[:1] if bool((position_ids == position_ids[:1]).all()) else position_ids


def _blank_padding(hidden_BTD: Tensor, documents: Tensor | None, offset: int | Tensor) -> Tensor:
    """Zero the embeddings of padding: a weight's gradient is a sum over all rows, and 0 times NaN is NaN."""
    if documents is None:
        return hidden_BTD
    places = torch.arange(hidden_BTD.shape[1], device=hidden_BTD.device) + offset
    return hidden_BTD.masked_fill((documents.index_select(1, places) < 0)[..., None], 0.0)


def _merge_masks(
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
