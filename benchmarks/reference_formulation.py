"""TAPE as its published code formulates it, transcribed for comparison, not a model to train.

Written anew from a description of that code. What it does its way: cosines and sines K wide each, their halves equal,
one copy for every head and sequence; three attentions, over the value, the cosines and the sines; a position
feed-forward that makes [B, I, T, K] tensors, once for the cosines and once for the sines; fp32 logits of the whole
sequence.

What that code wastes by accident is left out: the gate is evaluated once (there: twice), no Gram matrix of the state is
built, no table is cloned and gathered in every layer, and the last layer's update, which nobody reads, is not made. The
attention update is the paper's matrix across heads, as in ours. Parameters have the names of ours, so
``load_state_dict`` takes a model of ours as it is; grouped queries are refused, as there.

Shape letters: B batch, T queries, S keys, H heads, K head size, D hidden size, I position rank.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, rotate_half

from tape_ds import TapeConfig

Attend = Callable[[Tensor, Tensor, tuple[Tensor, ...], Tensor], list[Tensor]]


def _weights(q_BHTK: Tensor, k_BHSK: Tensor, mask_TS: Tensor) -> Tensor:
    scores_BHTS = torch.matmul(q_BHTK, k_BHSK.transpose(2, 3)) / q_BHTK.shape[-1] ** 0.5 + mask_TS
    return scores_BHTS.softmax(dim=-1, dtype=torch.promote_types(q_BHTK.dtype, torch.float32)).to(q_BHTK.dtype)


def three_eager(q: Tensor, k: Tensor, values: tuple[Tensor, ...], mask_TS: Tensor) -> list[Tensor]:
    """Three softmax matrices by plain operations."""
    return [_weights(q, k, mask_TS) @ value for value in values]


def one_eager(q: Tensor, k: Tensor, values: tuple[Tensor, ...], mask_TS: Tensor) -> list[Tensor]:
    """Return one softmax matrix for all three values: what the published code does without flash-attention."""
    weights = _weights(q, k, mask_TS)
    return [weights @ value for value in values]


def three_sdpa(q: Tensor, k: Tensor, values: tuple[Tensor, ...], mask_TS: Tensor) -> list[Tensor]:
    """Three fused calls: what the published code does with flash-attention."""
    return [F.scaled_dot_product_attention(q, k, value, is_causal=True) for value in values]


ATTENTIONS: dict[str, Attend] = {"three eager": three_eager, "one eager": one_eager, "three sdpa": three_sdpa}


def causal_mask(hidden_BTD: Tensor) -> Tensor:
    """[T, T], minus infinity for whatever lies ahead."""
    size = 2 * hidden_BTD.shape[1:2]
    return torch.full(size, -torch.inf, dtype=hidden_BTD.dtype, device=hidden_BTD.device).triu(1)


class Position(nn.Module):
    """The two updates of the state, applied to the cosines and then to the sines."""

    def __init__(self, config: TapeConfig):
        super().__init__()
        heads = config.num_attention_heads
        rank = (config.position_options or {}).get("rank") or 4 * heads
        linear = functools.partial(nn.Linear, bias=False)
        self.attend, self.gate = linear(heads, heads), linear(config.hidden_size, rank)
        self.expand, self.contract = linear(heads, rank), linear(rank, heads)

    def after_attention(self, state_BHTK: Tensor, moved_BHTK: Tensor) -> Tensor:
        """``e + W A e``."""
        return state_BHTK + torch.einsum("gh,bhtk->bgtk", self.attend.weight, moved_BHTK)

    def after_mlp(self, state_BHTK: Tensor, gate_BTI: Tensor) -> Tensor:
        """``e + W_down [SiLU(W_x y) * (W_up e)]``."""
        up_BITK = torch.einsum("ih,bhtk->bitk", self.expand.weight, state_BHTK)
        gated_BITK = gate_BTI.transpose(1, 2)[..., None] * up_BITK
        return state_BHTK + torch.einsum("hi,bitk->bhtk", self.contract.weight, gated_BITK)


class Layer(nn.Module):
    """A block that reads and updates the state."""

    def __init__(self, config: TapeConfig, attend: Attend, last: bool):
        super().__init__()
        self.attend = attend
        linear = functools.partial(nn.Linear, config.hidden_size, config.hidden_size, bias=False)
        self.self_attn = nn.ModuleDict({name: linear() for name in ("q_proj", "k_proj", "v_proj", "o_proj")})
        self.heads = config.num_attention_heads
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.position = None if last else Position(config)

    def forward(self, x_BTD: Tensor, cos: Tensor, sin: Tensor, mask_TS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return hidden states [B, T, D] and both halves of the state [B, H, T, K]."""
        q, k, v = self._projected(self.input_layernorm(x_BTD))
        q, k = (x * cos + rotate_half(x) * sin for x in (q, k))
        values = (v,) if self.position is None else (v, cos, sin)
        out, *moved = self.attend(q, k, values, mask_TS)
        x_BTD = x_BTD + self.self_attn["o_proj"](out.transpose(1, 2).flatten(2))
        y_BTD = self.mlp(self.post_attention_layernorm(x_BTD))
        if self.position is not None:
            cos, sin = (self.position.after_attention(*pair) for pair in zip((cos, sin), moved, strict=True))
            gate_BTI = F.silu(self.position.gate(y_BTD))
            cos, sin = (self.position.after_mlp(half, gate_BTI) for half in (cos, sin))
        return x_BTD + y_BTD, cos, sin

    def _projected(self, x_BTD: Tensor) -> list[Tensor]:
        projections = [self.self_attn[name] for name in ("q_proj", "k_proj", "v_proj")]
        return [each(x_BTD).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in projections]


