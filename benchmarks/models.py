"""Whole models for the benchmarks, and the comparison of what they compute.

RoPE and TAPE get the same Llama weights, in the same memory. TAPE's updates, zero in a fresh model, get real values: a
product with zeros costs the same, but no gradient would pass through it to be checked.

Shape letters: B batch, T tokens.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.benchmark_case import (
    BASELINE,
    BenchmarkCase,
    CaseEntry,
    Setting,
    Truth,
    expected_from,
)
from benchmarks.measure import Runner, bytes_of
from benchmarks.shapes import Shape, document_lengths
from tape_ds import TapeConfig, TapeForCausalLM
from tools.experiments.flops import PAPER, PLACEHOLDERS

LLAMA_2_7B = {
    "vocab_size": 32_000,
    "hidden_size": 4_096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4_096,
    "rms_norm_eps": 1e-5,
}
TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
SMALL = TINY | {"hidden_size": 256, "max_position_embeddings": 256}
SIZES: dict[str, dict[str, Any]] = {"155M": PAPER, "7B": LLAMA_2_7B, "tiny": TINY, "small": SMALL}
# A model is checked on its first tokens: the truth needs every layer's whole matrices in fp64
CHECKED_TOKENS = 256
ENCODINGS = (BASELINE, "tape")


def family(shape: Shape, setting: Setting) -> Callable[[str, str], TapeForCausalLM]:
    """Return a function (encoding, backend) -> model in training mode, always with the same weights; all models share
    them, as far as they have them, with separate gradients."""

    @functools.cache
    def member(encoding: str, backend: str) -> TapeForCausalLM:
        if (encoding, backend) == (BASELINE, "sdpa"):
            return build(shape, BASELINE, "sdpa", setting)
        if backend != "sdpa":
            return by_backend(member(encoding, "sdpa"), backend, setting.dtype)
        other = build(shape, encoding, backend, setting)
        other.load_state_dict(member(BASELINE, "sdpa").state_dict(), strict=False, assign=True)
        return other.train()

    return member


def build(shape: Shape, encoding: str, backend: str, setting: Setting) -> TapeForCausalLM:
    torch.manual_seed(0)
    window = max(shape.tokens, SIZES[shape.name]["max_position_embeddings"])
    fields = SIZES[shape.name] | {
        "num_hidden_layers": shape.layers,
        "max_position_embeddings": window,
    }
    fields |= PLACEHOLDERS.get(encoding, {}) | {
        "position_encoding": encoding,
        "attention_backend": backend,
    }
    with setting.device:
        model = TapeForCausalLM(TapeConfig(**fields))
    generator = torch.Generator(setting.device).manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".position." in name:
                drawn = torch.randn(weight.shape, generator=generator, device=setting.device)
                # 0.05 makes the state of 32 layers overflow
                weight.copy_(0.02 * drawn)
    return model.to(setting.dtype).train()


def by_backend(model: TapeForCausalLM, backend: str, dtype: torch.dtype) -> TapeForCausalLM:
    """Return the model by another backend, its weights in ``dtype``, with the same ones trained."""
    config = type(model.config).from_dict(model.config.to_dict() | {"attention_backend": backend})
    with torch.device("meta"):
        other = type(model)(config)
    converted = {name: weight.to(dtype) for name, weight in model.state_dict().items()}
    other.load_state_dict(converted, assign=True)
    for name, weight in other.named_parameters():
        weight.requires_grad_(model.get_parameter(name).requires_grad)
    return other.train()


def tokens(shape: Shape, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    vocabulary = SIZES[shape.name]["vocab_size"]
    return torch.randint(3, vocabulary, (shape.batch, shape.tokens), generator=generator).to(device)


def packing(shape: Shape, device: torch.device, few: bool = False) -> dict[str, Any]:
    """Return the model's arguments for packed sequences, or for the tokens that are checked; none for plain texts."""
    if not shape.documents:
        return {}
    sequences = shape.batch
    tokens = shape.tokens
    if few:
        sequences = 1
        tokens = min(CHECKED_TOKENS, tokens)
    ends = np.cumsum(document_lengths(shape.tokens, shape.documents))
    # documents after the checked tokens are left out, one that crosses their end is cut there
    ends = np.unique(ends.clip(max=tokens))
    longest = int(np.diff(ends, prepend=0).max())
    starts = np.arange(sequences) * tokens
    borders = torch.tensor([0, *np.add.outer(starts, ends).flat], dtype=torch.int32)
    return {"cu_seq_lens_q": borders.to(device), "max_length_q": longest}


def compared(
    build: Callable[[str, str], Runner],
    truth: Callable[[str], Truth],
    backends: Sequence[str],
    encodings: Sequence[str] = ENCODINGS,
) -> BenchmarkCase:
    """Return every encoding by every attention backend: ``build(encoding, backend)`` against ``truth(encoding)``."""
    entries = []
    truths = {}
    for encoding in encodings:
        truths[encoding] = functools.partial(truth, encoding)
        for backend in backends:
            make = functools.partial(build, encoding, backend)
            entries.append(CaseEntry(f"attend {backend}", encoding, make))
    return BenchmarkCase(entries, truths)


def training(
    model: TapeForCausalLM, shape: Shape, backward: Callable[[Tensor], object] = Tensor.backward
) -> Runner:
    """Run a model on all tokens; check it on the first ones."""
    ids = tokens(shape, model.device)
    options = packing(shape, model.device)
    forward = functools.partial(loss, model, ids, **options)
    outcome = functools.partial(checked, model, shape)
    return Runner(forward, backward, outcome, bytes_of(list(model.parameters())))


def truth(model: TapeForCausalLM, shape: Shape, exact: torch.dtype = torch.float64) -> Truth:
    """Compute the truth by the ``reference`` attention in a wider precision, and its error in the model's own."""
    wide = checked(by_backend(model, "reference", exact), shape)
    plain = checked(by_backend(model, "reference", model.dtype), shape)
    return expected_from(wide, plain, model.dtype)


def checked(model: TapeForCausalLM, shape: Shape) -> dict[str, Tensor]:
    """Return the first tokens' logits, and those gradients of the loss that everything else has a part in: of position
    updates, norms and the first attention, as far as they are trained."""
    ids_BT = tokens(shape, model.device)[:1, :CHECKED_TOKENS]
    options = packing(shape, model.device, few=True)
    with torch.no_grad():
        found = {"logits": model(input_ids=ids_BT, use_cache=False, **options).logits.detach()}
    loss(model, ids_BT, **options).backward()
    for name, weight in model.named_parameters():
        if weight.grad is not None and (
            ".position." in name or "norm" in name or "layers.0.self_attn" in name
        ):
            found[name] = weight.grad.detach().clone()
    model.zero_grad(set_to_none=True)
    return found


def loss(model: TapeForCausalLM, ids_BT: Tensor, **options: Any) -> Tensor:
    model.zero_grad(set_to_none=True)
    return model(input_ids=ids_BT, labels=ids_BT, use_cache=False, **options).loss
