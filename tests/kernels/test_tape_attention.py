"""TAPE's attention in Triton against fp64: output and every gradient, over all that a call may ask for."""

import contextlib

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tape_ds.kernels import tape_attention as module
from tape_ds.kernels.tape_attention import document_borders, tape_attention, why_not
from tests.kernels.attention_cases import DEVICE, DTYPE, case, check, documents, gradients, nan_memory  # noqa: F401

BLOCK = 128 if DEVICE == "cuda" else 32
"""No launch has larger blocks."""


def run(example, **more):
    """Output and gradients of the kernels."""

    def attend(q, k, v):
        return tape_attention(q, k, v, **example.options, **more)

    return gradients(attend, example, example.q_BHTK.dtype)


@pytest.mark.usefixtures("nan_memory")
@pytest.mark.parametrize(
    ("shape", "deterministic"),
    [
        ({"queries": 63, "keys": 63, "width": 32}, False),
        ({"queries": 63, "keys": 63, "width": 32}, True),
        ({"queries": 111, "keys": 111, "width": 32, "heads": 3, "groups": 1}, False),
        ({"queries": 33, "keys": 80, "width": 32, "heads": 2, "groups": 2, "batch": 2}, True),
        ({"queries": 80, "keys": 45, "width": 32}, False),
        ({"queries": 80, "keys": 45, "width": 32}, True),
        ({"queries": 40, "keys": 100, "width": 32, "offset": 30}, False),
        ({"queries": 40, "keys": 100, "width": 32, "offset": 30}, True),
        ({"queries": 40, "keys": 50, "width": 32, "offset": 20}, False),
        ({"queries": 40, "keys": 50, "width": 32, "offset": 20}, True),
        ({"queries": 50, "keys": 70, "width": 32, "heads": 4, "groups": 2, "causal": False}, False),
        ({"queries": 50, "keys": 70, "width": 32, "causal": False}, True),
        ({"queries": 70, "keys": 50, "width": 32, "causal": False}, False),
        ({"queries": 70, "keys": 50, "width": 32, "causal": False}, True),
        ({"queries": 40, "keys": 40, "width": 32, "scale": 0.7}, False),
        ({"queries": 1, "keys": 65, "width": 32, "batch": 4}, False),
        ({"queries": 33, "keys": 33, "width": 10, "batch": 4}, True),
    ],
    ids=str,
)
def test_output_and_gradients(shape, deterministic):
    """Odd lengths, T != S, keys nobody sees, queries before the first key, GQA and MQA, no causality."""
    example = case(**shape)
    check(run(example, deterministic=deterministic), example)


@pytest.mark.usefixtures("nan_memory")
def test_many_blocks():
    example = case(200, 200, 32)
    check(run(example), example)


@pytest.mark.usefixtures("nan_memory")
@pytest.mark.parametrize("width", [64, 80, 96, 128])
def test_every_head_size(width):
    """80 and 96 columns lie in a block of 128 whose rest must be neither read nor written."""
    example = case(37, 37, width)
    check(run(example), example)


@pytest.mark.usefixtures("nan_memory")
@pytest.mark.parametrize("deterministic", [False, True])
def test_half_precision(deterministic):
    example = case(63, 70, 64, dtype=torch.float16)
    check(run(example, deterministic=deterministic), example)


PACKED = documents((0, 40), (3, 1), (1, 59), batch=2)
LAYOUTS = {
    "packed": PACKED,
    "left padding": documents((-1, 45), (0, 55)),
    "right padding": documents((0, 45), (-1, 55)),
    "holes": documents((0, 20), (-1, 30), (1, 10), (-1, 5), (2, 35)),
    "scattered": torch.arange(100, device=DEVICE)[None] % 3 - 1,
    "a row apart": torch.cat((PACKED[:1], documents((-1, 100))), 0),
}


@pytest.mark.usefixtures("nan_memory")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_documents(layout, causal):
    ids = LAYOUTS[layout]
    example = case(100, 100, 32, batch=len(ids), document_ids=ids, causal=causal)
    check(run(example, deterministic=not causal), example)


