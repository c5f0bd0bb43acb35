"""GPT-J with any RoPE scaling: transformers' model and parameters, but exact angles instead of its tables.

transformers stores angles, fp32 products, in a table as long as the native context, and before 5.24 its attention
takes no others. Here angles are fp64 and rounded once, at any positions.

Shape letters: B batch, T tokens of this call, H heads, K head size, R rotated columns of a head, D hidden size.
"""

from collections.abc import Callable
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import GPTJConfig, PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gptj.modeling_gptj import (
    GPTJMLP,
    GPTJBlock,
    GPTJForCausalLM,
    GPTJModel,
    GPTJPreTrainedModel,
)
from transformers.models.llama.modeling_llama import eager_attention_forward

from tape_ds.encodings import scaling
from tape_ds.errors import Problem, raise_if_any
from tape_ds.kernels.rotate import rotate

# fields of older folders: the one encoding, and an attention backend, which is chosen when a model is loaded
_OLD_FIELDS = ("position_encoding", "position_options", "attention_backend")


@strict
class ScaledGPTJConfig(GPTJConfig):
    """Everything of ``GPTJConfig``, and:

    Attributes:
        rope_parameters: see :mod:`tape_ds.encodings.scaling`; None: GPT-J's own.

    Raises:
        UserError: (a ValueError) naming every impossible value.
    """

    model_type = "tape_gptj"
    attribute_map = {**GPTJConfig.attribute_map, "attention_dropout": "attn_pdrop"}

    rope_parameters: dict | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(
            **{name: value for name, value in kwargs.items() if name not in _OLD_FIELDS}
        )
        self.validate_rope()

    @property
    def intermediate_size(self) -> int:
        if self.n_inner is not None:
            return self.n_inner
        return 4 * self.n_embd

    def validate_rope(self) -> None:
        """Skip transformers' check, which does not know ``ntk`` and ``yarn_revised``."""
        problems = scaling.check(self.rope_parameters or {})
        if scaling.is_dynamic(self.rope_parameters or {}):
            remedy = "rope_parameters.rope_type: linear, ntk, yarn, yarn_revised"
            problems.append(
                Problem("rope_parameters.rope_type", "dynamic", "not computed for GPT-J", remedy)
            )
        columns, left = divmod(self.n_embd, self.n_head)
        if left:
            problems.append(
                Problem(
                    "n_head",
                    self.n_head,
                    f"does not divide n_embd = {self.n_embd}",
                    "give a divisor",
                )
            )
        elif self.rotary_dim % 2 or not 0 < self.rotary_dim <= columns:
            wrong = f"not an even number from 2 to the {columns} columns of a head"
            problems.append(
                Problem("rotary_dim", self.rotary_dim, wrong, "give the columns that are rotated")
            )
        raise_if_any(problems)


