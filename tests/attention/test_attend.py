"""``attend`` against a dense fp64 oracle: every backend, every route inside it, every mask, forward and gradients."""

import math

import pytest
import torch

from tape_ds.attention import sdpa
from tape_ds.attention.attend import attend_with_weights
from tape_ds.attention.call import allowed_keys
from tape_ds.attention.document_layout import layout_of_ids
from tape_ds.attention.score_bias import ScoreBias
from tests.attention.by_ids import attend
from tests.models.test_score_bias import Largest

# Which code answers a call depends on sizes; these thresholds make every route answer at tiny ones.
ROUTES = {
    "reference": ("reference", {}),
    "sdpa": ("sdpa", {"QUERY_BLOCK": 3}),
    "sdpa by document": ("sdpa", {"MASK_ENTRIES": 0, "FEW_QUERIES": 0, "QUERY_BLOCK": 2}),
}
PACKED = [[0, 0, 0, 1, 1, 1, 1, 2, 2], [5, 5, 5, 5, 5, 5, 7, 7, 7]]
SCATTERED = [[0, 1, 0, 1, 1, 0, 2, 0, 2], [3, 3, -1, 3, 4, -1, 3, 4, 4]]
LEFT = [[-1, -1, -1, 0, 0, 0, 0, 0, 0], [0] * 9]
RIGHT = [[0, 0, 0, 0, 0, 0, -1, -1, -1], [0] * 9]
HOLES = [[0, -1, 0, 0, -1, -1, 0, 0, -1], [-1] * 9]
DOCUMENTS = {
    "none": None,
    "packed": PACKED,
    "scattered": SCATTERED,
    "left": LEFT,
    "right": RIGHT,
    "holes": HOLES,
}
# Queries and the first one's place on an axis of 9 keys: a full pass, a cached chunk, a step, unused keys behind.
PLACES = {
    "full": (9, 0),
    "chunk": (5, 4),
    "step": (1, 8),
    "unused end": (4, 2),
    "first of many": (1, 0),
}
MASKS = [
    *((name, "full") for name in DOCUMENTS),
    *(("none", name) for name in ("chunk", "step", "unused end", "first of many")),
    *(("scattered", name) for name in ("chunk", "step", "unused end")),
    *(("left", "chunk"), ("packed", "step"), ("right", "unused end"), ("holes", "first of many")),
]
"""Documents and places, each of both with several of the other."""


@pytest.fixture(params=ROUTES)
def backend(request, monkeypatch):
    name, thresholds = ROUTES[request.param]
    for threshold, value in thresholds.items():
        monkeypatch.setattr(sdpa, threshold, value)
    return name


def inputs(
    queries=9, keys=9, heads=4, groups=2, key_width=6, value_width=12, dtype=torch.float32, batch=2
):
    shapes = ((heads, queries, key_width), (groups, keys, key_width), (groups, keys, value_width))
    return [torch.randn(batch, *shape, dtype=dtype, requires_grad=True) for shape in shapes]


def oracle(q, k, v, documents, offset, window=None, softcap=None, sinks=None):
    """One query at a time, in fp64, over the keys that the definition allows."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    rows = []
    for b in range(q.shape[0]):
        ids = [0] * k.shape[2] if documents is None else documents[b]
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                place = t + offset
                first = 0 if window is None else place - window + 1
                seen = [
                    s
                    for s in range(k.shape[2])
                    if ids[s] == ids[place] >= 0 and first <= s <= place
                ]
                scores = k[b, h // group, seen] @ q[b, h, t] * q.shape[-1] ** -0.5
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                if sinks is not None:
                    scores = torch.cat((scores, sinks[h : h + 1].double()))
                rows.append(torch.softmax(scores, dim=0)[: len(seen)] @ v[b, h // group, seen])
    return torch.stack(rows).view(*q.shape[:3], v.shape[-1])


def check(backend, q, k, v, documents=None, offset=None, tolerance=2e-6, **needs):
    """Output and all gradients equal the oracle's; the tolerance is for fp32 numbers of order 1."""
    ids = None if documents is None else torch.tensor(documents)
    out = attend(q, k, v, document_ids=ids, offset=offset, backend=backend, **needs)
    place = k.shape[2] - q.shape[2] if offset is None else offset
    truth = oracle(q, k, v, documents, int(place), **needs)
    torch.testing.assert_close(out.double(), truth, rtol=0, atol=tolerance)
    direction = torch.randn_like(out)
    # every query is padding: nothing was computed that could have a gradient
    if not out.requires_grad:
        assert (out == 0).all()
        return
    leaves = [q, k, v, *(need for need in needs.values() if isinstance(need, torch.Tensor))]
    mine = torch.autograd.grad(out, leaves, direction)
    theirs = torch.autograd.grad(truth, leaves, direction.double())
    for gradient, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=4 * tolerance)


