"""Whole models: a smoke test of two wide layers, the 7B recipe's step, and a training step by every encoding.

Shape letters: B batch, T tokens.
"""

import functools
import itertools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TypeVar

import torch
from torch import Tensor

from benchmarks import models
from benchmarks.benchmark_case import (
    BASELINE,
    BenchmarkCase,
    CaseEntry,
    Setting,
    Truth,
    expected_from,
)
from benchmarks.measure import Runner
from benchmarks.shapes import Shape
from tape_ds import TapeForCausalLM, encodings
from tape_ds.methods import groups

_T = TypeVar("_T")
# tokens, after the others have filled the cache
DECODED = 4
# Of AdamW, whose first step changes every weight by about this, enough to show in bf16
RATE = 1e-4
# Encodings and attention backends of the recipe's step, by kind of device
RECIPE = {
    "cuda": ((BASELINE, "auto"), ("tape", "varlen"), ("tape", "triton")),
    "cpu": ((BASELINE, "sdpa"), ("tape", "sdpa")),
}
# ``randpe`` is RoPE at positions that each forward draws again, so no two of its outcomes can be compared
ENCODINGS = tuple(name for name in encodings.available() if name != "randpe")
BIASED = ("alibi", "t5", "fire")


def smoke(shape: Shape, setting: Setting) -> BenchmarkCase:
    """Compare each backend with the same model in a wider precision: the loss, every gradient, the loss after a step of
    AdamW and, where a sequence is one text, the logits of tokens that are decoded one by one from a cache."""
    member = models.family(shape, setting)

    def build(encoding: str, backend: str) -> Runner:
        model = member(encoding, backend)
        return models.training(model, shape)._replace(
            outcome=lambda: smoke_outcome(model, shape, cached=True)
        )

    def truth(encoding: str) -> Truth:
        model = member(encoding, "sdpa")
        exact = torch.float64 if setting.dtype == torch.float32 else torch.float32
        wide = models.by_backend(model, "reference", exact)
        plain = models.by_backend(model, "reference", setting.dtype)
        outcome = functools.partial(smoke_outcome, shape=shape, cached=False)
        return expected_from(outcome(wide), outcome(plain), setting.dtype)

    backends = ("sdpa", "triton") if setting.device.type == "cpu" else ("varlen", "triton", "sdpa")
    return models.compared(build, truth, backends)


def smoke_outcome(model: TapeForCausalLM, shape: Shape, cached: bool) -> dict[str, Tensor]:
    """Return everything that is compared; the weights are restored."""
    ids_BT = models.tokens(shape, model.device)
    packing = models.packing(shape, model.device)
    outcome = {}
    # the last tokens' logits, one by one from a cache, or of the whole text at once
    if not packing:
        model.eval()
        first = ids_BT[:, : models.CHECKED_TOKENS]
        with torch.no_grad():
            if cached:
                past = model(input_ids=first[:, :-DECODED], use_cache=True).past_key_values
                decoded = []
                for ids_B1 in first[:, -DECODED:].split(1, 1):
                    output = model(input_ids=ids_B1, past_key_values=past, use_cache=True)
                    decoded.append(output.logits)
                outcome["decoded logits"] = torch.cat(decoded, dim=1)
            else:
                output = model(input_ids=first, use_cache=False)
                outcome["decoded logits"] = output.logits[:, -DECODED:]
        model.train()

    before = models.loss(model, ids_BT, **packing)
    before.backward()
    weights = dict(model.named_parameters())
    initial = {}
    for name, weight in weights.items():
        initial[name] = weight.detach().clone()
        if weight.grad is not None:
            outcome[f"d {name}"] = weight.grad.clone()
    torch.optim.AdamW(weights.values(), lr=RATE).step()
    with torch.no_grad():
        outcome["loss"] = before.detach()[None]
        outcome["loss after a step"] = models.loss(model, ids_BT, **packing)[None]
        for name, weight in weights.items():
            weight.copy_(initial[name])
    return outcome


def recipe(shape: Shape, setting: Setting) -> BenchmarkCase:
    """Time a whole training step on one GPU with position updates and norms trained and the rest frozen, optimiser
    included; with every layer's activations computed again in the backward, and without."""
    member = models.family(shape, setting)
    compared = RECIPE[setting.device.type]

    def prepared(encoding: str, backend: str) -> TapeForCausalLM:
        model = models.by_backend(member(encoding, backend), backend, setting.dtype)
        learns = any(".position." in name for name, _ in model.named_parameters())
        chosen = SimpleNamespace(train_position=learns, train_norms=True, train_embeddings=False)
        model.requires_grad_(False)
        for module in groups.chosen_modules(model, chosen).values():
            module.requires_grad_(True)
        return model

    def build(encoding: str, backend: str, recomputed: bool) -> Runner:
        model = prepared(encoding, backend)
        if recomputed:
            # its name in every version of transformers 5
            model.gradient_checkpointing_enable({"use_reentrant": False})
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        optimiser = torch.optim.AdamW(trained, lr=0.0, fused=True)

        def backward(loss: Tensor) -> None:
            loss.backward()
            optimiser.step()

        return models.training(model, shape, backward)

    def truth(encoding: str) -> Truth:
        first = next(backend for name, backend in compared if name == encoding)
        return models.truth(prepared(encoding, first), shape, torch.float32)

    entries = []
    for suffix, (encoding, backend) in itertools.product(("", ", no recomputation"), compared):
        make = functools.partial(build, encoding, backend, not suffix)
        entries.append(CaseEntry(f"attend {backend}{suffix}", encoding, make))
    truths = {encoding: functools.partial(truth, encoding) for encoding in models.ENCODINGS}
    return BenchmarkCase(entries, truths)


def every_encoding(shape: Shape, setting: Setting) -> BenchmarkCase:
    """Compare every encoding by torch's SDPA, which computes all of them on every device, and on a GPU those that add
    to the scores by FlexAttention too: which of the two a learned bias should train with is not measured yet."""
    member = models.family(shape, setting)

    def shared(found: Mapping[str, _T]) -> dict[str, _T]:
        # Gradients of what an encoding itself learns may be sums that cancel, or 0 whatever the text (FIRE's last bias
        # adds one number to every score): a relative error means nothing there, and tests compare them term by term
        return {name: value for name, value in found.items() if ".position" not in name}

    def build(encoding: str, backend: str) -> Runner:
        runner = models.training(member(encoding, backend), shape)
        return runner._replace(outcome=lambda: shared(runner.outcome()))

    def truth(encoding: str) -> Truth:
        return shared(models.truth(member(encoding, "sdpa"), shape))

    case = models.compared(build, truth, ["sdpa"], ENCODINGS)
    if setting.device.type == "cuda":
        case.entries.extend(models.compared(build, truth, ["flex"], BIASED).entries)
    return case
