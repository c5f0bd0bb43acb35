"""The 7B recipe on one GPU: a whole training step with position updates and norms trained and the rest frozen.

Optimiser included; with every layer's activations computed again in the backward, and without.
"""

import functools
from types import SimpleNamespace

import torch
from torch import Tensor

from benchmarks import models
from benchmarks.benchmark_case import BASELINE, BenchmarkCase, CaseEntry, Setting, Truth
from benchmarks.measure import Runner
from benchmarks.shapes import Shape
from tape_ds import TapeForCausalLM
from tape_ds.methods import groups

# Encodings and attention backends, by kind of device
COMPARED = {
    "cuda": ((BASELINE, "auto"), ("tape", "varlen"), ("tape", "triton")),
    "cpu": ((BASELINE, "sdpa"), ("tape", "sdpa")),
}


def case(shape: Shape, setting: Setting) -> BenchmarkCase:
    member = models.family(models.sizes(shape), setting)
    compared = COMPARED[setting.device.type]

    def prepared(encoding: str, backend: str) -> TapeForCausalLM:
        model = models.by_backend(member(encoding, backend), backend, setting.dtype)
        learns = any(".position." in name for name, _ in model.named_parameters())
        chosen = SimpleNamespace(train_position=learns, train_norms=True, train_embeddings=False)
        model.requires_grad_(False)
        for parameter in map(model.get_parameter, groups.names(model, chosen)):
            parameter.requires_grad_(True)
        return model

    def build(encoding: str, backend: str, recomputed: bool) -> Runner:
        model = prepared(encoding, backend)
        if recomputed:
            model.gradient_checkpointing_enable({"use_reentrant": False})  # its name in every version of transformers 5
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        optimiser = torch.optim.AdamW(trained, lr=0.0, fused=True)

        def backward(loss: Tensor) -> None:
            loss.backward()
            optimiser.step()

        return models.training(model, shape, backward)

    def truth(encoding: str) -> Truth:
        first = next(backend for name, backend in compared if name == encoding)
        return models.truth(prepared(encoding, first), shape, torch.float32)

    entries = [
        CaseEntry(f"attend {backend}{suffix}", encoding, functools.partial(build, encoding, backend, not suffix))
        for suffix in ("", ", no recomputation")
        for encoding, backend in compared
    ]
    return BenchmarkCase(entries, {encoding: functools.partial(truth, encoding) for encoding in models.ENCODINGS})
