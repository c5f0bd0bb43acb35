"""Calls of the public operators as models make them, from which the compile gate collects the kernels.

Shapes are those of models that people train, with the memory layouts of the model's layers; every length comes both as
a multiple of 16 and not, since Triton compiles the two differently. Each operator has a function ``calls(dtype)`` that
yields a name and a function without arguments; bf16 has all calls, fp16 those of the largest model (its instructions
differ only in their types).

Shape letters: B batch, T queries or tokens, S keys, H query heads, G key/value heads, K head size, I position rank.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tape_ds.kernels.decode_attention import decode_attention
from tape_ds.kernels.position_mix import position_mix
from tape_ds.kernels.rotate import rotate
from tape_ds.kernels.tape_attention import document_borders, tape_attention
from tools.compile_gate.launches import DEVICE

Calls = Iterator[tuple[str, Callable[[], object]]]
# tokens of a sequence
WHOLE = 8192
ODD = 8187


def marks(**properties: object) -> str:
    """Return the names of the properties that a call has, each after a space."""
    return "".join(f" {name}" for name, has in properties.items() if has)


class ModelShape(NamedTuple):
    heads: int
    groups: int
    width: int

    def __str__(self) -> str:
        return f"H={self.heads} G={self.groups} K={self.width}"


LLAMA_7B = ModelShape(32, 32, 128)
LLAMA_8B = ModelShape(32, 8, 128)
# Llama-3-70B, Llama-2-13B
LARGE = (ModelShape(64, 8, 128), ModelShape(40, 40, 128))
OTHERS = (
    ModelShape(12, 12, 64),  # 155M (TAPE, arXiv:2501.00712)
    ModelShape(9, 3, 64),  # SmolLM2-135M
    # head sizes that are no power of 2
    ModelShape(12, 12, 96),
    ModelShape(32, 8, 80),
    ModelShape(8, 8, 32),
    ModelShape(4, 2, 16),
)


def heads(tokens: int, count: int, width: int, dtype: torch.dtype, batch: int = 1) -> Tensor:
    """Return [B, heads, T, K] in a projection's layout, to be differentiated."""
    x_BTHK = torch.empty(batch, tokens, count, width, dtype=dtype, device=DEVICE)
    return x_BTHK.transpose(1, 2).requires_grad_()


def differentiate(
    call: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor | None, **options: object
) -> None:
    output = call(*inputs, **options)
    outs = output if isinstance(output, tuple) else (output,)
    torch.autograd.backward(outs, [torch.empty_like(out) for out in outs])