@pytest.mark.usefixtures("nan_memory")
@pytest.mark.parametrize("offset", [-8, 30, 70])
def test_documents_of_later_queries(offset):
    """Query t belongs to the document at offset + t; beside the key axis there is none."""
    example = case(50, 100, 32, document_ids=LAYOUTS["holes"], offset=offset)
    check(run(example), example)


@pytest.mark.usefixtures("nan_memory")
@pytest.mark.filterwarnings("ignore:.*(invalid value|All-NaN).*:RuntimeWarning")
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_padding_is_never_used(poison, deterministic):
    """Whatever lies in q, k, v and dO of padding, real rows are right and padding gets zeros, in all gradients."""
    ids = LAYOUTS["holes"]
    padding = (ids < 0)[:, None, :, None]
    example = case(100, 100, 32, document_ids=ids)
    clean, poisoned = (
        example._replace(**{name: getattr(example, name).masked_fill(padding, fill) for name in example._fields[:4]})
        for fill in (0.0, poison)
    )
    found = run(poisoned, deterministic=deterministic)
    check(found, clean)
    for name, x in zip(("out", "dq", "dk", "dv"), found, strict=True):
        assert (x.masked_select(padding) == 0).all(), name


@pytest.mark.usefixtures("nan_memory")
def test_keys_that_nobody_sees_are_never_read():
    """A static cache is larger than what is in it; its rest holds anything, and its gradient is 0."""
    example = case(40, 100, 32, offset=20)
    clean = example._replace(k_BGSK=example.k_BGSK.clone(), v_BGSV=example.v_BGSV.clone())
    for x in (example.k_BGSK, example.v_BGSV):
        x[:, :, 60:] = float("nan")
    for x in (clean.k_BGSK, clean.v_BGSV):
        x[:, :, 60:] = 0
    found = run(example)
    check(found, clean)
    assert all((x[:, :, 60:] == 0).all() for x in found[2:])


@pytest.mark.usefixtures("nan_memory")
@pytest.mark.filterwarnings("ignore:.*(invalid value|All-NaN).*:RuntimeWarning")
@pytest.mark.parametrize("deterministic", [False, True])
def test_blocks_of_other_documents_are_skipped(deterministic):
    """A weight of 0 times NaN is NaN: where a document's NaN leave another's rows finite, its blocks were not visited.

    (Within a block they would be multiplied: that is what padding is for.)
    """
    ids = documents((0, BLOCK), (1, BLOCK), (2, BLOCK))
    example = case(3 * BLOCK, 3 * BLOCK, 32, document_ids=ids)
    for x in example[:4]:
        x[:, :, :BLOCK] = x[:, :, 2 * BLOCK :] = float("nan")
    for name, x in zip(("out", "dq", "dk", "dv"), run(example, deterministic=deterministic), strict=True):
        assert x[:, :, BLOCK : 2 * BLOCK].isfinite().all(), name
        assert not x[:, :, :BLOCK].isfinite().any(), name


def test_borders_of_documents():
    ids = torch.tensor([[5, 5, -1, 0, 5, 0], [-7, 2, 2, 2, -1, -1]])
    found = document_borders(ids)
    assert found.dtype == torch.int32
    assert found[0].tolist() == [[5, 5, -1, 0, 5, 0], [-1, 2, 2, 2, -1, -1]]
    assert found[1].tolist() == [[0, 0, 6, 3, 0, 3], [6, 1, 1, 1, 6, 6]]
    assert found[2].tolist() == [[4, 4, -1, 5, 4, 5], [-1, 3, 3, 3, -1, -1]]


def test_borders_made_once_serve_every_layer():
    example = case(40, 40, 16, document_ids=documents((0, 10), (1, 30)))
    q, k, v = example[:3]
    borders = document_borders(example.options["document_ids"])
    torch.testing.assert_close(
        tape_attention(q, k, v, document_ids=borders), tape_attention(q, k, v, **example.options), rtol=0, atol=0
    )


def test_borders_may_be_a_view():
    """Of one row for the whole batch, say: kernels read them as they would lie in memory of their own."""
    example = case(40, 40, 16, batch=2, document_ids=documents((0, 10), (1, 30), batch=2))
    borders = document_borders(example.options["document_ids"][:1]).expand(3, 2, 40)
    tapes = [tape_attention(*example[:3], document_ids=given) for given in (borders, example.options["document_ids"])]
    assert torch.equal(*tapes)


