"""Every operator in torch's machinery: its registration, ordinary calls, compiled graphs, checkpointing."""

import functools
from collections import Counter

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tape_ds.kernels import operators, position_mix_triton, rotate_triton
from tape_ds.kernels.cpu_attention import cpu_attention
from tape_ds.kernels.decode_attention import decode_attention
from tape_ds.kernels.linear_cross_entropy import linear_cross_entropy
from tape_ds.kernels.position_mix import position_mix
from tape_ds.kernels.position_state import position_state
from tape_ds.kernels.rms_norm import rms_norm
from tape_ds.kernels.rotate import rotate
from tape_ds.kernels.tape_attention import document_borders, tape_attention
from tape_ds.methods.recompute import Recompute
from tests.kernels import (
    test_cpu_attention,
    test_linear_cross_entropy,
    test_position_mix,
    test_rotate,
)
from tests.kernels.attention_cases import case, documents

OPERATORS = torch.ops.tape_ds
DOCUMENTS = documents((0, 8), (1, 12))
NAMES = (
    "rotate",
    "position_mix",
    "position_state",
    "linear_cross_entropy",
    "rms_norm",
    "cpu_attention",
    "tape_attention",
)


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
    elif name == "rms_norm":
        yield torch.randn(2, 3, 8, requires_grad=True), torch.randn(8, requires_grad=True), 1e-6
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
    "name", [*NAMES, "tape_attention_backward", "decode_attention", "scaled_gradient"]
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
    if name == "rms_norm":
        return lambda x, weight: rms_norm(rms_norm(x, weight, 1e-6), weight, 1e-6), (
            torch.randn(2, 3, 8),
            torch.randn(8),
        )
    if name == "position_state":
        start, deviation = torch.randn(1, 1, 5, 6), torch.randn(2, 4, 5, 6)
        return lambda deviation: position_state(start, deviation * 2, torch.bfloat16).float(), (
            deviation,
        )
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
    out.square().sum().backward()
    return [out.detach(), *(x.grad for x in leaves)]


@pytest.fixture
def by_operator(monkeypatch):
    """A call of a function during which every operator is torch's, as in a graph."""

    def call(function, *arguments):
        with monkeypatch.context() as patched:
            patched.setattr(operators.Operator, "_is_ordinary", lambda *_: False)
            return function(*arguments)

    return call


class Seen(TorchDispatchMode):
    """Counts the operators of this package that torch's dispatcher is given."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names[function.name()] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_an_ordinary_call_gives_the_operators_bits(name, autocast, by_operator):
    function, tensors = function_of(name)
    if autocast and name == "tape_attention":
        pytest.skip("Triton's interpreter has no bf16")
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = outcome(function, tensors)
        expected = by_operator(outcome, function, tensors)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_an_ordinary_call_keeps_for_the_backward_what_the_operator_keeps(name, by_operator):
    function, tensors = function_of(name)

    def kept():
        shapes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: shapes.append((x.shape, x.dtype)) or x, lambda x: x
        ):
            outcome(function, tensors)
        return shapes

    found = kept()
    assert found and found == by_operator(kept)


@pytest.mark.parametrize("name", NAMES)
def test_an_ordinary_call_is_not_dispatched_and_a_watched_one_is(name):
    """Who counts FLOPs, or keeps an attention's output, sees one operator and not its parts."""
    function, tensors = function_of(name)
    leaves = [x.detach().requires_grad_() for x in tensors]
    nodes = [function(*leaves).grad_fn]
    reached = set()
    while nodes:
        node = nodes.pop()
        reached.add(node.name())
        nodes += [each for each, _ in node.next_functions if each is not None]
    assert f"{name}Backward" in reached
    assert not [each for each in reached if each.startswith("GeneratedBackward")]
    with Seen() as seen:
        function(*leaves)
    assert seen.names[f"tape_ds::{name}"] >= 1


@pytest.mark.parametrize("name", NAMES)
def test_a_second_derivative_is_refused_as_the_operator_refuses_it(name, by_operator):
    """The first is the same with ``create_graph``; what cannot be differentiated again says so, and gives no zeros."""
    function, tensors = function_of(name)

    def second():
        leaves = [x.detach().requires_grad_() for x in tensors]
        first = torch.autograd.grad(function(*leaves).sum(), leaves, create_graph=True)
        try:
            torch.autograd.grad(sum(each.square().sum() for each in first), leaves)
        except RuntimeError as error:
            return first, str(error)
        return first, None

    found, problem = second()
    expected, expected_problem = by_operator(second)
    assert problem == expected_problem
    assert problem is not None or name in (
        "position_state",
        "rms_norm",
    )  # linear; and twice differentiable
    for one, other, plain in zip(found, expected, firsts(function, tensors), strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, plain)


def firsts(function, tensors):
    """The gradients of the sum."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    return torch.autograd.grad(function(*leaves).sum(), leaves)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "tape_attention"])
def test_tensors_without_numbers_get_shapes_alone(name):
    function, tensors = function_of(name)
    expected = outcome(function, tensors)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        found = outcome(function, [mode.from_tensor(x) for x in tensors])
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())


def test_a_tensor_of_the_meta_device_gets_shapes_alone():
    with torch.device("meta"):
        turned = rotate(torch.empty(1, 2, 3, 4), torch.empty(1, 1, 3, 4))
    assert turned.is_meta and turned.shape == (1, 2, 3, 4)


def test_an_operator_under_vmap_is_torchs():
    x, start, _, _ = test_rotate.example(4, 2)
    rows = torch.stack((x, 2 * x))
    found = torch.vmap(lambda x: rotate(x, start))(rows)
    assert torch.equal(found, torch.stack((rotate(x, start), rotate(2 * x, start))))


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_graph_has_the_operators(strict):
    x, start, state, _ = test_rotate.example(4, 2)

    class Turned(torch.nn.Module):
        def forward(self, x, state):
            return rotate(x, start, state) * 2

    program = torch.export.export(Turned(), (x, state), strict=strict)
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert OPERATORS.rotate.default in called
    assert torch.equal(program.module()(x, state), Turned()(x, state))


WAYS = {
    "compiled": lambda function: torch.compile(function, fullgraph=True, backend="aot_eager"),
    "checkpointed": lambda function: functools.partial(checkpoint, function, use_reentrant=False),
    "checkpointed by reentering": lambda function: functools.partial(
        checkpoint, function, use_reentrant=True
    ),
    "checkpointed but for attention": lambda function: functools.partial(
        Recompute(selective=True).run, function
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_graphs_and_checkpointing_keep_every_number(name, way):
    function, tensors = function_of(name)
    if (name, way) == ("rotate", "compiled"):
        # the start alone is rotated by the plain formula there: tests/kernels/test_rotate.py
        _, start, _, _ = test_rotate.example(4, 2)

        def function(x, state):
            return rotate(rotate(x, start, state), start, state)

    for found, expected in zip(
        outcome(WAYS[way](function), tensors), outcome(function, tensors), strict=True
    ):
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
