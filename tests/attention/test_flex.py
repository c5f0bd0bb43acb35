"""FlexAttention against the plain matrices: uncompiled on any machine (forward alone), compiled with every gradient
where there is a GPU."""

import pytest
import torch
from torch.nn.attention import flex_attention

from tape_ds.attention import backends, flex
from tape_ds.attention.call import allowed_keys, complete
from tape_ds.attention.document_layout import DocumentLayout
from tape_ds.attention.flex import flex_attend
from tests.attention.by_ids import attend
from tests.attention.test_attend import DOCUMENTS, NEEDS, PLACES, check, check_padding, needs_of
from tests.models.helpers import tiny_model, tokens

BIASED = ["none", "alibi", "t5", "fire"]


HEADS = {"mha": (4, 4), "gqa": (4, 2), "mqa": (8, 1)}

uncompiled_is_meant = pytest.mark.filterwarnings("ignore:flex_attention called without")


def case(
    name,
    queries=9,
    offset=0,
    keys=9,
    heads="gqa",
    rows=2,
    sizes=(8, 16),
    device="cpu",
    dtype=torch.float32,
):
    """(q, k, v), the bias at random growing places (one set for all rows, or for each), and its parameters."""
    H, G = HEADS[heads]
    shapes = ((H, queries, sizes[0]), (G, keys, sizes[0]), (G, keys, sizes[1]))
    qkv = [torch.randn(2, *shape, device=device).to(dtype) for shape in shapes]
    if name == "none":
        return qkv, None, []
    layer = tiny_model(heads, name).model.layers[0].position.to(device)
    places = torch.randint(3, (rows, keys, 1), device=device).cumsum(1)
    bias = layer.score_bias((places[:, offset : offset + queries], places), None)
    return qkv, bias, list(layer.parameters())


@pytest.fixture
def on_a_cpu(monkeypatch):
    """The backend as it is, but for the compiler and the refusal of a CPU."""
    monkeypatch.setattr(backends, "chip_of", lambda device: backends.Chip("cuda", "sm_90"))
    monkeypatch.setattr(
        flex, "flex_attend", lambda call, compiled: flex_attend(call, compiled=False)
    )


@uncompiled_is_meant
@pytest.mark.parametrize(
    "name, heads, rows, documents, places, arguments",
    [
        ("none", "gqa", 1, "packed", "full", {}),
        ("alibi", "gqa", 2, "holes", "chunk", {}),
        ("alibi", "mha", 1, "scattered", "unused end", {"window": 4}),
        ("alibi", "gqa", 2, "scattered", "unused end", {"offset": torch.tensor(2)}),
        ("t5", "mqa", 1, "left", "step", {}),
        ("fire", "gqa", 2, "none", "chunk", {"scale": 0.1}),
    ],
    ids=str,
)
def test_biases_masks_and_places(on_a_cpu, name, heads, rows, documents, places, arguments):
    """Marks of each row, or one row of them for all."""
    queries, offset = PLACES[places]
    qkv, bias, _ = case(name, queries, offset, heads=heads, rows=rows)
    ids = None if DOCUMENTS[documents] is None else torch.tensor(DOCUMENTS[documents])
    given = {"score_bias": bias, "document_ids": ids, "offset": offset, **arguments}
    with torch.no_grad():
        mine, expected = (
            attend(*qkv, backend=backend, **given) for backend in ("flex", "reference")
        )
    torch.testing.assert_close(mine, expected, rtol=0, atol=2e-6)


@uncompiled_is_meant
@pytest.mark.parametrize(
    "documents, places, heads, value",
    [
        ("none", "full", "gqa", 5),
        ("scattered", "full", "mqa", 16),
        ("holes", "full", "gqa", 16),
        ("left", "chunk", "mqa", 5),
    ],
)
@pytest.mark.parametrize("needs", [(), ("window", "softcap"), ("sinks",)], ids=" and ".join)
def test_windows_soft_caps_and_sinks(on_a_cpu, monkeypatch, documents, places, needs, heads, value):
    """Gradients too, by the plain form of its backward, which torch has and keeps from CPUs."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    queries, offset = PLACES[places]
    (q, k, v), _, _ = case("none", queries, offset, heads=heads, sizes=(8, value))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    check("flex", *leaves, DOCUMENTS[documents], offset, **needs_of(*needs, heads=q.shape[1]))


@uncompiled_is_meant
def test_nothing_leaves_padding(on_a_cpu, monkeypatch):
    """A block that holds padding and real tokens multiplies padding by 0."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    check_padding("flex", "holes", torch.nan)


# Long enough for several blocks of 128 and no multiple of one; head sizes that Triton multiplies.
LENGTH, WIDE = 300, (64, 128)


