"""Whole models for the benchmarks, and the one way to compare what they compute.

RoPE and TAPE get the same Llama weights, in the same memory. TAPE's updates, zero in a fresh model, get real values: a
product with zeros costs the same, but no gradient would pass through it to be checked.

Shape letters: B batch, T tokens.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.benchmark_case import BASELINE, BenchmarkCase, CaseEntry, Setting, Truth, expected_from
from benchmarks.measure import Runner, bytes_of
from benchmarks.shapes import BenchmarkModel, document_lengths
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


def sizes(shape: BenchmarkModel) -> dict[str, Any]:
    window = max(shape.tokens, SIZES[shape.name]["max_position_embeddings"])
    return SIZES[shape.name] | {"num_hidden_layers": shape.layers, "max_position_embeddings": window}


def _config(fields: Mapping[str, Any], encoding: str, backend: str) -> TapeConfig:
    own = PLACEHOLDERS.get(encoding, {}) | {"position_encoding": encoding, "attention_backend": backend}
    return TapeConfig(**fields, **own)


def build(fields: Mapping[str, Any], encoding: str, backend: str, setting: Setting) -> TapeForCausalLM:
    """Return a fresh model in training mode, always with the same weights."""
    torch.manual_seed(0)
    config = _config(fields, encoding, backend)
    with setting.device:
        model = TapeForCausalLM(config)
    generator = torch.Generator(setting.device).manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".position." in name:
                weight.copy_(0.05 * torch.randn(weight.shape, generator=generator, device=setting.device))
    return model.to(setting.dtype).train()


def with_weights_of(model: TapeForCausalLM, fields: Mapping[str, Any], encoding: str, backend: str) -> TapeForCausalLM:
    """Return another model on the same weights, as far as both have them, with separate gradients."""
    setting = Setting(model.device, model.dtype)
    same = encoding == model.config.position_encoding
    if same:
        with torch.device("meta"):
            other = TapeForCausalLM(_config(fields, encoding, backend))
    else:
        other = build(fields, encoding, backend, setting)
    other.load_state_dict(model.state_dict(), strict=same, assign=True)
    return other.train()


def family(fields: Mapping[str, Any], setting: Setting) -> Callable[[str, str], TapeForCausalLM]:
    """Return a function (encoding, backend) -> model; all models share their weights."""

    @functools.cache
    def member(encoding: str, backend: str) -> TapeForCausalLM:
        if (encoding, backend) == (BASELINE, "sdpa"):
            return build(fields, BASELINE, "sdpa", setting)
        first = member(BASELINE if backend == "sdpa" else encoding, "sdpa")
        return with_weights_of(first, fields, encoding, backend)

    return member


def tokens(shape: BenchmarkModel, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    vocabulary = SIZES[shape.name]["vocab_size"]
    return torch.randint(3, vocabulary, (shape.batch, shape.tokens), generator=generator).to(device)


def packing(shape: BenchmarkModel, device: torch.device, few: bool = False) -> dict[str, Any]:
    """Return the model's arguments for packed sequences, or for their :func:`first_tokens`; none for plain texts."""
    if shape.documents is None:
        return {}
    sequences, tokens = (1, min(CHECKED_TOKENS, shape.tokens)) if few else (shape.batch, shape.tokens)
    ends = sorted({min(end, tokens) for end in accumulate(document_lengths(shape.tokens, shape.documents))})
    longest = max(end - start for start, end in pairwise((0, *ends)))
    starts = range(0, sequences * tokens, tokens)
    borders = torch.tensor([0, *(start + end for start in starts for end in ends)], dtype=torch.int32)
    return {"cu_seq_lens_q": borders.to(device), "max_length_q": longest}


def first_tokens(ids_BT: Tensor) -> Tensor:
    """Return the beginning of the first sequence, on which a model is checked."""
    return ids_BT[:1, :CHECKED_TOKENS]


def by_backend(
    build: Callable[[str, str], Runner],
    truth: Callable[[str], Truth],
    backends: Sequence[str],
    encodings: Sequence[str] = ENCODINGS,
) -> BenchmarkCase:
    """Return every encoding by every attention backend: ``build(encoding, backend)`` against ``truth(encoding)``."""
    entries = [
        CaseEntry(f"attend {backend}", encoding, functools.partial(build, encoding, backend))
        for encoding in encodings
        for backend in backends
    ]
    return BenchmarkCase(entries, {encoding: functools.partial(truth, encoding) for encoding in encodings})


def training(
    model: nn.Module,
    ids_BT: Tensor,
    options: Mapping[str, Any] = MappingProxyType({}),
    few_options: Mapping[str, Any] = MappingProxyType({}),
    backward: Callable[[Tensor], object] = Tensor.backward,
) -> Runner:
    """Run a model with ``options``; check it on its first tokens with ``few_options``."""
    few = first_tokens(ids_BT)
    return Runner(
        lambda: loss(model, ids_BT, **options),
        backward,
        lambda: outcome(model, few, **few_options),
        bytes_of(list(model.parameters())),
    )


def outcome(model: nn.Module, ids_BT: Tensor, **options: Any) -> dict[str, Tensor]:
    """Return logits, and those gradients of the loss that everything else has a part in: of position updates, norms and
    the first attention, as far as they are trained."""
    with torch.no_grad():
        found = {"logits": model(input_ids=ids_BT, use_cache=False, **options).logits.detach()}
    loss(model, ids_BT, **options).backward()
    for name, weight in model.named_parameters():
        if weight.grad is not None and (".position." in name or "norm" in name or "layers.0.self_attn" in name):
            found[name] = weight.grad.detach().clone()
    model.zero_grad(set_to_none=True)
    return found


def loss(model: nn.Module, ids_BT: Tensor, **options: Any) -> Tensor:
    model.zero_grad(set_to_none=True)
    return model(input_ids=ids_BT, labels=ids_BT, use_cache=False, **options).loss


def truth(model: TapeForCausalLM, ids_BT: Tensor, exact: torch.dtype = torch.float64, **packing: Any) -> Truth:
    """Compute the truth by the ``reference`` attention in a wider precision, and its error in the model's own."""
    models = (by_reference(model, dtype).train() for dtype in (exact, model.dtype))
    wide, plain = (outcome(each, ids_BT, **packing) for each in models)
    return expected_from(wide, plain, model.dtype)


def by_reference(model: TapeForCausalLM, dtype: torch.dtype) -> TapeForCausalLM:
    """Return the model by the ``reference`` attention, its weights in ``dtype``, with the same ones trained."""
    config = type(model.config).from_dict(model.config.to_dict() | {"attention_backend": "reference"})
    with torch.device("meta"):
        other = type(model)(config)
    weights = {name: weight.to(dtype) for name, weight in model.state_dict().items()}
    other.load_state_dict(weights, assign=True)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    for name, weight in other.named_parameters():
        weight.requires_grad_(name in trained)
    return other
