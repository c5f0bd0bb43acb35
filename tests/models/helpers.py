"""Tiny models for the model room's tests, and the one way to give every parameter an effect."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tape_ds import TapeConfig, TapeForCausalLM, encodings
from tape_ds.encodings import base, registry

VOCABULARY = 61

HEADS = {
    "mha": {"num_attention_heads": 4, "num_key_value_heads": 4},
    "gqa": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "mqa": {"num_attention_heads": 8, "num_key_value_heads": 1},
}
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

# What an encoding cannot do without, or what tiny sizes need.
_NEEDED = {
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 2.0,
            "original_max_position_embeddings": 32,
        }
    },
    "bipe_rope": {"position_options": {"separators": [7, 11], "segment_length": 6}},
    "bipe_alibi": {"position_options": {"separators": [7, 11], "segment_length": 6}},
    "t5": {"position_options": {"buckets": 8, "max_distance": 20}},
    "fire": {"position_options": {"threshold": 8.0, "width": 12}},
    "cope": {"position_options": {"positions": 5}, "attention_backend": "sdpa"},
}


def _tape(**options):
    return {"position_encoding": "tape", "position_options": options}


def _angles(**parameters):
    return {"position_encoding": "rope", "rope_parameters": {"rope_theta": 10_000.0, **parameters}}


def _with(name, **own):
    """An encoding with options that every encoding has."""
    needed = _NEEDED.get(name, {})
    return {
        "position_encoding": name,
        **needed,
        "position_options": {**needed.get("position_options", {}), **own},
    }


# Half of the ids are digits; no offset is drawn, so that what is promised of positions can be seen.
_ABACUS = {
    "abacus": True,
    "abacus_digits": list(range(20, 50)),
    "abacus_places": 7,
    "abacus_shift": 0,
}


# Every encoding, and TAPE's and the angles' variants: what a property of the whole model is tested for. A new encoding
# in the registry is here by itself.
ENCODINGS = {
    **{
        name: {"position_encoding": name, **_NEEDED.get(name, {})} for name in encodings.available()
    },
    "tape scale": _tape(attention_update="scale"),
    "tape feed-forward only": _tape(attention_update="off"),
    "tape attention only": _tape(feed_forward=False),
    "tape neither": _tape(attention_update="off", feed_forward=False),
    "tape separate": _tape(form="separate"),
    "tape vector": _tape(form="vector"),
    "tape vector scale": _tape(form="vector", attention_update="scale"),
    "tape flattened": _tape(form="flattened", rank=5),
    "tape from yarn": {**_tape(), "rope_parameters": _NEEDED["yarn"]["rope_parameters"]},
    "tape unit": _tape(state_norm="unit"),
    "tape unit identity": _tape(
        state_norm="unit", attention_norm="unit", attention_init="identity"
    ),
    "tape from alibi": _tape(start="alibi"),
    "repo everywhere": {"position_encoding": "repo", "position_options": {"start_layer": 0}},
    "nope scaled": {
        "position_encoding": "nope",
        "position_options": {"score_scale": 0.4, "trained_length": 8, "text_length": 40},
    },
    "rope dynamic": _angles(rope_type="dynamic", factor=2.0, original_max_position_embeddings=8),
    **{f"{name} abacus": _with(name, **_ABACUS) for name in ("rope", "tape", "alibi")},
    **{f"{name} nope layers": _with(name, nope_layers=2) for name in ("rope", "tape", "alibi")},
    # a window below every length of a test, so that factors are above 1
    **{
        f"{name} log scale": {**_with(name, log_scale="all"), "max_position_embeddings": 5}
        for name in ("rope", "tape")
    },
    "rope log positions": _with(
        "rope", log_scale="all", log_scale_from=5, log_scale_by="positions"
    ),
}


# With every kind of heads where the product of all would take minutes: one of each way an encoding enters the model.
WITH_EVERY_HEADS = ("rope", "tape", "alibi", "tape from alibi", "bipe_rope", "cope", "repo")
MODELS = [("gqa", name) for name in ENCODINGS] + [
    (heads, name) for heads in HEADS if heads != "gqa" for name in WITH_EVERY_HEADS
]
"""(heads, encoding) for :func:`tiny_model`: every encoding with grouped queries, a few with the other kinds."""

# Added to all scores of a query alike, and a softmax takes no notice: its gradient is 0 but for rounding.
WITHOUT_GRADIENT = (".network.bias_out",)


def build_encoding(name: str) -> base.PositionEncoding:
    """The once-per-forward part of an entry of ``ENCODINGS``."""
    return registry.build(tiny_config(encoding=name))


def tiny_config(heads: str = "gqa", encoding: str = "tape", **changes) -> TapeConfig:
    """A configuration of a few thousand parameters."""
    return TapeConfig(**(SIZES | HEADS[heads] | ENCODINGS[encoding] | changes))


INVARIANT = [name for name in ENCODINGS if build_encoding(name).translation_invariant]
CACHE_EXACT = [name for name in ENCODINGS if build_encoding(name).cache_exact]


def randomised(model: TapeForCausalLM, seed: int = 1) -> TapeForCausalLM:
    """The model with real values in the parameters that start at zero or one, so that no path is silent."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.numel() == 1:
                weight.mul_(1.1)
            elif ".position." in name or ".encoding." in name:
                weight.copy_(0.15 * torch.randn(weight.shape, generator=generator))
            elif "norm" in name:
                weight.copy_(1 + 0.1 * torch.randn(weight.shape, generator=generator))
    return model


def tiny_model(heads: str = "gqa", encoding: str = "tape", **changes) -> TapeForCausalLM:
    """A randomised model in evaluation mode."""
    return randomised(TapeForCausalLM(tiny_config(heads, encoding, **changes))).eval()


def norms_in_own_dtype(monkeypatch) -> None:
    """In an fp64 model norms are then fp64 too; transformers' own compute in fp32."""

    def rms(norm, x):
        return F.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)

    monkeypatch.setattr(LlamaRMSNorm, "forward", rms)


def needs_ids(model: TapeForCausalLM) -> bool:
    """Whether embeddings alone do not tell where tokens stand."""
    return model.model.encoding.reads_tokens or bool(
        (model.config.position_options or {}).get("abacus")
    )


def tokens(batch: int, length: int) -> torch.Tensor:
    """Random ids without the special ones (0 to 2)."""
    return torch.randint(3, VOCABULARY, (batch, length))


def gradients(model: TapeForCausalLM) -> dict[str, torch.Tensor]:
    """A copy of every parameter's gradient, by name."""
    return {
        name: weight.grad.clone()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }


def largest_difference(mine: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    """Over tensors of the same names: the largest difference, relative to the largest entry of the tensor (or to 0.03:
    a gradient that is 0 but for rounding, as of a bias common to all scores, has no scale of its own)."""
    assert mine.keys() == others.keys()
    return max(
        float((mine[name] - others[name]).abs().max() / others[name].abs().max().clamp_min(0.03))
        for name in mine
    )


@torch.no_grad()
def rounding(model: nn.Module, ids: torch.Tensor) -> float:
    """Room for another order of sums: eight times the largest error that this model's logits have in its precision. Two
    ways to compute them have an error each, and one CPU's was seen to be twice another's."""
    twin = copy.deepcopy(model).eval()
    single = twin(ids).logits
    return 8 * float((single - twin.double()(ids).logits).abs().max())
