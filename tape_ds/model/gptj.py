"""GPT-J with RoPE scaling: transformers' parameters, name for name, with this project's attention and loss.

transformers' own model looks its angles up in a table per layer, as long as its native context, computed in fp32, and
holds the whole T x T matrix of scores. Here angles are fp64 and rounded once, positions are any (PoSE skips some), and
attention is ``attend``. A block is GPT-J's: one norm, then attention and feed-forward side by side.

Shape letters: B batch, T tokens of this call, S keys (cached ones included), H heads, K head size, R rotated columns
of a head, D hidden size.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.gptj.modeling_gptj import GPTJMLP
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from tape_ds.kernels.rotate import rotate
from tape_ds.model.attention.attend import attend, attend_with_weights
from tape_ds.model.attention.borders import Borders
from tape_ds.model.attention.shifted_groups import attend_in_groups, cut_ahead, require_every_head
from tape_ds.model.gptj_configuration import ScaledGPTJConfig
from tape_ds.model.inputs import (
    Documents,
    own_embeddings,
    past_length,
    positions_that_differ,
    require_weights,
    resolve_backend,
)
from tape_ds.model.language_model import LanguageModel
from tape_ds.model.loading.strict import load_exact
from tape_ds.model.output_head import OutputHead
from tape_ds.model.positions.options import Options
from tape_ds.model.positions.rope import RopeEncoding
from tape_ds.model.sharding import UNSHARED, Shards, ShareSequences, shards_of


class _Angles(NamedTuple):
    """What a rotary encoding reads of a configuration."""

    rope_parameters: Mapping[str, Any]
    head_dim: int


def rope_encoding(rope_parameters: Mapping[str, Any], rotary_dim: int) -> RopeEncoding:
    """Return the rotary encoding of ``rotary_dim`` columns; it has no parameters."""
    config: Any = _Angles(rope_parameters, rotary_dim)
    return RopeEncoding(config, Options())


class ScaledGPTJAttention(nn.Module):
    """Projections, the rotation of the first R columns, the cache and one softmax."""

    group_tokens: int | None = None
    """See :attr:`tape_ds.model.llama.TapeAttention.group_tokens`."""

    def __init__(self, config: ScaledGPTJConfig, layer_idx: int):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        width = config.hidden_size
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)

    def forward(
        self,
        x_BTD: Tensor,
        start_B1TR: Tensor,
        borders: Borders | None,
        offset: int | Tensor,
        past_key_values: Cache | None,
        shards: Shards,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the output [B, T, D] and the weights [B, H, T, S] (``reference`` backend only, not within groups,
        else None); where sequences are shared as :meth:`tape_ds.model.llama.TapeAttention.forward`.

        Raises:
            ValueError: attention within groups with a cache that is not empty, or where sequences are shared.
        """
        heads = (*x_BTD.shape[:2], -1, self.config.head_dim)
        q_BHTK = rotate_pairs(self.q_proj(x_BTD).view(heads).transpose(1, 2), start_B1TR)
        k_BHSK = rotate_pairs(self.k_proj(x_BTD).view(heads).transpose(1, 2), start_B1TR)
        v_BHSK = self.v_proj(x_BTD).view(heads).transpose(1, 2)
        q_BHTK, k_BHSK, v_BHSK = shards.to_heads(q_BHTK, k_BHSK, v_BHSK)
        if past_key_values is not None:
            k_BHSK, v_BHSK = past_key_values.update(k_BHSK, v_BHSK, self.layer_idx)
        places: dict[str, Any] = {"borders": borders, "offset": offset}
        backend, weights = resolve_backend(self.config), None
        if self.training and self.group_tokens is not None:
            require_every_head(shards)
            groups: dict[str, Any] = {"group": self.group_tokens, "borders": borders, "backend": backend}
            out_BHTK = attend_in_groups(q_BHTK, k_BHSK, v_BHSK, **groups)
        elif backend == "reference":
            (out_BHTK,), weights = attend_with_weights(q_BHTK, k_BHSK, [v_BHSK], **places)
        else:
            (out_BHTK,) = attend(q_BHTK, k_BHSK, [v_BHSK], **places, backend=backend)
        out_BHTK = shards.to_tokens(out_BHTK)
        return self.out_proj(out_BHTK.transpose(1, 2).flatten(2)), weights


def rotate_pairs(x_BHTK: Tensor, start_B1TR: Tensor) -> Tensor:
    """Rotate columns 2j and 2j + 1 of a head by angle j, for the first R columns, and leave the others.

    The R columns come out with the first of all pairs before the second of all pairs, which is how ``rotate`` reads
    them: queries and keys alike, so that no score notices, and nothing is moved back.
    """
    rotated = start_B1TR.shape[-1]
    pairs_BHTR = x_BHTK[..., :rotated].unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    turned_BHTR = rotate(pairs_BHTR, start_B1TR)
    if rotated == x_BHTK.shape[-1]:
        return turned_BHTR
    return torch.cat((turned_BHTR, x_BHTK[..., rotated:]), dim=-1)


