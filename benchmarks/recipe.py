"""The 7B recipe on one GPU: position updates and norms trained, the rest frozen, every layer computed again.

A whole training step, optimiser included. Lengths double until one no longer fits.
"""

import functools
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor

from benchmarks import models
from benchmarks.contest import Contest, Entry, Setting, Truth
from benchmarks.measure import Runner, bytes_of
from benchmarks.shapes import Model
from tape_ds import TapeForCausalLM
from tape_ds.training.methods import groups


def contest(shape: Model, setting: Setting) -> Contest:
    """Both encodings by ``auto``; RoPE trains its norms alone."""
    member = models.family(models.sizes(shape), setting)
    ids = models.tokens(shape, setting.device)

    @functools.cache
    def prepared(encoding: str) -> TapeForCausalLM:
        model = member(encoding, "auto")
        learns = any(".position." in name for name, _ in model.named_parameters())
        chosen = SimpleNamespace(train_position=learns, train_norms=True, train_embeddings=False)
        groups.unfreeze(model.requires_grad_(False), chosen)
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        return model

    entries = [
        Entry("attend auto", encoding, functools.partial(_runner, functools.partial(prepared, encoding), ids))
        for encoding in models.ENCODINGS
    ]
    few = models.first_tokens(ids)

    def truth(encoding: str) -> Truth:
        return models.truth(prepared(encoding), few, torch.float32)

    return Contest(entries, {encoding: functools.partial(truth, encoding) for encoding in models.ENCODINGS})


def _runner(prepared: Callable[[], TapeForCausalLM], ids_BT: Tensor) -> Runner:
    model = prepared()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=0.0, fused=True)
    few = models.first_tokens(ids_BT)

    def backward(loss: Tensor) -> None:
        loss.backward()
        optimiser.step()

    return Runner(
        lambda: models.loss(model, ids_BT),
        backward,
        lambda: models.outcome(model, few),
        bytes_of(list(model.parameters())),
    )
