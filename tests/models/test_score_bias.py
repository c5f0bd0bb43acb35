"""Attention with a bias, a block of queries at a time: every way through it is the plain matrix, forward and backward,
and no tensor grows with the square of the length."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tape_ds.attention import sdpa
from tape_ds.attention.score_bias import ContentBias
from tests.attention.by_ids import attend
from tests.models.helpers import ENCODINGS, tiny_model, tokens

B, S, K, V = 2, 9, 8, 16
BIASED = ["alibi", "t5", "fire", "cope", "tape from alibi", "tape from alibi, first layer"]
SCATTERED = [[0, 1, 0, 1, 1, 0, 2, 0, 2], [3, 3, -1, 3, 4, -1, 3, 4, 4]]
LEFT = [[-1, -1, -1, 0, 0, 0, 0, 0, 0], [0] * 9]
HOLES = [[0, -1, 0, 0, -1, -1, 0, 0, -1], [-1] * 9]
DOCUMENTS = {"none": None, "scattered": SCATTERED, "left": LEFT, "holes": HOLES}
# Queries, and the place of the first on an axis of 9 keys.
PLACES = {"full": (9, 0), "chunk": (5, 4), "step": (1, 8), "unused end": (4, 2)}
# (BIASED_ENTRIES, BIASED_LEAST): a row each and computed again; three rows each, kept; all rows at once.
BLOCKS = {"one by one": (1, 128), "threes": (1 << 22, 3), "whole": (1 << 22, 128)}


@pytest.fixture(params=BLOCKS)
def blocks(request, monkeypatch):
    entries, least = BLOCKS[request.param]
    monkeypatch.setattr(sdpa, "BIASED_ENTRIES", entries)
    monkeypatch.setattr(sdpa, "BIASED_LEAST", least)
    return request.param


def biased(name, queries=S, offset=0, heads="gqa", keys=S, dtype=torch.float32):
    """(q, k, v), the bias of these queries and keys, and the leaves that it depends on."""
    layer = tiny_model(heads, name.partition(",")[0]).model.layers[0].position
    count = {"mha": (4, 4), "gqa": (4, 2), "mqa": (8, 1)}[heads]
    at = slice(offset, offset + queries)
    qkv = [
        torch.randn(B, h, n, width).to(dtype).requires_grad_()
        for h, n, width in ((count[0], queries, K), (count[1], keys, K), (count[1], keys, V))
    ]
    if not name.startswith("tape"):
        places = torch.randint(3, (B, keys, 1)).cumsum(1) + 5
        bias = layer.score_bias((places[:, at], places), None)
        return qkv, bias, list(layer.parameters())
    start, state = (
        torch.rand(1, count[1], keys, K),
        torch.rand(B, count[1], keys, K, requires_grad=True),
    )
    first = name.endswith("first layer")
    carried = (start.expand(B, -1, -1, -1) if first else start + state).to(dtype)
    bias = layer.score_bias(None, (carried[:, :, at], carried))
    return qkv, bias, [] if first else [state]


def oracle(q, k, v, bias, documents, offset, window=S):
    """The whole matrix in fp64."""
    group, T, keys = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    scores = q.double() @ k.double().repeat_interleave(group, 1).mT * K**-0.5
    seen = torch.arange(keys)[None] <= torch.arange(T)[:, None] + offset
    seen &= torch.arange(keys)[None] > torch.arange(T)[:, None] + offset - window
    if documents is not None:
        ids = torch.tensor(documents)
        own = ids[:, offset : offset + T, None]
        seen = (seen & (own == ids[:, None]) & (own >= 0))[:, None]
    content = isinstance(bias, ContentBias)
    added = bias.block(q.double(), seen, scores) if content else bias.of(slice(None), slice(None))
    scores = scores + added.double()
    weights = scores.masked_fill(~seen, -1e30).softmax(-1) * seen
    return weights @ v.double().repeat_interleave(group, 1)


def check(qkv, bias, learned, documents, offset, backend="sdpa", tolerance=2e-6, **arguments):
    """Output and every gradient; tolerances for fp32 sums of numbers of order 1."""
    ids = None if documents is None else torch.tensor(documents)
    out = attend(
        *qkv, document_ids=ids, offset=offset, score_bias=bias, backend=backend, **arguments
    )
    truth = oracle(*qkv, bias, documents, offset, arguments.get("window", max(S, qkv[1].shape[2])))
    torch.testing.assert_close(out.double(), truth, rtol=0, atol=tolerance)
    direction = torch.randn_like(out)
    leaves = [*qkv, *learned]
    mine = torch.autograd.grad(out, leaves, direction, retain_graph=True, allow_unused=True)
    theirs = torch.autograd.grad(truth, leaves, direction.double(), allow_unused=True)
    for gradient, expected in zip(mine, theirs, strict=True):
        assert (gradient is None) == (expected is None)
        if expected is not None:
            scale = max(1.0, float(expected.abs().max()))
            torch.testing.assert_close(gradient, expected, rtol=0, atol=5 * tolerance * scale)


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("documents", DOCUMENTS)
@pytest.mark.parametrize("name", BIASED)
def test_every_mask_at_every_place(name, documents, places, blocks):
    queries, offset = PLACES[places]
    check(*biased(name, queries, offset), DOCUMENTS[documents], offset)


@pytest.mark.parametrize("heads, backend", [("mha", "sdpa"), ("mqa", "sdpa"), ("mqa", "reference")])
@pytest.mark.parametrize("name", BIASED)
def test_every_kind_of_heads(name, heads, backend, blocks):
    check(*biased(name, 4, 2, heads=heads), SCATTERED, 2, backend)


@pytest.mark.parametrize(
    "documents, places", [("none", "full"), ("scattered", "full"), ("left", "chunk")]
)
@pytest.mark.parametrize("name", BIASED)
def test_within_a_window(name, documents, places, blocks):
    queries, offset = PLACES[places]
    check(*biased(name, queries, offset), DOCUMENTS[documents], offset, window=4)


@torch.no_grad()
@pytest.mark.parametrize("window", [S, 4])
def test_layers_share_a_mask_where_one_block_has_all_queries(window, blocks):
    """Without gradients every block's mask was kept to the end of the forward: as much as no block may have at a time.
    Those of a window's blocks, which look alike, were taken for each other."""
    qkv, bias, _ = biased("alibi")
    bias = bias._replace(made={})
    ids = torch.tensor(SCATTERED)
    truth = oracle(*qkv, bias, SCATTERED, 0, window)
    for _ in range(2):
        arguments = {} if window == S else {"window": window}
        out = attend(*qkv, document_ids=ids, score_bias=bias, backend="sdpa", **arguments)
        torch.testing.assert_close(out.double(), truth, rtol=0, atol=2e-6)
    shared = {"one by one": 0, "threes": 3, "whole": 1}
    assert len(bias.made) == (shared[blocks] if window == S else 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", BIASED)
def test_half_precision_keeps_the_bias_in_fp32(name, dtype, blocks):
    """Queries, keys and values are rounded, the bias is not: what is left is one rounding of the output, and of each
    gradient, however many blocks it is a sum of."""
    qkv, bias, learned = biased(name, 65, keys=65, dtype=dtype)
    out = attend(*qkv, score_bias=bias, backend="sdpa")
    truth = oracle(*qkv, bias, None, 0, window=65)
    assert out.dtype == dtype
    step = torch.finfo(dtype).eps
    assert ((out.double() - truth).abs() <= step * truth.abs() + step / 20).all()
    direction, leaves = torch.randn_like(out), [*qkv, *learned]
    gradients = [
        torch.autograd.grad(x, leaves, direction.to(x.dtype), retain_graph=True)
        for x in (out, truth)
    ]
    for mine, expected in zip(*gradients, strict=True):
        error = (mine.double() - expected.double()).abs().max()
        # a bias common to all keys has no gradient at all
        assert error <= 2 * step * expected.abs().max() + 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_s_kernels_get_a_bias_in_the_query_s_own_dtype_only(dtype, monkeypatch):
    """CUDA's take an fp32 mask with bf16 queries and read its bytes as bf16 (cuDNN) or refuse it (memory-efficient).
    On a CPU no number shows that."""
    monkeypatch.setattr(sdpa, "FEW_QUERIES", 0)
    masks, inner = [], sdpa._sdpa
    monkeypatch.setattr(
        sdpa,
        "_sdpa",
        lambda q, k, v, mask, *rest: masks.append(mask) or inner(q, k, v, mask, *rest),
    )
    qkv, bias, _ = biased("alibi", dtype=dtype)
    attend(*qkv, score_bias=bias, backend="sdpa")
    assert {mask.dtype for mask in masks} == ({dtype} if dtype == torch.float32 else set())


@pytest.mark.gpu
@pytest.mark.parametrize("encoding", ["alibi", "t5", "tape from alibi"])
def test_bf16_on_a_gpu_is_the_plain_form(encoding):
    """Whatever kernel torch picks there; logits of order 3, whose bf16 steps are 0.02."""
    model, ids = tiny_model(encoding=encoding).cuda().bfloat16(), tokens(2, 200).cuda()
    logits = []
    with torch.no_grad():
        for backend in ("sdpa", "reference"):
            model.config.attention_backend = backend
            logits.append(model(ids).logits.float())
    assert (logits[0] - logits[1]).abs().max() < 0.1


class Largest(TorchDispatchMode):
    """The largest tensor that any operation makes, backward included."""

    numel = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        for each in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(each, torch.Tensor):
                self.numel = max(self.numel, each.numel())
        return out


@pytest.mark.parametrize("encoding", ["alibi", "t5", "fire", "cope", "tape from alibi"])
def test_no_tensor_grows_with_the_square_of_the_length(encoding, monkeypatch):
    """At 32,768 tokens and 12 heads the whole bias is 48 GiB: it exists a block at a time, in the backward too."""
    T, H, allowed = 3000, 4, 1 << 19
    options = {"position_options": {"width": 4}} if encoding == "fire" else {}
    layers = 2 if encoding == "tape from alibi" else 1  # its first layer's bias has no gradient
    model, ids = (
        tiny_model(encoding=encoding, num_hidden_layers=layers, **options).train(),
        tokens(1, T),
    )
    monkeypatch.setattr(sdpa, "BIASED_ENTRIES", allowed)
    with Largest() as seen:
        model(ids, labels=ids).loss.backward()
    assert allowed > T * 61, "the logits are smaller"
    assert seen.numel <= allowed < H * T * T / 50
    monkeypatch.setattr(sdpa, "BIASED_ENTRIES", 1 << 40)
    monkeypatch.setattr(sdpa, "BIASED_SHARE", 1)
    with Largest() as seen, torch.no_grad():
        model(ids[:, :300])
    assert seen.numel >= H * 300 * 300, "the watch would see it"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_layer_says_whether_it_biases_scores(encoding, monkeypatch):
    """A block that is compiled reads it before attention is computed."""
    model = tiny_model(encoding=encoding)
    said = []
    found = []
    for layer in model.model.layers:
        bias_of = layer.position.score_bias

        def score_bias(*asked, bias_of=bias_of):
            made = bias_of(*asked)
            found.append(made is not None)
            return made

        monkeypatch.setattr(layer.position, "score_bias", score_bias)
        said.append(layer.position.biases_scores)
    model(tokens(1, 6))
    assert found == said
