"""The option of every encoding: a random common offset of positions in training."""

import pytest
import torch

from tape_ds import encodings
from tape_ds.encodings import base, registry
from tests.models.helpers import INVARIANT, tiny_config, tiny_model, tokens

REFUSING = ("bipe_alibi", "bipe_rope", "randpe")


def with_shift(name, largest):
    options = {**(tiny_config(encoding=name).position_options or {}), "random_shift": largest}
    return tiny_config(encoding=name, position_options=options)


def no_text():
    return base.TokenContext(None, None, 0, None)


def test_offsets_are_drawn_evenly_from_the_whole_range():
    """Both ends are reached, nothing beyond them, and all tokens and rows move together."""
    encoding = registry.build(with_shift("rope", 3)).train()
    places = torch.tensor([[0, 1, 9], [4, 4, 100]])
    offsets = []
    for _ in range(200):
        moved = encoding.positions_for(places, no_text())[..., 0] - places
        assert len(moved.unique()) == 1
        offsets.append(int(moved[0, 0]))
    assert {offset: offsets.count(offset) > 25 for offset in offsets} == dict.fromkeys(
        range(4), True
    )


def test_only_training_draws():
    encoding, places = registry.build(with_shift("rope", 1000)), torch.arange(9)[None]
    assert torch.equal(encoding.eval().positions_for(places, no_text())[..., 0], places)
    before = torch.get_rng_state()
    registry.build(tiny_config(encoding="rope")).train().positions_for(places, no_text())
    assert torch.equal(torch.get_rng_state(), before), (
        "an encoding that draws nothing leaves the generator alone"
    )


def test_torch_s_seed_decides_the_offset_on_any_default_device():
    encoding, places, drawn = (
        registry.build(with_shift("rope", 10**6)).train(),
        torch.arange(9)[None],
        [],
    )
    for seed, device in ((1, "cpu"), (2, "cpu"), (1, "meta")):
        torch.manual_seed(seed)
        with torch.device(device):
            drawn.append(encoding.positions_for(places, no_text()))
    assert torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[1])


@pytest.mark.parametrize("name", ["rope", "alibi", "sincos", "tape separate", "tape abacus"])
def test_an_offset_is_seen_where_no_invariance_is_promised(name):
    """All layers share it: with a promise the logits stay, and without one an offset is what training has to vary."""
    model = tiny_model(encoding=name, position_options=with_shift(name, 500).position_options)
    ids, logits = tokens(2, 20), []
    for training in (False, True):
        torch.manual_seed(1)
        logits.append(model.train(training)(ids).logits)
    same = torch.allclose(*logits, rtol=0, atol=2e-5)
    assert same == (name in INVARIANT)


@pytest.mark.parametrize("name", REFUSING)
def test_positions_that_are_not_read_or_drawn_already_cannot_be_shifted(name):
    """A shift would do nothing, or push positions out of the window that randpe draws for, in the middle of a run."""
    given = tiny_config(encoding=name).position_options or {}
    assert encodings.check_options(name, given) == []
    (problem,) = encodings.check_options(name, {**given, "random_shift": 3})
    assert problem.field == "position_options.random_shift"