class ScaledGPTJBlock(GradientCheckpointingLayer):
    """One norm, and attention and feed-forward side by side behind it."""

    def __init__(self, config: ScaledGPTJConfig, layer_idx: int):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.attn = ScaledGPTJAttention(config, layer_idx)
        self.mlp = GPTJMLP(config.intermediate_size, config)

    def forward(
        self,
        hidden_BTD: Tensor,
        start_B1TR: Tensor,
        borders: Borders | None = None,
        offset: int | Tensor = 0,
        past_key_values: Cache | None = None,
        use_cache: bool = False,
        shards: Shards = UNSHARED,
    ) -> Tensor:
        """Returns the hidden states."""
        x_BTD = self.ln_1(hidden_BTD)
        past_key_values = past_key_values if use_cache else None
        attended_BTD, _ = self.attn(x_BTD, start_B1TR, borders, offset, past_key_values, shards)
        return attended_BTD + self.mlp(x_BTD) + hidden_BTD


class ScaledGPTJPreTrainedModel(PreTrainedModel):
    """What transformers needs to know about these models."""

    config_class = ScaledGPTJConfig
    config: ScaledGPTJConfig
    base_model_prefix = "transformer"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ScaledGPTJBlock"]
    _skip_keys_device_placement = ["past_key_values", "cache"]
    _supports_sdpa = True
    # Older checkpoints (EleutherAI/gpt-j-6b's) store masks and tables, which follow from the configuration.
    _keys_to_ignore_on_load_unexpected = [r"attn\.(masked_)?bias$", r"embed_positions$"]
    _can_record_outputs = {"hidden_states": ScaledGPTJBlock, "attentions": ScaledGPTJAttention}


class ScaledGPTJModel(ScaledGPTJPreTrainedModel):
    """Embedding, blocks and final norm."""

    share_sequences: ShareSequences | None = None
    """See :attr:`tape_ds.model.llama.TapeModel.share_sequences`."""

    def __init__(self, config: ScaledGPTJConfig):
        super().__init__(config)
        assert config.rope_parameters is not None  # the configuration fills it in
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.h = nn.ModuleList(ScaledGPTJBlock(config, index) for index in range(config.num_hidden_layers))
        self.ln_f = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.encoding = rope_encoding(config.rope_parameters, config.rotary_dim)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the token embeddings."""
        return self.wte

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Put others in their place."""
        self.wte = value

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
        """Return hidden states of one call; arguments and errors are
        :meth:`tape_ds.model.llama.TapeModel.forward`'s."""
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
        borders = packed.borders(given.shape[0], tokens, offset)
        cut_ahead(borders, self.h[0].attn)
        if position_ids is None:
            position_ids = torch.arange(tokens, device=given.device)[None] + offset
        if cu_seq_lens_q is None:  # else a collator made the batch, and has looked without asking the device
            position_ids = positions_that_differ(position_ids)
        places_BT1 = position_ids[..., None]
        hidden_BTD = own_embeddings(shards, self.wte, input_ids, inputs_embeds, borders)
        start_B1TR = self.encoding.start(shards.rotated(places_BT1))
        for block in self.h:
            hidden_BTD = block(
                hidden_BTD,
                start_B1TR,
                borders=borders,
                offset=offset,
                past_key_values=past_key_values,
                use_cache=past_key_values is not None,
                shards=shards,
            )
        hidden_BTD = shards.gather(self.ln_f(hidden_BTD))
        return BaseModelOutputWithPast(hidden_BTD, past_key_values)


class ScaledGPTJForCausalLM(LanguageModel, ScaledGPTJPreTrainedModel, GenerationMixin):
    """The language model; with GPT-J's own RoPE parameters it gives GPT-J's logits."""

    _tied_weights_keys = {"lm_head.weight": "transformer.wte.weight"}

    def __init__(self, config: ScaledGPTJConfig):
        super().__init__(config)
        self.transformer = ScaledGPTJModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = OutputHead(config.hidden_size, config.vocab_size, bias=True)
        self.post_init()

    @contextmanager
    def with_rope_parameters(self, rope_parameters: Mapping[str, Any]) -> Iterator[None]:
        """Within the block, the model computes with these RoPE parameters and its present weights."""
        kept = self.transformer.encoding
        self.transformer.encoding = rope_encoding(rope_parameters, self.config.rotary_dim)
        try:
            yield
        finally:
            self.transformer.encoding = kept


def load(source: str | Path, config: ScaledGPTJConfig, **arguments: Any) -> ScaledGPTJForCausalLM:
    """Load a GPT-J's folder or hub id (transformers' or of this class); arguments go to ``from_pretrained``.

    Raises:
        UserError: a file of its weights is damaged; a parameter is missing, has no place, or has another shape.
    """
    model: ScaledGPTJForCausalLM = load_exact(ScaledGPTJForCausalLM, source, config=config, **arguments)
    return model
