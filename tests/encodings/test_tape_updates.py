"""Every form of TAPE's updates against its definition in fp64, head by head and channel by channel.

That the published code computes the same (without grouped queries) is what the golden files of its ablations show.
"""

import pytest
import torch
from torch.nn import functional as F

from tape_ds.encodings.tape import current
from tests.models.helpers import HEADS, tiny_model

B, T, K = 2, 5, 8
FORMS = ["tensorial", "separate", "vector", "flattened"]


def layer_of(heads, form, update, first=True):
    options = {"form": form, "attention_update": update}
    if form == "flattened":
        options["rank"] = 5
    return tiny_model(heads, position_options=options).model.layers[0].position.double()


def halves(x):
    """Cosines and sines."""
    return x.chunk(2, dim=-1)


def across_heads(weight, moved, groups):
    """W_att of the paper [G, H], or one scalar per query head [H] into its own group: [B, H, T, X] -> [B, G, T, X]."""
    out = [torch.zeros_like(moved[:, 0]) for _ in range(groups)]
    for g in range(groups):
        for h in range(moved.shape[1]):
            own = h // (moved.shape[1] // groups) == g
            factor = weight[g, h] if weight.dim() == 2 else weight[h] * own
            out[g] = out[g] + factor * moved[:, h]
    return torch.stack(out, 1)


def across_channels(weight, moved, groups):
    """A matrix, or a scalar per channel, of the mean over each group's query heads."""
    size, out = moved.shape[1] // groups, []
    for g in range(groups):
        mean = sum(moved[:, g * size + i] for i in range(size)) / size
        out.append(mean @ weight.T if weight.dim() == 2 else mean * weight)
    return torch.stack(out, 1)


def attention_update(form, module, moved, groups):
    """What is added to the state, straight from each form's sentence in ``tape``."""
    if form == "tensorial":
        return across_heads(module.weight, moved, groups)
    if form == "separate":
        weights = module.cos.weight, module.sin.weight
        parts = [across_heads(weight, half, groups) for weight, half in zip(weights, halves(moved), strict=True)]
    else:
        function = across_channels if form == "vector" else across_heads
        parts = [function(module.weight, half, groups) for half in halves(moved)]
    return torch.cat(parts, -1)


def feed_forward(form, layer, e, y):
    """W_down diag(SiLU(W_x y)) W_up e, each of the two halves on its own."""
    gate, parts = F.silu(y @ layer.gate.weight.T), []
    for index, half in enumerate(halves(e)):
        if form == "separate":
            name = ("cos", "sin")[index]
            up, down = getattr(layer.expand, name).weight, getattr(layer.contract, name).weight
        else:
            up, down = layer.expand.weight, layer.contract.weight
        if form in ("tensorial", "separate"):
            inner = torch.einsum("ig,bgtx->bitx", up, half) * gate.transpose(1, 2)[..., None]
            parts.append(torch.einsum("gi,bitx->bgtx", down, inner))
        elif form == "vector":
            parts.append(((half @ up.T) * gate[:, None]) @ down.T)
        else:
            flat = torch.cat([half[:, g] for g in range(half.shape[1])], dim=-1)
            out = (flat @ up.T * gate) @ down.T
            parts.append(torch.stack(out.split(half.shape[-1], dim=-1), dim=1))
    return torch.cat(parts, -1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("heads, update", [("mha", "scale"), ("gqa", "mix"), ("gqa", "scale"), ("mqa", "mix")])
def test_an_update_is_its_definition(heads, update, form):
    """Both updates in a row, forward and every gradient."""
    H, G = HEADS[heads]["num_attention_heads"], HEADS[heads]["num_key_value_heads"]
    layer = layer_of(heads, form, update)
    C = layer.columns
    assert layer.whole_halves == (form in ("vector", "flattened")) == (C > K)
    shapes = ((B, G, T, C), (B, H, T, C), (B, T, 32))
    state, moved, y = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    start = torch.randn(B, 1, T, C, dtype=torch.float64)
    mine = current(start, layer.next_state(start, state, moved, y))
    e = start + state + attention_update(form, layer.attend, moved, G)
    theirs = e + feed_forward(form, layer, e, y)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    leaves, direction = [state, moved, y, *layer.parameters()], torch.randn_like(mine)
    gradients = (torch.autograd.grad(x, leaves, direction) for x in (mine, theirs))
    for a, b in zip(*gradients, strict=True):
        assert b.abs().max() > 0
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