@pytest.mark.parametrize("deterministic", [False, True])
def test_kernels_are_launched_where_their_tensors_lie(monkeypatch, deterministic):
    """Triton launches on the current GPU, which is another one where a model is spread over several."""
    at = []

    @contextlib.contextmanager
    def device_of(x):
        at.append(x)
        yield
        at.append(None)

    def watched(kernel):
        def launch(*arguments, **options):
            assert at and at[-1] is not None, kernel.__name__
            return kernel(*arguments, **options)

        return launch

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    for owner, name in ((module.tape_attention_forward, "forward"), (module.tape_attention_backward, "backward")):
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    run(case(8, 8, 16), deterministic=deterministic)
    assert len(at) == 4


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_than_the_current_gpu():
    example = case(100, 100, 64)
    there = example._replace(**{name: getattr(example, name).to("cuda:1") for name in example._fields[:4]})
    for found, expected in zip(run(there, deterministic=True), run(example, deterministic=True), strict=True):
        assert torch.equal(found.to(expected.device), expected)


def test_no_queries_and_no_keys():
    """Of nothing comes 0, with zero gradients, and no launch of an empty grid."""
    for queries, keys in ((0, 5), (5, 0)):
        found = run(case(queries, keys, 16))
        assert all((x == 0).all() for x in found) and found[0].shape == (1, 1, queries, 32)


@pytest.mark.usefixtures("nan_memory")
def test_strided_views():
    """Slices of a fused projection, a cache larger than its content, an output gradient that is one number."""
    fused = torch.randn(2, 40, 4, 128, device=DEVICE, dtype=DTYPE)
    views = [fused[:, :, :2, :32], fused[:, :, 2:3, 32:64], fused[:, :, 3:, 64:]]
    q, k, v = (x.transpose(1, 2).detach().requires_grad_() for x in views)
    copies = [x.detach().contiguous().requires_grad_() for x in (q, k, v)]
    out, expected_out = tape_attention(q, k, v), tape_attention(*copies)
    assert out.transpose(1, 2).is_contiguous()
    assert torch.equal(out, expected_out)
    found, expected = torch.autograd.grad(out.sum(), (q, k, v)), torch.autograd.grad(expected_out.sum(), copies)
    for name, ours, theirs in zip(("dq", "dk", "dv"), found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)


def test_deterministic_is_bit_equal():
    example = case(70, 70, 32)
    once, again, atomic = run(example, deterministic=True), run(example, deterministic=True), run(example)
    for name, a, b, c in zip(("out", "dq", "dk", "dv"), once, again, atomic, strict=True):
        assert torch.equal(a, b), name
        torch.testing.assert_close(a, c, msg=name)


def test_torch_deterministic_algorithms_are_obeyed(monkeypatch):
    """dQ is then never summed by atomics."""
    seen = []
    real = module.tape_attention_backward.backward
    monkeypatch.setattr(
        module.tape_attention_backward, "backward", lambda *args: (seen.append(args[-1]), real(*args))[1]
    )
    example = case(8, 8, 16)
    run(example)
    torch.use_deterministic_algorithms(True)
    try:
        run(example)
    finally:
        torch.use_deterministic_algorithms(False)
    assert seen == [False, True]


def test_operators_are_registered_in_full():
    """Schemas, fake results, autograd and tracing agree with what the operators do."""
    example = case(20, 24, 16, heads=2, document_ids=documents((0, 10), (1, 14)))
    q, k, v = (x.requires_grad_() for x in example[:3])
    borders = document_borders(example.options["document_ids"])
    for given in (borders, None):
        torch.library.opcheck(torch.ops.tape_ds.tape_attention.default, (q, k, v, given, True, 4, 0.2, False))
    out, lse = torch.ops.tape_ds.tape_attention(q, k, v, None, True, 4, 0.2, False)
    tensors = [x.detach() for x in (example.weight_BHTV, q, k, v, out, lse)]
    torch.library.opcheck(torch.ops.tape_ds.tape_attention_backward.default, (*tensors, None, True, 4, 0.2, False))