@pytest.mark.parametrize("documents, places", MASKS)
def test_masks_and_places(backend, documents, places):
    queries, offset = PLACES[places]
    q, k, v = inputs(queries=queries)
    check(backend, q, k, v, DOCUMENTS[documents], offset)


def needs_of(*names, heads=4):
    """A window of 4 keys, scores within -0.7 .. 0.7, a score without a value for each head."""
    given = {"window": 4, "softcap": 0.7, "sinks": torch.linspace(-1, 2, heads).requires_grad_()}
    return {name: given[name] for name in names}


BIAS = ScoreBias(torch.zeros(1, 1, 9, 1), torch.zeros(1, 1, 9, 1), lambda q, k: q - k.mT)
NEEDS = [("window",), ("softcap",), ("sinks",), ("window", "softcap"), ("window", "sinks")]


@pytest.mark.parametrize("needs", NEEDS, ids=" and ".join)
@pytest.mark.parametrize(
    "documents, places",
    [
        ("none", "full"),
        ("scattered", "full"),
        ("none", "unused end"),
        ("left", "chunk"),
        ("packed", "step"),
    ],
)
def test_windows_soft_caps_and_sinks(backend, documents, places, needs):
    queries, offset = PLACES[places]
    check(backend, *inputs(queries=queries), DOCUMENTS[documents], offset, **needs_of(*needs))


@pytest.mark.parametrize(
    "heads, groups, value_width, documents, needs",
    [
        (4, 4, 3, "scattered", ()),
        (6, 2, 6, "none", ()),
        (5, 1, 15, "scattered", ()),
        (6, 2, 12, "none", ("window", "softcap")),
        (4, 4, 3, "scattered", ("window", "sinks")),
        (6, 2, 4, "scattered", ("softcap",)),
        (5, 1, 18, "scattered", ("sinks",)),
    ],
)
def test_groupings_and_value_widths(
    backend, monkeypatch, heads, groups, value_width, documents, needs
):
    """A value wider than the key is TAPE's, a narrower one DeepSeek's; head h reads group h // (H / G), never h % G.
    Capped scores are computed row by row, and again in the backward."""
    monkeypatch.setattr(sdpa, "BIASED_ENTRIES", 1)
    q, k, v = inputs(queries=6, heads=heads, groups=groups, value_width=value_width)
    check(backend, q, k, v, DOCUMENTS[documents], **needs_of(*needs, heads=heads))


@pytest.mark.parametrize(
    "length, window", [(1, 1), (2, None), (2, 3), (65, None), (65, 1), (65, 64), (65, 65)]
)
def test_odd_lengths_and_windows(backend, length, window):
    q, k, v = inputs(queries=length, keys=length, heads=2, batch=1)
    check(backend, q, k, v, window=window, tolerance=4e-6)


@pytest.mark.parametrize("needs", [(), ("window", "softcap", "sinks")], ids=" and ".join)
def test_rounding_is_the_only_error(backend, needs):
    """In fp64 every route is the oracle to 1e-13."""
    given = needs_of(*needs)
    if needs:
        given["sinks"] = torch.randn(4, dtype=torch.float64, requires_grad=True)
    check(backend, *inputs(queries=5, dtype=torch.float64), SCATTERED, tolerance=1e-13, **given)


@pytest.mark.parametrize("needs", NEEDS, ids=" and ".join)
def test_half_precision_is_rounded_once(needs):
    """Capped scores and sinks are fp32 whatever the query is; with a window torch rounds the weights as well."""
    q, k, v = (x.detach().bfloat16() for x in inputs())
    given = needs_of(*needs)
    out = attend(q, k, v, backend="sdpa", **given)
    truth = oracle(q, k, v, None, 0, **given)
    step = torch.finfo(torch.bfloat16).eps * (4 if needs == ("window",) else 1)
    assert (
        out.dtype == torch.bfloat16
        and ((out.double() - truth).abs() <= step * truth.abs() + step / 20).all()
    )


