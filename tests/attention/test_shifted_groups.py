"""Attention within shifted groups against a mask written out pair by pair: values, gradients, visible keys."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tape_ds.attention import backends
from tape_ds.attention.document_layout import DocumentLayout
from tape_ds.attention.shifted_groups import attend_in_groups, attention_span, use_groups
from tape_ds.models import llama
from tests.attention import varlen_on_cpu  # noqa: F401 (registers the kernels)
from tests.attention.group_masks import allowed, in_groups_by_mask, masked
from tests.models.helpers import gradients, largest_difference, tiny_model, tokens

HEADS = {"mha": (4, 4), "gqa": (8, 2), "straddling": (9, 3), "odd": (3, 3), "one": (1, 1)}
DOCUMENTS = [
    [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2],
    [-1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 9, -1, -1, -1, -1],
]
"""Packed, padded on the left by more than a group, padded on the right: 17 tokens each."""


def inputs(heads=4, groups=4, length=17, batch=3, width=4, value_width=4, dtype=torch.float32):
    """Leaves whose tokens lie before their heads, as projections leave them."""
    shapes = ((heads, width), (groups, width), (groups, value_width))
    return [
        torch.randn(batch, length, *shape, dtype=dtype).transpose(1, 2).requires_grad_()
        for shape in shapes
    ]


def test_hand_made_case():
    """16 tokens in groups of 8: LongLoRA's own borders, counted through both halves of the heads, are 0, 4, 8, 12, 16
    and 16, 18, ... for groups of 4; here 0, 8, 16 and 0, 4, 12, 16. Equal scores make every weight 1 / keys seen."""
    q, k = torch.zeros(1, 2, 16, 2), torch.zeros(1, 2, 16, 2)
    v = torch.arange(16.0).view(1, 1, 16, 1).expand(1, 2, 16, 1)
    out = attend_in_groups(q, k, v, group=8)[0, :, :, 0]
    plain = [(first + t) / 2 for first, last in ((0, 8), (8, 16)) for t in range(first, last)]
    shifted = [
        (first + t) / 2 for first, last in ((0, 4), (4, 12), (12, 16)) for t in range(first, last)
    ]
    torch.testing.assert_close(out, torch.tensor([plain, shifted]))


def check(out, expected, leaves):
    """Values and every gradient."""
    torch.testing.assert_close(out, expected, rtol=0, atol=2e-6)
    direction = torch.randn_like(out)
    mine, theirs = (torch.autograd.grad(x, leaves, direction) for x in (out, expected))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=8e-6)


@pytest.mark.parametrize(
    "heads, length, group",
    [
        *((name, 17, 8) for name in HEADS),
        *(
            ("straddling", length, group)
            for length, group in ((16, 8), (13, 4), (5, 2), (3, 2), (9, 16), (5, 16), (1, 2))
        ),
    ],
)
def test_equals_a_mask(heads, length, group):
    q, k, v = inputs(*HEADS[heads], length)
    expected = masked(q, k, v, allowed(q.shape[1], length, group))
    check(attend_in_groups(q, k, v, group=group), expected, (q, k, v))


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
@pytest.mark.parametrize(
    "heads, value_width", [("mha", 4), ("gqa", 10), ("straddling", 10), ("one", 4)]
)
def test_documents_padding_and_wide_values(heads, backend, value_width):
    q, k, v = inputs(*HEADS[heads], value_width=value_width)
    mask = allowed(q.shape[1], 17, 6, DOCUMENTS, batch=3)
    ids = torch.tensor(DOCUMENTS, dtype=torch.int32)
    out = attend_in_groups(
        q, k, v, group=6, layout=DocumentLayout(ids, 17), scale=0.3, backend=backend
    )
    check(out, masked(q, k, v, mask, scale=0.3), (q, k, v))
    assert (out[:, 0][ids < 0] == 0).all()


@pytest.mark.parametrize("documents", [DOCUMENTS, [DOCUMENTS[0]] * 3], ids=["padded", "packed"])
def test_documents_in_groups_by_packed_kernels(monkeypatch, documents):
    """Boundaries of documents and groups in one layout."""
    monkeypatch.setattr(backends, "chip_of", lambda device: backends.Chip("cuda", "sm_90"))
    monkeypatch.setattr(backends, "_why_not", lambda name, call: None)
    q, k, v = inputs(8, 2, width=8, value_width=16)
    layout = DocumentLayout(torch.tensor(documents), 17)
    out = attend_in_groups(q, k, v, group=6, layout=layout, backend="varlen")
    expected = masked(q, k, v, allowed(8, 17, 6, documents, batch=3))
    torch.testing.assert_close(out, expected, rtol=0, atol=2e-6)


def test_no_work_grows_with_the_square_of_the_length():
    """Multiplications of 4,096 tokens in groups of 64 are those of 64-token sequences, counted by torch."""
    q, k, v = (x.detach() for x in inputs(4, 2, 4096, batch=1, value_width=8))
    with FlopCounterMode(display=False) as counter:
        attend_in_groups(q, k, v, group=64, backend="reference")
    span = attention_span(4096, 64, 4)
    assert counter.get_total_flops() == 2 * 4 * 4096 * span * (4 + 8)
    assert 63 < span <= 64


def test_odd_groups_and_cached_keys_are_refused():
    q, k, v = inputs()
    for group in (3, 0):
        with pytest.raises(ValueError, match="an even number"):
            attend_in_groups(q, k, v, group=group)
        with pytest.raises(ValueError, match="an even number"):
            use_groups(tiny_model(), group)
    with pytest.raises(ValueError, match="17 keys"):
        attend_in_groups(q[:, :, 9:], k, v, group=4)


def losses_and_gradients(model, ids, **arguments):
    model.zero_grad()
    loss = model(ids, labels=ids, use_cache=False, **arguments).loss
    loss.backward()
    return loss.detach(), gradients(model)


@pytest.mark.parametrize(
    "encoding, backend, checkpointing",
    [("rope", "auto", True), ("tape", "reference", False), ("tape", "auto", True)],
)
def test_model_equals_one_with_an_explicit_mask(monkeypatch, encoding, backend, checkpointing):
    """Straddling heads, packed documents; recomputation in the backward is in training mode and so in groups too."""
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 36}
    model = tiny_model(encoding=encoding, attention_backend=backend, **heads).train()
    use_groups(model, 6)
    if checkpointing:
        model.gradient_checkpointing_enable()
    ids, documents = tokens(3, 17), torch.tensor(DOCUMENTS)
    mine = losses_and_gradients(model, ids, document_ids=documents)
    monkeypatch.setattr(llama, "attend_in_groups", in_groups_by_mask)
    theirs = losses_and_gradients(model, ids, document_ids=documents)
    torch.testing.assert_close(mine[0], theirs[0], rtol=0, atol=2e-6)
    assert largest_difference(mine[1], theirs[1]) < 2e-4


def test_evaluation_is_over_everything():
    model, ids = tiny_model(), tokens(2, 17)
    plain = model(ids).logits
    use_groups(model, 4)
    assert torch.equal(model(ids).logits, plain)
    grouped = model.train()(ids, use_cache=False).logits
    assert not torch.allclose(grouped[:, -1], plain[:, -1], atol=1e-3)
    torch.testing.assert_close(grouped[:, :2], plain[:, :2])  # within the first half-group
    use_groups(model, None)
    assert torch.equal(model(ids, use_cache=False).logits, plain)


def test_a_cache_is_not_grouped_in_silence():
    """In training mode an empty cache is filled by a whole sequence; a step of decoding would have no groups to be
    in."""
    model, ids = tiny_model().train(), tokens(1, 9)
    use_groups(model, 4)
    first = model(ids[:, :8], use_cache=True)
    assert torch.equal(first.logits, model(ids[:, :8], use_cache=False).logits)
    with pytest.raises(ValueError, match="without a cache"):
        model(ids[:, 8:], past_key_values=first.past_key_values)


def test_a_bias_on_the_scores_is_refused():
    model = tiny_model(encoding="alibi").train()
    use_groups(model, 4)
    with pytest.raises(ValueError, match="alibi adds a bias"):
        model(tokens(1, 8), use_cache=False)
