"""GPT-J with any RoPE scaling: transformers' model and parameters, with exact angles in the place of its tables.

transformers has angles in a table as long as the native context, of fp32 products, and before 5.24 attention that takes
no other. Here angles are fp64 and rounded once, and positions are any.

Shape letters: B batch, T tokens of this call, H heads, K head size, R rotated columns of a head, D hidden size.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gptj.modeling_gptj import GPTJMLP, GPTJBlock, GPTJForCausalLM, GPTJModel, GPTJPreTrainedModel
from transformers.models.llama.modeling_llama import eager_attention_forward

from tape_ds.encodings import scaling
from tape_ds.kernels.rotate import rotate
from tape_ds.models.gptj_configuration import ScaledGPTJConfig


class RotaryAngles(nn.Module):
    def __init__(self, config: ScaledGPTJConfig):
        super().__init__()
        assert config.rope_parameters is not None  # the configuration fills it in
        self.exact, self.attention_scaling = scaling.frequencies(config.rope_parameters, config.rotary_dim)
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
        self.inv_freq = torch.from_numpy(self.exact).to(self.inv_freq.device)  # moved, but rounded by no cast
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
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        dropout = self.config.attn_pdrop if self.training else 0.0
        out, weights = attend(self, query, key, value, attention_mask, scaling=self.head_dim**-0.5, dropout=dropout)
        return self.resid_dropout(self.out_proj(out.flatten(2))), weights


class ScaledGPTJBlock(GPTJBlock):
    def __init__(self, config: ScaledGPTJConfig, layer_idx: int):
        super(GPTJBlock, self).__init__()  # its own would build the other attention
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
        if isinstance(module, RotaryAngles):  # loading leaves its buffer empty
            module.inv_freq.copy_(torch.from_numpy(module.exact))


class ScaledGPTJModel(ScaledGPTJPreTrainedModel, GPTJModel):
    def __init__(self, config: ScaledGPTJConfig):
        super(GPTJModel, self).__init__(config)
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = nn.ModuleList(ScaledGPTJBlock(config, index) for index in range(config.num_hidden_layers))
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
