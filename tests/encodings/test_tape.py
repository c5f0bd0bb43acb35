"""``tape``: one layer's updates against the formulas in fp64, and the promises about what is stored."""

import peft
import pytest
import torch
from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as LORA_TARGETS
from torch import nn
from torch.nn import functional as F

from tape_ds import encodings
from tape_ds.attention.attend import attend_with_weights
from tape_ds.encodings import registry
from tape_ds.encodings.tape import current
from tape_ds.kernels import reference
from tests.models.helpers import HEADS, norms_in_own_dtype, rounding, tiny_config, tiny_model, tokens

UPDATES = [
    "tape",
    "tape scale",
    "tape feed-forward only",
    "tape attention only",
    "tape unit",
    "tape unit identity",
]
B, T, K = 2, 7, 8


def layer_of(heads, encoding, dtype=torch.float64):
    """The first block's position layer with random weights."""
    layer = tiny_model(heads, encoding, position_encoding="tape").model.layers[0].position
    return layer.to(dtype)


def written_out(layer, heads, q, k, v, start, e, y):
    """One layer's life of the state, straight from the definition, on the whole ``e``: out [B, H, T, K] and new e."""
    H, G = heads["num_attention_heads"], heads["num_key_value_heads"]
    out, carried = torch.zeros_like(q), torch.zeros(B, H, T, K, dtype=q.dtype)
    cos, sin = e[..., : K // 2], e[..., K // 2 :]
    start_modulus = (start[..., : K // 2] ** 2 + start[..., K // 2 :] ** 2).sqrt()

    def with_modulus_of_start(x):
        own = (x[..., : K // 2] ** 2 + x[..., K // 2 :] ** 2).sqrt()
        return x * (start_modulus / own).repeat(1, 1, 1, 2)

    def turn(x, g):
        a, b = x[..., : K // 2], x[..., K // 2 :]
        return torch.cat((a * cos[:, g] - b * sin[:, g], b * cos[:, g] + a * sin[:, g]), -1)

    for h in range(H):
        g = h // (H // G)
        scores = turn(q[:, h], g) @ turn(k[:, g], g).mT / K**0.5
        A = torch.softmax(scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf), -1)
        out[:, h], carried[:, h] = A @ v[:, g], A @ e[:, g]
    if layer.attend is not None:
        W = layer.attend.weight
        if W.dim() == 1:  # scale: s_h in the column of head h, in the row of its group
            W = torch.zeros(G, H, dtype=W.dtype).scatter(0, (torch.arange(H) // (H // G))[None], W[None])
        if layer.identity:
            W = W + torch.tensor([[(h // (H // G) == g) / (H // G) for h in range(H)] for g in range(G)])
        if layer.unit_attended:
            carried = with_modulus_of_start(carried)
        e = e + torch.einsum("gh,bhtk->bgtk", W, carried)
    if layer.gate is not None:
        gate = F.silu(y @ layer.gate.weight.T)
        up = torch.einsum("ih,bhtk->bitk", layer.expand.weight, e)
        e = e + torch.einsum("gi,bti,bitk->bgtk", layer.contract.weight, gate, up)
    return out, with_modulus_of_start(e) if layer.unit else e


def as_the_model_does(layer, q, k, v, start, state, y):
    """The same through the layer's hooks, in the order the block calls them."""
    carried = layer.carry(start, state, v)
    values = [v] if carried is None else [v, carried]
    (out, *moved), _ = attend_with_weights(*layer.rotate(q, k, start, state), values)
    state = layer.next_state(start, state, moved[0] if moved else None, y)
    return out, current(start, state)


@pytest.mark.parametrize("first", [True, False], ids=["first layer", "later layer"])
@pytest.mark.parametrize("encoding", UPDATES)
@pytest.mark.parametrize("heads", HEADS)
def test_a_layer_is_its_definition(heads, encoding, first):
    """Forward and every gradient, in fp64, where only a wrong formula can differ."""
    layer, sizes = layer_of(heads, encoding), HEADS[heads]
    H, G = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    shapes = ((B, H, T, K), (B, G, T, K), (B, G, T, K), (B, G, T, K), (B, T, 32))
    q, k, v, state, y = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    start = torch.randn(B, 1, T, K, dtype=torch.float64)
    if first:
        state = None
    mine = as_the_model_does(layer, q, k, v, start, state, y)
    theirs = written_out(layer, sizes, q, k, v, start, current(start, state).expand(B, G, T, K), y)
    directions = [torch.randn_like(x) for x in mine]
    leaves = [x for x in (q, k, v, state, y, *layer.parameters()) if x is not None]
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    gradients = (torch.autograd.grad(x, leaves, directions, allow_unused=True) for x in (mine, theirs))
    for a, b in zip(*gradients, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("heads", HEADS)
def test_feed_forward_equals_the_direct_form(heads):
    """The G x G matrix per token is an optimisation of ``kernels.reference.position_mix`` and nothing else."""
    layer = layer_of(heads, "tape feed-forward only", torch.float32)
    groups = HEADS[heads]["num_key_value_heads"]
    start, state, y = torch.randn(1, 1, T, K), torch.randn(B, groups, T, K), torch.randn(B, T, 32)
    update = layer.next_state(start, state, None, y) - state
    gate = F.linear(y, layer.gate.weight)
    expected = reference.position_mix(start + state, gate, layer.expand.weight, layer.contract.weight)
    torch.testing.assert_close(update, expected, rtol=0, atol=1e-5)


def test_everything_off_is_rope():
    """The ablation with neither update: no parameters, no carried columns, no state."""
    off = {"attention_update": "off", "feed_forward": False}
    model = tiny_model(encoding="tape", position_options=off)
    rope = tiny_model(encoding="rope")
    rope.load_state_dict(model.state_dict())
    ids = tokens(2, 13)
    assert torch.equal(model(ids).logits, rope(ids).logits)


@pytest.mark.parametrize("encoding", UPDATES)
def test_the_last_layer_has_no_parameters_and_carries_nothing(encoding):
    """Its update is never read; under ZeRO-3 with checkpointing an unused branch would crash the backward pass."""
    model = tiny_model(encoding=encoding)
    *others, last = (layer.position for layer in model.model.layers)
    assert not list(last.parameters())
    assert last.carry(torch.randn(1, 1, 3, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8)) is None
    assert all(list(layer.parameters()) for layer in others)


@pytest.mark.parametrize("encoding", UPDATES)
def test_zero_effect_at_the_start_but_a_gradient_to_leave_it(encoding):
    """The factor next to the state is zero, its partners are not: both zero would never move."""
    model = type(tiny_model())(tiny_config(encoding=encoding))
    for name, weight in model.named_parameters():
        if ".position." in name:
            assert bool((weight == 0).all()) == name.endswith((".attend.weight", ".expand.weight")), name
    gate = [weight for name, weight in model.named_parameters() if ".gate." in name]
    assert all(weight.std().item() == pytest.approx(0.15, rel=0.2) for weight in gate)


def accumulate(state_dtype, deviation):
    """32 layers, each adding 1e-3 to every entry of the state, stored as the layer stores it or as ``e`` itself."""
    config = tiny_config(num_hidden_layers=33, encoding="tape attention only", state_dtype=state_dtype)
    start = registry.build(config).start(torch.arange(64)[None, :, None])
    update = torch.full((1, 2, 64, 8), 1e-3, dtype=torch.bfloat16)
    layer = registry.build_layer(config, 0)
    with torch.no_grad():  # every state is what its group's first head saw
        layer.attend.weight.copy_(torch.eye(2).repeat_interleave(2, dim=1) * torch.tensor([1.0, 0.0, 1.0, 0.0]))
    moved = update.repeat_interleave(2, dim=1)
    state = None
    stored = start.bfloat16().expand_as(update)
    with torch.no_grad():
        for _ in range(32):
            state = layer.next_state(start, state, moved, None)
            stored = stored + update
    total = current(start, state) - start if deviation else stored.float() - start.bfloat16().float()
    return float((total / (32 * update.float()) - 1).abs().mean()), state.dtype


def test_small_updates_survive_bf16():
    """The deviation is what is stored: next to a cosine near 1 bf16 cannot hold 1e-3, next to 0 it can."""
    error, dtype = accumulate(None, deviation=True)
    assert dtype == torch.bfloat16
    assert error < 0.02
    error, dtype = accumulate("float32", deviation=True)
    assert dtype == torch.float32
    assert error < 1e-5


def test_small_updates_would_not_survive_in_e_itself():
    """The counter-test: the same updates added to a bf16 ``e`` are mostly lost."""
    error, _ = accumulate(None, deviation=False)
    assert error > 0.2


@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16"])
def test_state_dtype_is_what_travels(dtype):
    model = tiny_model(state_dtype=dtype).bfloat16()
    seen = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda module, arguments, output: seen.append(output[1].dtype))
    model(tokens(1, 5))
    assert seen == [torch.float32 if dtype == "float32" else torch.bfloat16] * 3


def test_no_module_is_a_linear_layer():
    """An adapter that wraps a Linear whose weight is read elsewhere would be silently ignored."""
    for name, module in tiny_model().named_modules():
        if ".position" in name:
            assert not isinstance(module, (nn.Linear, nn.Embedding, nn.Conv1d)), name


def test_adapters_that_take_every_linear_layer_leave_the_updates_alone():
    """``all-linear`` and every default target list peft knows, on the real model."""
    targets = {name for names in LORA_TARGETS.values() for name in names}
    for wanted in ("all-linear", sorted(targets)):
        wrapped = peft.get_peft_model(tiny_model(), peft.LoraConfig(target_modules=wanted, r=2))
        adapted = [name for name, _ in wrapped.named_parameters() if "lora_" in name]
        assert adapted
        assert not [name for name in adapted if ".position." in name]


@pytest.mark.parametrize("rank, expected", [(None, 8), (3, 3)])
def test_rank(rank, expected):
    layer = tiny_model(position_options={"rank": rank}).model.layers[0].position
    assert layer.expand.weight.shape == (expected, 2)
    assert layer.contract.weight.shape == (2, expected)
    assert layer.gate.weight.shape == (expected, 32)


@pytest.mark.parametrize("form", ["tensorial", "separate", "vector", "flattened"])
@pytest.mark.parametrize("start", ["rope", "yarn"])
def test_every_pair_keeps_its_modulus_through_thirty_trained_layers(start, form):
    """In bf16, where what is stored is rounded in every layer: the error is that of one rounding, not of thirty."""
    angles = {"rope_parameters": tiny_config(encoding="yarn").rope_parameters} if start == "yarn" else {}
    options = {"state_norm": "unit", "form": form, "rank": 5}
    model = tiny_model("gqa", "tape", position_options=options, num_hidden_layers=31, **angles).bfloat16().train()
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
                lambda _, given, named: seen.append((named["inputs"].start, given[1])), with_kwargs=True
            )
        model(tokens(2, 40))
    for start, state in seen[1:]:
        pairs, own = ((x.unflatten(-1, (2, -1))) for x in (start.float() + state.float(), start.float()))
        length = state.float().unflatten(-1, (2, -1)).norm(dim=-2)
        off = (pairs.norm(dim=-2) - own.norm(dim=-2)).abs()
        assert (off <= torch.finfo(torch.bfloat16).eps * length + 1e-6).all()
    assert seen[-1][1].float().norm() > 0.2 * seen[-1][0].expand_as(seen[-1][1]).norm(), "states have turned"


@pytest.mark.parametrize("encoding", UPDATES)
def test_in_fp64_a_shift_of_all_positions_changes_nothing(encoding, monkeypatch):
    """Where angles are not rounded to fp32, as RopeEncoding.start does after the shift."""
    norms_in_own_dtype(monkeypatch)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    model, ids = tiny_model("gqa", encoding).double(), tokens(2, 33)
    places = torch.arange(33)[None]
    with torch.no_grad():
        logits, shifted = (model(ids, position_ids=places + shift).logits for shift in (0, 1000))
    torch.testing.assert_close(logits, shifted, rtol=0, atol=1e-12)


def test_a_state_that_stays_a_rotation_begins_as_the_llama():
    """No update, no deviation, to the last bit; the Llama's logits to the rounding of attention with a wider value."""
    model = type(tiny_model())(tiny_config(encoding="tape unit")).eval()
    plain, rope = tiny_model(encoding="tape"), tiny_model(encoding="rope")
    own = model.state_dict()
    for other in (plain, rope):
        other.load_state_dict({name: own[name] for name in other.state_dict()})
    ids = tokens(2, 13)
    assert torch.equal(model(ids).logits, plain(ids).logits)
    torch.testing.assert_close(model(ids).logits, rope(ids).logits, rtol=0, atol=rounding(model, ids))


@pytest.mark.parametrize("form", ["tensorial", "separate"])
@pytest.mark.parametrize("update", ["mix", "scale"])
def test_identity_begins_with_the_mean_over_a_group_s_own_heads(form, update):
    options = {"form": form, "attention_update": update, "attention_init": "identity", "feed_forward": False}
    layer = registry.build_layer(tiny_config("gqa", "tape", position_options=options), 0)
    for weight in layer.parameters():
        torch.nn.init.zeros_(weight)
    start, moved = torch.randn(1, 1, T, K), torch.randn(B, 4, T, K)
    expected = moved.unflatten(1, (2, 2)).mean(dim=2)
    torch.testing.assert_close(layer.next_state(start, None, moved, torch.zeros(B, T, 32)), expected)


@pytest.mark.parametrize(
    "options, field",
    [
        ({"state_norm": "unit", "start": "alibi"}, "state_norm"),
        ({"attention_norm": "unit", "start": "alibi"}, "attention_norm"),
        ({"attention_norm": "unit", "attention_update": "off"}, "attention_norm"),
        ({"state_norm": "unit", "attention_update": "off"}, "state_norm"),
        ({"attention_init": "identity", "attention_update": "off"}, "attention_init"),
        ({"attention_init": "identity", "form": "vector"}, "attention_init"),
        ({"state_norm": "units"}, "state_norm"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, field):
    (problem,) = encodings.check_options("tape", options)
    assert problem.field == f"position_options.{field}" and problem.remedy