def test_gradients_under_checkpointing():
    example = case(20, 20, 16, document_ids=documents((0, 8), (1, 12)))

    def attend(q, k, v):
        return tape_attention(q, k, v, **example.options, deterministic=True)

    for found, expected in zip(
        gradients(lambda *inputs: checkpoint(attend, *inputs, use_reentrant=False), example, DTYPE),
        gradients(attend, example, DTYPE),
        strict=True,
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_without_a_graph_break(backend):
    example = case(20, 20, 16, document_ids=documents((0, 8), (1, 12)))

    def attend(q, k, v):
        return tape_attention(q, k, v, **example.options, deterministic=True)

    compiled = torch.compile(attend, backend=backend, fullgraph=True)
    for found, expected in zip(gradients(compiled, example, DTYPE), gradients(attend, example, DTYPE), strict=True):
        assert torch.equal(found, expected)


def test_exports_with_any_length():
    class Attend(torch.nn.Module):
        def forward(self, q, k, v):
            return tape_attention(q, k, v)

    tokens = torch.export.Dim("tokens", min=2, max=512)
    example, longer = case(20, 20, 16), case(45, 45, 16)
    program = torch.export.export(Attend(), example[:3], dynamic_shapes=[{2: tokens}] * 3)
    assert any(node.target is torch.ops.tape_ds.tape_attention.default for node in program.graph.nodes)
    assert torch.equal(program.module()(*longer[:3]), tape_attention(*longer[:3]))


def tensors(q=(1, 4, 3, 16), k=(1, 2, 3, 16), v=(1, 2, 3, 32)):
    return [torch.zeros(shape, device=DEVICE, dtype=DTYPE) for shape in (q, k, v)]


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (tensors(q=(4, 3, 16)), "4 dimensions, not 3, 4 and 4"),
        (tensors(k=(1, 2, 5, 16)), r"q \[1, 4, 3, 16\], k \[1, 2, 5, 16\] and v \[1, 2, 3, 32\] do not fit"),
        (tensors(q=(2, 4, 3, 16)), "do not fit"),
        (tensors(q=(1, 3, 3, 16)), "3 query heads are not a multiple of 2"),
        (tensors((1, 4, 3, 15), (1, 2, 3, 15), (1, 2, 3, 30)), "head size 15 is not an even number up to 128"),
        (tensors((1, 4, 3, 160), (1, 2, 3, 160), (1, 2, 3, 320)), "head size 160 "),
        (tensors(v=(1, 2, 3, 16)), "value width 16 is not 2 times head size 16"),
        ([*tensors()[:2], tensors()[2].double()], "differ in dtype"),
        ([tensors(q=(1, 4, 16, 3))[0].mT, *tensors()[1:]], "last dimension of q is not contiguous"),
        ([x.bfloat16() for x in tensors()], "bf16 wrongly"),
    ],
)
def test_why_not(inputs, reason):
    if reason == "bf16 wrongly" and DEVICE == "cuda":
        pytest.skip("bf16 is wrong in the interpreter only")
    with pytest.raises(ValueError, match=reason):
        tape_attention(*inputs)


def test_what_fits_has_no_objection():
    assert why_not(*tensors()) is None


def test_unusable_options_are_refused():
    with pytest.raises(ValueError, match=r"scale 0\.0 is not above 0"):
        tape_attention(*tensors(), scale=0.0)
    with pytest.raises(ValueError, match=r"document_ids \[1, 2\] are not \[1, 3\]"):
        tape_attention(*tensors(), document_ids=torch.zeros(1, 2, dtype=torch.int32, device=DEVICE))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [32, 64, 80, 96, 128])
@pytest.mark.parametrize("deterministic", [False, True])
def test_tensor_cores(width, dtype, deterministic):
    """Long enough for every loop, with new numbers each time: a race shows itself sooner or later."""
    for repeat in range(20):
        options = [
            {"queries": 1000, "keys": 1000},
            {"queries": 700, "keys": 1030, "causal": False},
            {"queries": 513, "keys": 900, "offset": 100},
            {"queries": 900, "keys": 900, "document_ids": documents((0, 300), (-1, 77), (1, 523), batch=2)},
        ][repeat % 4]
        example = case(width=width, batch=2, heads=6, groups=2, dtype=dtype, **options)
        check(run(example, deterministic=deterministic), example)
