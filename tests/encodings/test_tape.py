"""``tape``: one layer's updates against the formulas in fp64, and the promises about what is stored."""

import peft
import pytest
import torch
from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as LORA_TARGETS
from torch.nn import functional as F

from tape_ds import encodings
from tape_ds.attention.attend import attend_with_weights
from tape_ds.encodings.tape import current
from tests.models.helpers import HEADS, rounding, tiny_config, tiny_model, tokens

UPDATES = [
    "tape",
    "tape scale",
    "tape feed-forward only",
    "tape attention only",
    "tape separate",
    "tape vector",
    "tape vector scale",
    "tape flattened",
    "tape unit",
    "tape unit identity",
]
B, T, K = 2, 7, 8


def halves(x):
    """Cosines and sines."""
    return x.chunk(2, dim=-1)


def across_heads(weight, moved, groups, identity=False):
    """W_att of the paper [G, H], or one scalar per query head [H] into its own group: [B, H, T, X] -> [B, G, T, X];
    ``identity``: the weight is counted from the mean over each group's own heads."""
    size, out = moved.shape[1] // groups, [torch.zeros_like(moved[:, 0]) for _ in range(groups)]
    for g in range(groups):
        for h in range(moved.shape[1]):
            own = h // size == g
            factor = weight[g, h] if weight.dim() == 2 else weight[h] * own
            out[g] = out[g] + (factor + identity * own / size) * moved[:, h]
    return torch.stack(out, 1)


def across_channels(weight, moved, groups):
    """A matrix, or a scalar per channel, of the mean over each group's query heads."""
    size, out = moved.shape[1] // groups, []
    for g in range(groups):
        mean = sum(moved[:, g * size + i] for i in range(size)) / size
        out.append(mean @ weight.T if weight.dim() == 2 else mean * weight)
    return torch.stack(out, 1)


def attention_update(layer, moved, groups):
    """What is added to the state, each of the two halves on its own."""
    parts = []
    for name, half in zip(("cos", "sin"), halves(moved), strict=True):
        weight = (getattr(layer.attend, name) if layer.form == "separate" else layer.attend).weight
        if layer.form == "vector":
            parts.append(across_channels(weight, half, groups))
        else:
            parts.append(across_heads(weight, half, groups, layer.identity))
    return torch.cat(parts, -1)


def feed_forward(layer, e, y):
    """W_down diag(SiLU(W_x y)) W_up e, each of the two halves on its own."""
    gate, parts = F.silu(y @ layer.gate.weight.T), []
    for name, half in zip(("cos", "sin"), halves(e), strict=True):
        up, down = layer.expand, layer.contract
        if layer.form == "separate":
            up, down = getattr(up, name), getattr(down, name)
        up, down = up.weight, down.weight
        if layer.form in ("tensorial", "separate"):
            inner = torch.einsum("ig,bgtx->bitx", up, half) * gate.transpose(1, 2)[..., None]
            parts.append(torch.einsum("gi,bitx->bgtx", down, inner))
        elif layer.form == "vector":
            parts.append(((half @ up.T) * gate[:, None]) @ down.T)
        else:
            flat = torch.cat([half[:, g] for g in range(half.shape[1])], dim=-1)
            out = (flat @ up.T * gate) @ down.T
            parts.append(torch.stack(out.split(half.shape[-1], dim=-1), dim=1))
    return torch.cat(parts, -1)


def with_modulus_of(start, x):
    """Every pair (cos_j, sin_j) stretched to its length in ``start``."""
    length, own = (sum(half**2 for half in halves(each)).sqrt() for each in (start, x))
    return x * (length / own).repeat(1, 1, 1, 2)


def written_out(layer, q, k, v, start, e, y):
    """One layer's life of the state, straight from the definition, on the whole ``e``: out [B, H, T, K] and new e."""
    (H, G), out, carried = (q.shape[1], k.shape[1]), [], []
    cos, sin = halves(e)
    if cos.shape[-1] < K:  # the two halves of a rotation are alike
        cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)

    def turned(x, g):
        a, b = halves(x)
        return x * cos[:, g] + torch.cat((-b, a), -1) * sin[:, g]

    for h in range(H):
        g = h // (H // G)
        scores = turned(q[:, h], g) @ turned(k[:, g], g).mT / K**0.5
        A = torch.softmax(scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf), -1)
        out.append(A @ v[:, g])
        carried.append(A @ e[:, g])
    if layer.attend is not None:
        moved = torch.stack(carried, 1)
        e = e + attention_update(
            layer, with_modulus_of(start, moved) if layer.unit_attended else moved, G
        )
    if layer.gate is not None:
        e = e + feed_forward(layer, e, y)
    return torch.stack(out, 1), with_modulus_of(start, e) if layer.unit else e


def as_the_model_does(layer, q, k, v, start, state, y):
    """The same through the layer's hooks, in the order the block calls them."""
    carried = layer.carry(start, state, v)
    values = [v] if carried is None else [v, carried]
    (out, *moved), _ = attend_with_weights(*layer.rotate(q, k, start, state), values)
    state = layer.next_state(start, state, moved[0] if moved else None, y)
    return out, current(start, state)