def with_rope(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return a GPT-J's configuration with the RoPE parameters that it has; any other as it is."""
    if type(config) is not GPTJConfig:
        return config
    fields = {name: value for name, value in config.to_dict().items() if name != "model_type"}
    return ScaledGPTJConfig(**fields, name_or_path=config.name_or_path)


class RotaryAngles(nn.Module):
    def __init__(self, config: ScaledGPTJConfig):
        super().__init__()
        # the configuration fills it in
        assert config.rope_parameters is not None
        self.exact, self.attention_scaling = scaling.frequencies(
            config.rope_parameters, config.rotary_dim
        )
        self.inv_freq: Tensor
        # not torch.tensor, whose floats ZeRO-3's zero.Init rounds to the engine's dtype
        self.register_buffer("inv_freq", torch.from_numpy(self.exact), persistent=False)

    def forward(self, position_ids: Tensor) -> Tensor:
        """Return fp32 [B, 1, T, R], cosines before sines."""
        angles_BTC = position_ids[..., None].double() * self.inv_freq
        both_BTR = torch.cat((angles_BTC.cos(), angles_BTC.sin()), dim=-1) * self.attention_scaling
        return both_BTR.float()[:, None]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "RotaryAngles":
        super()._apply(fn, recurse)
        # moved, but rounded by no cast
        self.inv_freq = torch.from_numpy(self.exact).to(self.inv_freq.device)
        return self


def rotate_pairs(x_BHTK: Tensor, start_B1TR: Tensor) -> Tensor:
    """Rotate columns 2j and 2j + 1 of a head by angle j, for the first R columns, and leave the others.

    The R columns come out with the first of all pairs before the second of all pairs, which is how ``rotate`` reads
    them: queries and keys alike, so that no score notices, and nothing is moved back.
    """
    rotated = start_B1TR.shape[-1]
    pairs_BHTR = x_BHTK[..., :rotated].unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return torch.cat((rotate(pairs_BHTR, start_B1TR), x_BHTK[..., rotated:]), dim=-1)


class ScaledGPTJAttention(nn.Module):
    """GPT-J's attention by any function that transformers knows."""

    num_key_value_groups = 1  # which eager attention reads

    def __init__(self, config: ScaledGPTJConfig, layer_idx: int):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        width = config.hidden_size
        self.head_dim = width // config.num_attention_heads
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)
        self.resid_dropout = nn.Dropout(config.resid_pdrop)
        self.rotary_emb = RotaryAngles(config)

    def forward(
        self,
        hidden_states: Tensor,
        position_ids: Tensor,
        attention_mask: Any = None,
        layer_past: Cache | None = None,  # the cache, before transformers 5.24
        cache: Cache | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        heads = (*hidden_states.shape[:2], -1, self.head_dim)
        start_B1TR = self.rotary_emb(position_ids)
        query = rotate_pairs(self.q_proj(hidden_states).view(heads).transpose(1, 2), start_B1TR)
        key = rotate_pairs(self.k_proj(hidden_states).view(heads).transpose(1, 2), start_B1TR)
        value = self.v_proj(hidden_states).view(heads).transpose(1, 2)
        past = layer_past if cache is None else cache
        if past is not None:
            key, value = past.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        dropout = self.config.attn_pdrop if self.training else 0.0
        out, weights = attend(
            self, query, key, value, attention_mask, scaling=self.head_dim**-0.5, dropout=dropout
        )
        return self.resid_dropout(self.out_proj(out.flatten(2))), weights


class ScaledGPTJBlock(GPTJBlock):
    def __init__(self, config: ScaledGPTJConfig, layer_idx: int):
        # its own would build the other attention
        super(GPTJBlock, self).__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.attn = ScaledGPTJAttention(config, layer_idx)
        self.mlp = GPTJMLP(config.intermediate_size, config)


class ScaledGPTJPreTrainedModel(GPTJPreTrainedModel):
    config_class = ScaledGPTJConfig
    _no_split_modules = ["ScaledGPTJBlock"]
    _supports_sdpa = True
    _can_record_outputs = {"hidden_states": ScaledGPTJBlock, "attentions": ScaledGPTJAttention}
    # Older checkpoints (EleutherAI/gpt-j-6b's) store masks and tables, which follow from the configuration.
    _keys_to_ignore_on_load_unexpected = [r"attn\.(masked_)?bias$", r"embed_positions$"]

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        # loading leaves its buffer empty
        if isinstance(module, RotaryAngles):
            module.inv_freq.copy_(torch.from_numpy(module.exact))


class ScaledGPTJModel(ScaledGPTJPreTrainedModel, GPTJModel):
    def __init__(self, config: ScaledGPTJConfig):
        super(GPTJModel, self).__init__(config)
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = nn.ModuleList(
            ScaledGPTJBlock(config, index) for index in range(config.num_hidden_layers)
        )
        self.ln_f = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.gradient_checkpointing = False
        self.post_init()

    def rotary_emb(self, *_: Any, **__: Any) -> None:
        """Replaces the table that transformers' decoder has since 5.24."""


class ScaledGPTJForCausalLM(ScaledGPTJPreTrainedModel, GPTJForCausalLM):
    """The language model; with GPT-J's own RoPE parameters it gives GPT-J's logits."""

    def __init__(self, config: ScaledGPTJConfig):
        super(GPTJForCausalLM, self).__init__(config)
        self.transformer = ScaledGPTJModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()
