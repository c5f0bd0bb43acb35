"""Tiny models for the model room's tests, and the one way to give every parameter an effect."""

import torch

from tape_ds import TapeConfig, TapeForCausalLM

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

# Every encoding with its options: what a property of the whole model is tested for.
ENCODINGS = {
    "rope": {"position_encoding": "rope"},
    "mix": {"position_encoding": "tape"},
    "scale": {"position_encoding": "tape", "position_options": {"attention_update": "scale"}},
    "feed-forward only": {"position_encoding": "tape", "position_options": {"attention_update": "off"}},
    "attention only": {"position_encoding": "tape", "position_options": {"feed_forward": False}},
}


def tiny_config(heads: str = "gqa", encoding: str = "mix", **changes) -> TapeConfig:
    """A configuration of a few thousand parameters."""
    return TapeConfig(**(SIZES | HEADS[heads] | ENCODINGS[encoding] | changes))


def randomised(model: TapeForCausalLM, seed: int = 1) -> TapeForCausalLM:
    """The model with real values in the parameters that start at zero or one, so that no path is silent."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".position." in name:
                weight.copy_(0.15 * torch.randn(weight.shape, generator=generator))
            elif "norm" in name:
                weight.copy_(1 + 0.1 * torch.randn(weight.shape, generator=generator))
    return model


def tiny_model(heads: str = "gqa", encoding: str = "mix", **changes) -> TapeForCausalLM:
    """A randomised model in evaluation mode."""
    return randomised(TapeForCausalLM(tiny_config(heads, encoding, **changes))).eval()


def tokens(batch: int, length: int) -> torch.Tensor:
    """Random ids without the special ones (0 to 2)."""
    return torch.randint(3, VOCABULARY, (batch, length))


def gradients(model: TapeForCausalLM) -> dict[str, torch.Tensor]:
    """A copy of every parameter's gradient, by name."""
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def largest_difference(mine: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    """Over tensors of the same names: the largest difference, relative to the largest entry of the tensor."""
    assert mine.keys() == others.keys()
    return max(
        float((mine[name] - others[name]).abs().max() / others[name].abs().max().clamp_min(1e-6)) for name in mine
    )
