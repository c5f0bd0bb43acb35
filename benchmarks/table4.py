"""Table 4 of TAPE's paper: one inference step by TAPE, fused and not, and by RoPE, FIRE, T5's bias and ALiBi.

A step is a forward without gradients: of one decoder layer where the shape has one layer (the middle one of three,
called with what it gets inside that model), else of a whole model with the logits of every token. The paper says
neither which of the two it timed nor at what length; its 2e-4 seconds are too few for a whole model's 1,024 tokens. A
sample is the mean of steps that follow right after one another (``STEPS``), so that launches overlap with work as in
use.

``published, three sdpa`` is what the paper calls TAPE without fusion: its formulation with a fused attention for each
of the three values. The name of every other implementation says which attention computed it; one that cannot compute an
encoding's bias refuses.

Shape letters: B batch, T tokens, H heads, K head size.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import layer, models
from benchmarks.benchmark_case import BenchmarkCase, CaseEntry, Setting, Truth, expected_from
from benchmarks.measure import Runner, bytes_of
from benchmarks.reference_formulation import ATTENTIONS, Transcription, causal_mask
from benchmarks.shapes import BenchmarkModel
from tape_ds import TapeForCausalLM

ENCODINGS = (*models.ENCODINGS, "fire", "t5", "alibi")
STEPS = {"cuda": 10, "cpu": 2}
"""Steps of one sample, by kind of device."""


def case(shape: BenchmarkModel, setting: Setting) -> BenchmarkCase:
    """Return every encoding by every attention backend of this device, and the transcription with each of its
    attentions."""
    fields, of_layer = models.sizes(shape), shape.layers == 1
    if of_layer:
        fields = models.sizes(replace(shape, layers=3)) | {"vocab_size": 1_024}  # the output head has no part
    member = models.family(fields, setting)
    ids = models.tokens(shape, setting.device) % fields["vocab_size"]

    @functools.cache
    def caught(encoding: str, whole: bool) -> layer.Arguments:
        return layer.catch(member(encoding, "sdpa"), ids if whole else models.first_tokens(ids))

    def of(encoding: str, model: TapeForCausalLM) -> Runner:
        return _layer(model, functools.partial(caught, encoding)) if of_layer else _whole(model, ids)

    def ours(encoding: str, backend: str) -> Runner:
        return of(encoding, member(encoding, backend))

    def published(attention: str) -> Runner:
        model = member("tape", "sdpa")
        other = Transcription(model.config, attention).to(model.device, model.dtype)
        other.load_state_dict(model.state_dict(), assign=True)
        return _published_layer(other, functools.partial(caught, "tape")) if of_layer else _whole(other, ids)

    def truth(encoding: str) -> Truth:
        model = member(encoding, "sdpa")
        exact, plain = (
            of(encoding, models.by_reference(model, dtype)).outcome() for dtype in (torch.float64, setting.dtype)
        )
        return expected_from(exact, plain, setting.dtype)

    backends = [name for name in models.backends(setting.device) if name != "auto"]  # it is one of the others
    found = models.by_backend(ours, truth, backends, ENCODINGS)
    others = [CaseEntry(f"published, {name}", "tape", functools.partial(published, name)) for name in ATTENTIONS]
    return found._replace(entries=found.entries + others)


def _runner(module: nn.Module, step: Callable[[bool], Any], compared: Callable[[Any], dict[str, Tensor]]) -> Runner:
    """Return an implementation.

    Args:
        module: holds the weights.
        step: what is timed; True: on the whole sequence, False: on the few tokens that are checked.
        compared: what a step on the few gave, as it is compared.
    """
    weights = list(module.parameters())
    steps = STEPS[weights[0].device.type]

    @torch.no_grad()
    def forward() -> None:
        for _ in range(steps):
            step(True)

    return Runner(forward, None, torch.no_grad()(lambda: compared(step(False))), bytes_of(weights), steps)


def _whole(model: nn.Module, ids_BT: Tensor) -> Runner:
    """Return a whole model; there is no dropout, so that eval asks for all logits and changes nothing else."""
    model.eval()
    few = models.first_tokens(ids_BT)
    return _runner(
        model,
        lambda whole: model(input_ids=ids_BT if whole else few, use_cache=False).logits,
        lambda logits: {"logits": logits},
    )


def _layer(model: TapeForCausalLM, caught: Callable[[bool], layer.Arguments]) -> Runner:
    """Return the middle layer. Positions are told with their start: that is the size their errors are relative to."""
    block = model.model.layers[1]

    @functools.cache
    def arguments(whole: bool) -> layer.Arguments:
        args, kwargs = caught(whole)
        return tuple(None if x is None else x.to(model.dtype) for x in args), kwargs

    def step(whole: bool) -> Any:
        args, kwargs = arguments(whole)
        return block(*args, **kwargs)

    def compared(out: tuple[Tensor, Tensor | None]) -> dict[str, Tensor]:
        hidden, state = out
        return {"hidden": hidden} | ({} if state is None else {"positions": arguments(False)[1]["start"] + state})

    return _runner(block, step, compared)


def _published_layer(model: Transcription, caught: Callable[[bool], layer.Arguments]) -> Runner:
    """Return the middle layer of the transcription, called with the same in its form: cosines and sines [B, H, T,
    K]."""
    block = model.model.layers[1]

    @functools.cache
    def arguments(whole: bool) -> tuple[Tensor, ...]:
        (hidden_BTD, state_BHTC), kwargs = caught(whole)
        halves = (kwargs["start"] + state_BHTC).to(hidden_BTD.dtype).chunk(2, dim=-1)
        cos_BHTK, sin_BHTK = (torch.cat((half, half), dim=-1) for half in halves)
        return hidden_BTD, cos_BHTK, sin_BHTK, causal_mask(hidden_BTD)

    def compared(out: tuple[Tensor, Tensor, Tensor]) -> dict[str, Tensor]:
        hidden, *halves = out
        return {"hidden": hidden, "positions": torch.cat([half.chunk(2, dim=-1)[0] for half in halves], dim=-1)}

    return _runner(block, lambda whole: block(*arguments(whole)), compared)