@pytest.mark.parametrize(
    "queries, needs", [(1, ("window",)), (3, ("window", "softcap")), (1, ("window", "sinks"))]
)
def test_keys_in_front_of_the_window_are_never_read(backend, queries, needs):
    """A step of decoding over a long cache costs what its window costs."""
    q, k, v = (x.detach() for x in inputs(queries=queries))
    given = needs_of(*needs)
    expected = oracle(q, k, v, None, 9 - queries, **given)
    first = 9 - queries - 4 + 1
    k[:, :, :first], v[:, :, :first] = torch.nan, torch.nan
    out = attend(q, k, v, backend=backend, **given)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "needs", [{"window": 0}, {"softcap": 1.0, "score_bias": BIAS}], ids=["no key", "a bias"]
)
def test_impossible_needs_are_refused(needs):
    with pytest.raises(ValueError, match=r"a window of 0|a bias on scores together"):
        attend(*inputs(), **needs)


@pytest.mark.parametrize(
    "documents, needs",
    [(None, ("window",)), ("packed", ("window", "softcap")), ("padded", ("window", "sinks"))],
)
def test_with_a_window_nothing_grows_with_the_square_of_the_length(monkeypatch, documents, needs):
    """Twice the tokens: no larger tensor but those of the tokens themselves, forward and backward, and no larger mask;
    four times in all would be T x S."""
    monkeypatch.setattr(sdpa, "QUERY_BLOCK", 16)
    monkeypatch.setattr(sdpa, "MASK_ENTRIES", 0)
    monkeypatch.setattr(sdpa, "BIASED_LEAST", 16)
    largest, masks = [], []
    monkeypatch.setattr(
        sdpa, "allowed_keys", lambda call: masks.append(allowed_keys(call)) or masks[-1]
    )
    for length in (512, 1024):
        q, k, v = inputs(
            queries=length, keys=length, heads=1, groups=1, key_width=2, value_width=2, batch=1
        )
        ids = None if documents is None else torch.arange(length)[None] // 100
        if documents == "padded":
            ids = torch.zeros(1, length, dtype=torch.int64).index_fill(1, torch.arange(30), -1)
        with Largest() as seen:
            attend(
                q, k, v, document_ids=ids, backend="sdpa", **needs_of(*needs, heads=1)
            ).sum().backward()
        largest.append(seen.numel)
    assert max(mask.numel() for mask in masks) <= 16 * (16 + 3)
    assert largest[1] <= 2 * 1024


def check_padding(backend, documents, value, **sizes):
    """Whatever padding holds, real rows and all gradients are those of padding that holds zeros."""
    ids = torch.tensor(DOCUMENTS[documents])
    padding = (ids < 0)[:, None, :, None]
    clean = inputs(**sizes)
    dirty = [x.detach().masked_fill(padding, value).requires_grad_() for x in clean]
    direction, results = torch.randn(2, 4, 9, clean[2].shape[-1]), []
    for tensors in (clean, dirty):
        out = attend(*tensors, document_ids=ids, backend=backend)
        results.append([out, *torch.autograd.grad(out, tensors, direction)])
    for mine, expected in zip(*results, strict=True):
        assert mine.isfinite().all() and torch.equal(mine, expected)
    assert (results[1][0].masked_select(padding) == 0).all()


@pytest.mark.parametrize(
    "documents, value",
    [("left", math.nan), ("right", -math.inf), ("holes", math.inf), ("scattered", math.nan)],
)
def test_nothing_leaves_padding(backend, documents, value):
    check_padding(backend, documents, value)