def long_documents(kind):
    """Documents of uneven lengths, one of them across a block's border, and padding."""
    if kind == "none":
        return None
    rows = [[0] * 100 + [1] * 90 + [2] * 110, [0] * 37 + [-1] * 23 + [1] * 200 + [-1] * 40]
    return torch.tensor(rows, dtype=torch.int32, device="cuda")


def matrices(q, k, v, bias, ids):
    """The plain form in the precision of q, k and v."""
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias.of(slice(None), slice(None)).to(q.dtype)
    layout = None if ids is None else DocumentLayout(ids, LENGTH)
    seen = allowed_keys(complete(q, k, (v,), layout, 0, 1.0, None))[:, None]
    weights = scores.masked_fill(~seen, -1e4).softmax(-1).masked_fill(~seen, 0.0)
    return weights @ v.repeat_interleave(group, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "heads, documents", [("mha", "none"), ("gqa", "packed"), ("mqa", "packed")]
)
@pytest.mark.parametrize("name", BIASED)
def test_compiled_forward_and_backward(name, heads, documents, dtype):
    """Output and every gradient, those of the bias's parameters included: at most twice (gradients: three times) the
    error of plain matrices in the same precision, both against fp64."""
    qkv, bias, learned = case(
        name, LENGTH, 0, LENGTH, heads, sizes=WIDE, device="cuda", dtype=dtype
    )
    ids, exact = long_documents(documents), [x.double().requires_grad_() for x in qkv]
    given = [x.requires_grad_() for x in qkv]
    flex = attend(*given, score_bias=bias, document_ids=ids, backend="flex")
    outs = (flex, matrices(*given, bias, ids), matrices(*exact, bias, ids))
    direction = torch.randn_like(flex)
    gradients = [
        torch.autograd.grad(out, [*leaves, *learned], direction.to(out.dtype), retain_graph=True)
        for out, leaves in zip(outs, (given, given, exact), strict=True)
    ]
    each_way = [(out, *of_leaves) for out, of_leaves in zip(outs, gradients, strict=True)]
    for index, (mine, plain, truth) in enumerate(zip(*each_way, strict=True)):
        error, plain_error = (
            (each.double() - truth.double()).abs().max() for each in (mine, plain)
        )
        assert error <= (3 if index else 2) * plain_error + 1e-5 * max(
            1.0, float(truth.abs().max())
        )


@pytest.mark.gpu
@pytest.mark.parametrize("documents", ["none", "packed"])
@pytest.mark.parametrize("needs", NEEDS, ids=" and ".join)
def test_compiled_windows_soft_caps_and_sinks(needs, documents):
    """Output and every gradient, the sinks' too, against the matrices of ``reference`` in fp32."""
    qkv, _, _ = case("none", LENGTH, 0, LENGTH, sizes=WIDE, device="cuda")
    given = {
        "window": 40,
        "softcap": 0.7,
        "sinks": torch.linspace(-1, 2, 4, device="cuda").requires_grad_(),
    }
    given, leaves = {name: given[name] for name in needs}, [x.requires_grad_() for x in qkv]
    leaves += [given["sinks"]] if "sinks" in given else []
    outcomes = []
    for backend in ("flex", "reference"):
        out = attend(*qkv, document_ids=long_documents(documents), backend=backend, **given)
        outcomes.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for mine, expected in zip(*outcomes, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", BIASED)
def test_compiled_with_a_cached_beginning(name):
    """A prompt continued in a long chunk: queries at an offset, as a number and as a tensor."""
    with torch.no_grad():
        qkv, bias, _ = case(name, 200, 100, LENGTH, sizes=WIDE, device="cuda")
        expected = attend(*qkv, score_bias=bias, backend="reference")
        for offset in (100, torch.tensor(100, device="cuda")):
            mine = attend(*qkv, score_bias=bias, offset=offset, backend="flex")
            torch.testing.assert_close(mine, expected, rtol=0, atol=2e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("encoding", ["alibi", "t5", "fire"])
def test_a_whole_model_trains_through_it(encoding):
    """``auto`` on a GPU: loss and every gradient are those of the blocks, with and without checkpointing."""
    sizes = {"head_dim": 16, "hidden_size": 64, "max_position_embeddings": 512}
    model, ids = tiny_model(encoding=encoding, **sizes).cuda().train(), tokens(2, LENGTH).cuda()
    outcomes = []
    for backend, checkpointing in (("sdpa", False), ("auto", False), ("auto", True)):
        model.config.attention_backend = backend
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        outcomes.append(
            (
                loss.detach(),
                {name: weight.grad.clone() for name, weight in model.named_parameters()},
            )
        )
    for loss, gradients in outcomes[1:]:
        torch.testing.assert_close(loss, outcomes[0][0], rtol=1e-5, atol=0)
        for name, gradient in gradients.items():
            torch.testing.assert_close(
                gradient, outcomes[0][1][name], rtol=1e-3, atol=2e-5, msg=name
            )
