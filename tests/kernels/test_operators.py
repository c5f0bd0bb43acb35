"""Every operator in torch's machinery: its registration, compiled graphs, checkpointing."""

import functools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tape_ds.kernels import position_mix_triton, rotate_triton
from tape_ds.kernels.cpu_attention import cpu_attention
from tape_ds.kernels.decode_attention import decode_attention
from tape_ds.kernels.linear_cross_entropy import linear_cross_entropy
from tape_ds.kernels.position_mix import position_mix
from tape_ds.kernels.rotate import rotate
from tape_ds.kernels.tape_attention import document_borders, tape_attention
from tests.kernels import (
    test_cpu_attention,
    test_linear_cross_entropy,
    test_position_mix,
    test_rotate,
)
from tests.kernels.attention_cases import case, documents

OPERATORS = torch.ops.tape_ds
DOCUMENTS = documents((0, 8), (1, 12))
NAMES = ("rotate", "position_mix", "linear_cross_entropy", "cpu_attention", "tape_attention")


def calls(name):
    """Arguments of an operator, for each way to call it."""
    example = case(20, 20, 16)
    inputs = [x.requires_grad_(name == "tape_attention") for x in example.inputs]
    if name == "tape_attention":
        yield *inputs, document_borders(DOCUMENTS), 0, 0.2, False
    elif name == "tape_attention_backward":
        results = OPERATORS.tape_attention(*inputs, None, 0, 0.2, False)
        yield example.dout_BHTK, example.dattended_BHTK, *inputs, *results, None, 0, 0.2, False
    elif name == "decode_attention":
        yield *case(2, 20, 16, heads=2).inputs, DOCUMENTS, 18, 0.2, 2
    elif name == "cpu_attention":
        yield *test_cpu_attention.case("grouped and wide", torch.float32), True, 0.3
    elif name == "linear_cross_entropy":
        yield *test_linear_cross_entropy.inputs(torch.float32), -100, 8, torch.float32, True, True
    elif name == "scaled_gradient":
        yield torch.randn(9, 4).bfloat16(), torch.tensor(0.3), torch.float32
    elif name == "position_state":
        yield torch.randn(1, 1, 5, 6), torch.randn(2, 4, 5, 6, requires_grad=True), torch.float32
    elif name == "position_mix":
        for dtype, without in ((torch.float32, ()), (torch.bfloat16, test_position_mix.ABSENT[3])):
            inputs, _ = test_position_mix.leaves(
                test_position_mix.example(6, 3, dtype=dtype, without=without)
            )
            yield *inputs, dtype, not without
    elif name == "rotate":
        x, start, state, _ = test_rotate.example(4, 2)
        yield x.requires_grad_(), start, state.requires_grad_()
        yield x.detach().bfloat16().requires_grad_(), start, None


@pytest.mark.parametrize(
    "name",
    [*NAMES, "tape_attention_backward", "decode_attention", "scaled_gradient", "position_state"],
)
def test_torch_knows_the_operator(name):
    """Schemas, fake results, autograd and tracing agree with what it does."""
    for arguments in calls(name):
        torch.library.opcheck(getattr(OPERATORS, name).default, arguments)


def function_of(name):
    """A function of tensors, and these."""
    if name == "rotate":
        x, start, state, _ = test_rotate.example(4, 2)
        return lambda x, state: rotate(rotate(x, start, state), start), (x, state)
    if name == "position_mix":
        start, *tensors = test_position_mix.example(6, 3)
        mix = functools.partial(position_mix, start, dtype=torch.float32, unit=True)
        return lambda state, *others: mix(mix(state, *others), *others), tensors
    if name == "linear_cross_entropy":
        hidden, weight, labels = test_linear_cross_entropy.inputs(torch.float32)
        return lambda hidden, weight: linear_cross_entropy(hidden, weight, labels), (hidden, weight)
    if name == "cpu_attention":
        tensors = test_cpu_attention.case("grouped and wide", torch.float32)
        return lambda q, k, v: cpu_attention(q * 2, k, v, True, 0.3), tensors
    attend = functools.partial(tape_attention, document_ids=DOCUMENTS, deterministic=True)
    return lambda *tensors: torch.cat(attend(*tensors)), case(20, 20, 16).inputs


def outcome(function, tensors):
    """The result and every gradient."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), leaves)]


@pytest.mark.parametrize("way", ["compiled", "checkpointed"])
@pytest.mark.parametrize("name", NAMES)
def test_graphs_and_checkpointing_keep_every_number(name, way):
    function, tensors = function_of(name)
    if way == "compiled":
        wrapped = torch.compile(function, fullgraph=True, backend="aot_eager")
    else:
        wrapped = functools.partial(checkpoint, function, use_reentrant=False)
    for found, expected in zip(outcome(wrapped, tensors), outcome(function, tensors), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["rotate", "position_mix"])
def test_a_cpu_tensor_is_never_interpreted(name, monkeypatch):
    """Tests, and users who debug, set TRITON_INTERPRET=1: a model on the CPU must not crawl for it."""
    for module in (rotate_triton, position_mix_triton):
        monkeypatch.setattr(module, "forward", None)
        monkeypatch.setattr(module, "backward", None)
    outcome(*function_of(name))


def test_decoding_compiles_whole():
    inputs = case(2, 40, 16, heads=2).inputs
    compiled = torch.compile(decode_attention, backend="aot_eager", fullgraph=True)
    assert torch.equal(torch.cat(compiled(*inputs)), torch.cat(decode_attention(*inputs)))