@pytest.mark.parametrize("first", [True, False], ids=["first layer", "later layer"])
@pytest.mark.parametrize(
    "heads, encoding",
    [
        *(("gqa", name) for name in UPDATES),
        ("mha", "tape scale"),
        ("mqa", "tape unit"),
        ("mqa", "tape flattened"),
    ],
)
def test_a_layer_is_its_definition(heads, encoding, first):
    """Forward and every gradient, in fp64, where only a wrong formula can differ."""
    layer = tiny_model(heads, encoding).model.layers[0].position.double()
    H, G, C = *HEADS[heads].values(), layer.columns
    shapes = ((B, H, T, K), (B, G, T, K), (B, G, T, K), (B, G, T, C), (B, T, 32))
    q, k, v, state, y = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes
    )
    start = torch.randn(B, 1, T, C, dtype=torch.float64)
    if first:
        state = None
    mine = as_the_model_does(layer, q, k, v, start, state, y)
    theirs = written_out(layer, q, k, v, start, current(start, state).expand(B, G, T, C), y)
    directions = [torch.randn_like(x) for x in mine]
    leaves = [x for x in (q, k, v, state, y, *layer.parameters()) if x is not None]
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    gradients = (
        torch.autograd.grad(x, leaves, directions, allow_unused=True) for x in (mine, theirs)
    )
    for a, b in zip(*gradients, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_everything_off_is_rope():
    """The ablation with neither update: no parameters, no carried columns, no state."""
    off = {"attention_update": "off", "feed_forward": False}
    model = tiny_model(encoding="tape", position_options=off)
    rope = tiny_model(encoding="rope")
    rope.load_state_dict(model.state_dict())
    ids = tokens(2, 13)
    assert torch.equal(model(ids).logits, rope(ids).logits)


@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16"])
def test_state_dtype_is_what_travels(dtype):
    model = tiny_model(state_dtype=dtype).bfloat16()
    seen = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda module, arguments, output: seen.append(output[1].dtype))
    model(tokens(1, 5))
    assert seen == [torch.float32 if dtype == "float32" else torch.bfloat16] * 3


def test_adapters_that_take_every_linear_layer_leave_the_updates_alone():
    """``all-linear`` and every default target list peft knows, on the real model."""
    targets = {name for names in LORA_TARGETS.values() for name in names}
    for wanted in ("all-linear", sorted(targets)):
        wrapped = peft.get_peft_model(tiny_model(), peft.LoraConfig(target_modules=wanted, r=2))
        adapted = [name for name, _ in wrapped.named_parameters() if "lora_" in name]
        assert adapted
        assert not [name for name in adapted if ".position." in name]


@pytest.mark.parametrize("start, form", [("yarn", "tensorial"), ("rope", "flattened")])
def test_every_pair_keeps_its_modulus_through_thirty_trained_layers(start, form):
    """In bf16, where what is stored is rounded in every layer: the error is that of one rounding, not of thirty."""
    angles = (
        {"rope_parameters": tiny_config(encoding="yarn").rope_parameters} if start == "yarn" else {}
    )
    options = {"state_norm": "unit", "form": form, "rank": 5}
    model = (
        tiny_model("gqa", "tape", position_options=options, num_hidden_layers=31, **angles)
        .bfloat16()
        .train()
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        model(ids := tokens(2, 24), labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    seen = []
    with torch.no_grad():
        for layer in model.model.layers:
            layer.register_forward_pre_hook(
                lambda _, given, named: seen.append((named["inputs"].start, given[1])),
                with_kwargs=True,
            )
        model(tokens(2, 40))
    for start, state in seen[1:]:
        pairs, own = (
            (x.unflatten(-1, (2, -1))) for x in (start.float() + state.float(), start.float())
        )
        length = state.float().unflatten(-1, (2, -1)).norm(dim=-2)
        off = (pairs.norm(dim=-2) - own.norm(dim=-2)).abs()
        assert (off <= torch.finfo(torch.bfloat16).eps * length + 1e-6).all()
    assert seen[-1][1].float().norm() > 0.2 * seen[-1][0].expand_as(seen[-1][1]).norm(), (
        "states have turned"
    )


def test_a_state_that_stays_a_rotation_begins_as_the_llama():
    """No update, no deviation, to the last bit; the Llama's logits to the rounding of attention with a wider value."""
    model = type(tiny_model())(tiny_config(encoding="tape unit")).eval()
    plain, rope = tiny_model(encoding="tape"), tiny_model(encoding="rope")
    own = model.state_dict()
    for other in (plain, rope):
        other.load_state_dict({name: own[name] for name in other.state_dict()})
    ids = tokens(2, 13)
    assert torch.equal(model(ids).logits, plain(ids).logits)
    torch.testing.assert_close(
        model(ids).logits, rope(ids).logits, rtol=0, atol=rounding(model, ids)
    )


@pytest.mark.parametrize(
    "options, field",
    [
        ({"state_norm": "unit", "start": "alibi"}, "state_norm"),
        ({"attention_norm": "unit", "attention_update": "off"}, "attention_norm"),
        ({"state_norm": "unit", "attention_update": "off"}, "state_norm"),
        ({"attention_init": "identity", "attention_update": "off"}, "attention_init"),
        ({"attention_init": "identity", "form": "vector"}, "attention_init"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, field):
    (problem,) = encodings.check_options("tape", options)
    assert problem.field == f"position_options.{field}" and problem.remedy