@pytest.mark.parametrize(
    "documents, heads, groups, queries",
    [("left", 6, 2, 1), ("holes", 5, 1, 3), ("scattered", 6, 2, 3), ("left", 4, 4, 3)],
)
def test_a_step_of_decoding_behind_a_mask(backend, documents, heads, groups, queries):
    """Without a gradient a group's queries are rows of one head, each with its own line of the mask."""
    q, k, v = inputs(queries=queries, heads=heads, groups=groups)
    with torch.no_grad():
        out = attend(q, k, v, document_ids=torch.tensor(DOCUMENTS[documents]), backend=backend)
    truth = oracle(q, k, v, DOCUMENTS[documents], 9 - queries)
    torch.testing.assert_close(out.double(), truth.detach(), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "documents, queries, offset", [("left", 1, 4), ("scattered", 3, 2), ("none", 9, 0)]
)
@pytest.mark.parametrize("needs", [(), *NEEDS[3:]], ids=" and ".join)
def test_an_offset_may_be_a_tensor(backend, documents, queries, offset, needs):
    """A static cache inside a compiled graph counts in a tensor; its unused keys are after the last query."""
    check(
        backend,
        *inputs(queries=queries),
        DOCUMENTS[documents],
        torch.tensor(offset),
        **needs_of(*needs),
    )


@pytest.mark.parametrize(
    "offset, documents", [(10, True), (torch.tensor(10), False)], ids=["number", "tensor"]
)
def test_no_mask_grows_with_the_square_of_the_length(monkeypatch, offset, documents):
    """Continuing a cache must stay within QUERY_BLOCK x S entries of mask: a 128k prefill in chunks would not fit, and
    a prefill into a static cache, inside a compiled graph, has a mask for every query."""
    largest = []
    monkeypatch.setattr(sdpa, "QUERY_BLOCK", 8)
    monkeypatch.setattr(sdpa, "BLOCKED_ENTRIES", 100)
    monkeypatch.setattr(
        sdpa, "allowed_keys", lambda call: largest.append(call.q.shape[2]) or allowed_keys(call)
    )
    q, k, v = inputs(queries=50, keys=60)
    ids = torch.zeros(2, 60, dtype=torch.int32) if documents else None
    if documents:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    out = attend(q, k, v, offset=offset, document_ids=ids, backend="sdpa")
    assert max(largest) == 8
    torch.testing.assert_close(out, attend(q, k, v, backend="reference"), rtol=0, atol=2e-6)


@pytest.mark.parametrize("keys, documents", [(0, True), (9, False)])
def test_no_queries_give_no_rows(backend, keys, documents):
    q, k, v = inputs(queries=0, keys=keys)
    out = attend(
        q,
        k,
        v,
        document_ids=torch.zeros(2, keys, dtype=torch.int32) if documents else None,
        backend=backend,
    )
    assert out.shape == (2, 4, 0, 12)
    assert all((x == 0).all() for x in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize("places", ["full", "chunk"])
def test_weights_of_a_window_and_sinks(places):
    """One column for each key, also for those in front of every window, and none for the sink."""
    queries, offset = PLACES[places]
    q, k, v = inputs(queries=queries)
    given = needs_of("window", "softcap", "sinks")
    out, weights = attend_with_weights(q, k, [v], offset=offset, **given)
    seen = offset + queries
    assert weights.shape == (2, 4, queries, seen)
    torch.testing.assert_close(weights @ v[:, :, :seen].repeat_interleave(2, 1), out[0])
    place = torch.arange(queries)[:, None] + offset
    hidden = (torch.arange(seen) > place) | (torch.arange(seen) <= place - 4)
    assert (
        (weights[..., hidden] == 0).all()
        and (weights[..., ~hidden] > 0).all()
        and (weights.sum(-1) < 1).all()
    )


def test_queries_off_the_key_axis_and_borders_of_other_sequences_are_refused(backend):
    for queries, offset in ((10, None), (3, 7), (3, -1)):
        with pytest.raises(ValueError, match="do not fit"):
            attend(*inputs(queries=queries), offset=offset, backend=backend)
    q, k, v = inputs()
    with pytest.raises(ValueError, match="do not fit"):
        attend_with_weights(q, k, [v], layout=layout_of_ids(torch.tensor(PACKED)[:, :8], 8))


@pytest.mark.parametrize("masks", [None, 1, 6])
def test_groups_answered_head_by_head_are_the_whole(masks):
    """What a GPU is given where its kernels take no grouped queries: heads go back to where they came from."""
    q, k, v = inputs(heads=6, groups=2, value_width=6)
    mask = None if masks is None else (torch.rand(2, masks, 9, 9) < 0.7) | torch.eye(9).bool()
    mine = sdpa._by_head_of_group(q, k, v, mask, False, 0.3)
    k, v = (x.repeat_interleave(3, dim=1) for x in (k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
    torch.testing.assert_close(mine, expected, rtol=0, atol=1e-6)