def attention(
    model: ModelShape, dtype: torch.dtype, queries: int, keys: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return queries, keys, values and position states, in the layouts of the layers."""
    k_BGSK = heads(keys, model.groups, model.width, dtype)
    v_BGSK = heads(keys, model.groups, model.width, dtype)
    e_BGSK = torch.empty(
        1, model.groups, keys, model.width, dtype=dtype, device=DEVICE, requires_grad=True
    )
    return heads(queries, model.heads, model.width, dtype), k_BGSK, v_BGSK, e_BGSK


def documents(tokens: int) -> Tensor:
    return torch.empty(1, tokens, dtype=torch.int64, device=DEVICE)


def tape_attention_calls(dtype: torch.dtype) -> Calls:
    """Yield training (also deterministic), packed or not; then prefilling a cache in pieces."""
    either = (False, True)
    if dtype == torch.bfloat16:
        cases = list(itertools.product((LLAMA_7B, LLAMA_8B), (WHOLE, ODD), either, either))
        for model in OTHERS:
            cases.append((model, WHOLE, False, False))
            cases += itertools.product((model,), (ODD,), (True,), either)
    else:
        cases = list(itertools.product((LLAMA_7B,), (WHOLE,), either, either))
    for model, tokens, packed, deterministic in cases:
        borders = document_borders(documents(tokens)) if packed else None
        name = f"{model} T={tokens}{marks(documents=packed, deterministic=deterministic)}"
        inputs = attention(model, dtype, tokens, tokens)
        options = {"document_ids": borders, "deterministic": deterministic}
        yield name, functools.partial(differentiate, tape_attention, *inputs, **options)

    if dtype != torch.bfloat16:
        return
    for model, keys in itertools.product((LLAMA_7B, LLAMA_8B), (WHOLE, ODD)):
        for ids in (None, documents(keys)):
            inputs = attention(model, dtype, 512, keys)
            name = f"{model} T=512 S={keys}{marks(documents=ids is not None)}"
            yield name, functools.partial(tape_attention, *inputs, document_ids=ids)


def decode_attention_calls(dtype: torch.dtype) -> Calls:
    """Yield a few tokens over a cache that is a slice of a larger one; the value wide (TAPE) or not (RoPE)."""
    cases = list(
        itertools.product(
            ((1, WHOLE, 1), (1, ODD, 4), (4, ODD, 1), (1, 128, 1)), ((2, 0), (2, 1), (1, 0))
        )
    )
    models = [LLAMA_7B]
    fully: list[ModelShape] = []
    if dtype == torch.bfloat16:
        models = [LLAMA_7B, LLAMA_8B, *LARGE[:1], *OTHERS]
        fully = [LLAMA_7B, LLAMA_8B]
    for model in models:
        # of the others one token over a cache of either kind of length
        chosen = cases if model in fully else cases[:8:4]
        for (queries, keys, batch), (wide, padding) in chosen:
            q = heads(queries, model.heads, model.width, dtype, batch).detach()
            k = torch.empty(batch, model.groups, 2 * WHOLE, model.width, dtype=dtype, device=DEVICE)
            v = torch.empty(
                batch, model.groups, 2 * WHOLE, wide * model.width, dtype=dtype, device=DEVICE
            )
            halves = v[:, :, :keys].split(model.width, dim=-1)
            ids = None
            if padding:
                ids = torch.empty(batch, keys, dtype=torch.int64, device=DEVICE)
            name = f"{model} B={batch} T={queries} S={keys} V={wide}K{marks(documents=padding)}"
            yield (
                name,
                functools.partial(decode_attention, q, k[:, :, :keys], *halves, document_ids=ids),
            )


def position_mix_calls(dtype: torch.dtype) -> Calls:
    """Yield both updates or one of them, in the first layer (no state yet) or a later one, trained or decoding."""
    cases = [(LLAMA_7B, WHOLE, 1, "", False)]
    if dtype == torch.bfloat16:
        for absent in ("state", "attend", "gate"):
            cases.append((LLAMA_7B, WHOLE, 1, absent, False))
        for absent in ("state", "gate"):
            cases.append((LLAMA_7B, WHOLE, 1, absent, True))
        # decoding: one token
        cases += [(LLAMA_7B, 1, 1, "", False), (LLAMA_7B, 1, 1, "", True)]
        for model in (LLAMA_7B, LLAMA_8B, *LARGE, *OTHERS):
            cases += [(model, ODD, 2, "", False), (model, ODD, 2, "", True)]
    for model, tokens, batch, absent, unit in cases:
        rank = 4 * model.groups
        weight = functools.partial(
            torch.empty, dtype=torch.float32, device=DEVICE, requires_grad=True
        )
        start = torch.empty(1, 1, tokens, model.width, device=DEVICE)
        # the second half of wide values, as attention gives it
        values = heads(tokens, model.heads, 2 * model.width, dtype, batch).detach()
        of_state: list[Tensor | None] = [None]
        of_attend: list[Tensor | None] = [None, None]
        of_gate: list[Tensor | None] = [None, None, None]
        if absent != "state":
            of_state = [heads(tokens, model.groups, model.width, dtype, batch)]
        if absent != "attend":
            attended = values[..., model.width :].requires_grad_()
            of_attend = [attended, weight(model.groups, model.heads)]
        if absent != "gate":
            hidden = torch.empty(batch, tokens, rank, dtype=dtype, device=DEVICE)
            of_gate = [
                hidden.requires_grad_(),
                weight(rank, model.groups),
                weight(model.groups, rank),
            ]
        inputs = (start, *of_state, *of_attend, *of_gate)
        without = f" no {absent}" if absent else ""
        name = f"{model} I={rank} B={batch} T={tokens}{without}{marks(unit=unit)}"
        yield name, functools.partial(differentiate, position_mix, *inputs, dtype=dtype, unit=unit)


def rotate_calls(dtype: torch.dtype) -> Calls:
    """Yield rotations by the base alone (RoPE, TAPE's first layer) or by a trained state."""
    cases = [(8, 128, WHOLE, True, 1)]
    if dtype == torch.bfloat16:
        cases += [(32, 128, WHOLE, False, 1), (8, 128, 1, True, 1)]
        cases += [(32, width, ODD, True, 2) for width in (256, 128, 80, 64, 32)]
    for count, width, tokens, has_state, batch in cases:
        x = heads(tokens, count, width, dtype, batch)
        start = torch.empty(1, 1, tokens, width, device=DEVICE)
        groups = 1
        state = None
        if has_state:
            groups = 8
            state = heads(tokens, groups, width, dtype, batch)
        name = f"H={count} G={groups} K={width} B={batch} T={tokens}{marks(state=has_state)}"
        yield name, functools.partial(differentiate, rotate, x, start, state)


OPERATORS: dict[str, Callable[[torch.dtype], Calls]] = {
    "tape_attention": tape_attention_calls,
    "decode_attention": decode_attention_calls,
    "position_mix": position_mix_calls,
    "rotate": rotate_calls,
}
