"""The change under a shift: its definition, and which encodings are invariant."""

import math

import pytest
import torch

from tape_ds.encodings.rope import RopeEncoding
from tape_ds.scoring.inspection import LayerView, PositionMap
from tests.models.helpers import ENCODINGS, INVARIANT, tiny_model, tokens
from tools.experiments import stability

LAYERS = (1, 2, 3)
FORMS = ("tape separate", "tape vector", "tape flattened")


def measured(encoding, dtype=torch.float64, length=32, **changes):
    """By treatment, of an untrained model whose updates are filled with random numbers."""
    model = tiny_model(encoding=encoding, **changes)
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
    return stability.changes(model, tokens(1, length)[0], LAYERS, token=1)


def largest_change(figures):
    """Of a query's attention weights, over the layers."""
    return max(each["attention_l1"] for each in figures["layers"].values())


def exact_start(self, positions_BTN):
    """RoPE's start without the rounding to fp32 at its end."""
    angles_BTC = positions_BTN[..., :1].double() * torch.from_numpy(self.frequencies.array)
    return (
        torch.cat((angles_BTC.cos(), angles_BTC.sin()), dim=-1)[:, None] * self.frequencies.factor
    )


@pytest.mark.parametrize("encoding", ["rope", "tape", "tape scale", "tape unit"])
def test_shifted_ids_change_rope_and_tape_by_rounding_alone(encoding, monkeypatch):
    """What is left in fp64 is the rounding of the start to fp32; with an exact start, fp64's own."""
    change = largest_change(measured(encoding)["shift_ids"])
    monkeypatch.setattr(RopeEncoding, "start", exact_start)
    exact = largest_change(measured(encoding)["shift_ids"])
    print(f"{encoding}: {change:.1e}, with an exact start {exact:.1e}")
    assert change < 1e-6 and exact < 1e-12


@pytest.mark.parametrize("encoding", FORMS)
def test_shifted_ids_change_the_forms_that_are_not_equivariant(encoding):
    figures = measured(encoding)["shift_ids"]
    assert largest_change(figures) > 1e-4 and figures["logits"]["relative_percent"] > 0.01
    assert figures["layers"][1]["positions_percent"] < 1e-4, "the start is RoPE's"
    assert figures["layers"][3]["positions_percent"] > 0.01


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name in INVARIANT])
def test_what_promises_invariance_is_stable_under_shifted_ids(encoding):
    figures = measured(encoding, torch.float32)["shift_ids"]
    assert largest_change(figures) < 1e-5 and figures["logits"]["largest"] < 2e-5


def test_added_tokens_change_what_tape_makes_of_positions_but_not_where_it_starts():
    rope, tape = (measured(name)["add_tokens"]["layers"] for name in ("rope", "tape"))
    assert all(each["positions_percent"] < 1e-4 for each in rope.values())
    assert tape[1]["positions_percent"] < 1e-4 < 0.1 < tape[2]["positions_percent"]
    assert all(each["attention_l1"] > 0.01 for each in (*rope.values(), *tape.values()))


def view(weights, rows=None):
    given = None if rows is None else PositionMap("dot product", lambda: torch.tensor([rows]))
    return LayerView(1, torch.tensor([weights]), given)


BEFORE = [[1.0, 0.0], [0.5, 0.5]]
AFTER = [[1.0, 0.0, 0.0], [0.2, 0.8, 0.0], [0.6, 0.1, 0.3]]


def test_figures_are_those_of_the_definitions():
    """By hand: a text of two tokens after one that was added."""
    behind = [[9.0, 9.0, 9.0], [9.0, 3.0, 9.0], [9.0, 4.0, 0.0]]
    found = stability.layer_changes(
        view(BEFORE, [[3.0, 7.0], [0.0, 4.0]]), view(AFTER, behind), added=1
    )
    assert found["attention_l1"] == pytest.approx((0.2 + 0.4 + 0.2) / 2)
    assert found["attention_l1_renormalised"] == pytest.approx((0 + 0.25 + 0.25) / 2)
    assert found["positions_percent"] == pytest.approx(100 * math.sqrt(32) / 5)
