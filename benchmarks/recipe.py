"""The 7B recipe on one GPU: position updates and norms trained, the rest frozen, every layer computed again.

A whole training step, optimiser included, dense and packed. Lengths double until one no longer fits.
"""

import functools
from types import SimpleNamespace

import torch
from torch import Tensor

from benchmarks import models
from benchmarks.benchmark_case import BenchmarkCase, Setting, Truth
from benchmarks.measure import Runner
from benchmarks.shapes import BenchmarkModel
from tape_ds import TapeForCausalLM
from tape_ds.methods import groups


def case(shape: BenchmarkModel, setting: Setting) -> BenchmarkCase:
    """Return both encodings by ``auto``; RoPE trains its norms alone."""
    member = models.family(models.sizes(shape), setting)
    ids, packing = models.tokens(shape, setting.device), models.packing(shape, setting.device)
    few_packing = models.packing(shape, setting.device, few=True)

    @functools.cache
    def prepared(encoding: str) -> TapeForCausalLM:
        model = member(encoding, "auto")
        learns = any(".position." in name for name, _ in model.named_parameters())
        chosen = SimpleNamespace(train_position=learns, train_norms=True, train_embeddings=False)
        groups.unfreeze(model.requires_grad_(False), chosen)
        model.gradient_checkpointing_enable({"use_reentrant": False})  # its name in every version of transformers 5
        return model

    def build(encoding: str, backend: str) -> Runner:
        model = prepared(encoding)
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        optimiser = torch.optim.AdamW(trained, lr=0.0, fused=True)

        def backward(loss: Tensor) -> None:
            loss.backward()
            optimiser.step()

        return models.training(model, ids, packing, few_packing, backward)

    def truth(encoding: str) -> Truth:
        return models.truth(prepared(encoding), models.first_tokens(ids), torch.float32, **few_packing)

    return models.by_backend(build, truth, ["auto"])