class Decoder(nn.Module):
    """Embedding, blocks and final norm."""

    def __init__(self, config: TapeConfig, attend: Attend):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        last = config.num_hidden_layers - 1
        self.layers = nn.ModuleList(Layer(config, attend, index == last) for index in range(last + 1))
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)


class Transcription(nn.Module):
    """The whole model.

    Raises:
        ValueError: an attention that is not in ``ATTENTIONS``, or grouped queries.
    """

    def __init__(self, config: TapeConfig, attention: str):
        super().__init__()
        if attention not in ATTENTIONS:
            raise ValueError(f"attention = {attention!r}: give one of {', '.join(ATTENTIONS)}")
        if config.num_key_value_heads != config.num_attention_heads:
            raise ValueError("the published formulation has no grouped queries")
        self.config = config
        self.model = Decoder(config, ATTENTIONS[attention])
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, use_cache: bool = False) -> CausalLMOutput:
        """Return logits [B, T, vocabulary], and the mean loss of the next token where labels are given; there is no
        cache."""
        hidden_BTD = self.model.embed_tokens(input_ids)
        cos, sin = self._start(hidden_BTD)
        mask_TS = causal_mask(hidden_BTD)
        for layer in self.model.layers:
            hidden_BTD, cos, sin = layer(hidden_BTD, cos, sin, mask_TS)
        logits = self.lm_head(self.model.norm(hidden_BTD)).float()
        if labels is None:
            return CausalLMOutput(logits=logits)
        predicted, targets = logits[:, :-1].contiguous(), labels[:, 1:].contiguous()
        loss = F.cross_entropy(predicted.flatten(0, 1), targets.flatten())
        return CausalLMOutput(loss, logits)

    def _start(self, hidden_BTD: Tensor) -> list[Tensor]:
        """Cosines and sines [B, H, T, K] of plain RoPE, a copy for every sequence and head."""
        batch, tokens, _ = hidden_BTD.shape
        width, theta = self.config.head_dim, self.config.rope_parameters["rope_theta"]
        exponents = torch.arange(0, width, 2, dtype=torch.float64, device=hidden_BTD.device) / width
        angles_TK = torch.outer(torch.arange(tokens, device=hidden_BTD.device).double(), theta**-exponents).repeat(1, 2)
        size = (batch, self.config.num_attention_heads, tokens, width)
        return [half.to(hidden_BTD.dtype).expand(size).contiguous() for half in (angles_TK.cos(), angles_TK.sin())]
