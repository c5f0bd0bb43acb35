"""Loss spikes: found where they are, not found where a curve only falls or is noisy."""

import json
import math
import random

import pytest

from tape_ds.resilience.spikes import FEWEST, PATIENCE, SpikeDetector


def curve(seed: int, steps: int, noise: float = 0.05) -> list[float]:
    """A loss that falls from 11 to 2.5, with normal noise of a share ``noise`` of it."""
    draws = random.Random(seed)
    return [(2.5 + 8.5 * math.exp(-step / 800)) * draws.gauss(1, noise) for step in range(steps)]


def detector(losses=(), sigma=8.0, window=128) -> SpikeDetector:
    """One that has seen ``losses`` and found no spike in them."""
    made = SpikeDetector(sigma, window)
    assert [made.observe(loss) for loss in losses] == [None] * len(losses)
    return made


def steady(count: int, level: float = 2.0) -> list[float]:
    """Losses around ``level``, 0.02 apart at most."""
    return [level + 0.01 * math.sin(step) for step in range(count)]


def test_a_spike_is_found_and_measured():
    """The deviation of a sine of amplitude a is 1.4826 x 0.71 a."""
    spike = detector(steady(200)).observe(4.0)
    assert spike is not None and not spike.new_level
    assert (spike.value, spike.median) == (4.0, pytest.approx(2.0, abs=0.002))
    assert spike.sigmas == pytest.approx(2.0 / 0.0105, rel=0.05)
    assert "the loss 4 is" in str(spike) and "sigma above 2" in str(spike)


def test_a_noisy_falling_curve_raises_no_alarm_and_hides_no_spike():
    """10,000 steps; at 8 sigma not one, at 6 sigma less than one in a thousand."""
    losses = curve(0, 10_000)
    assert detector(losses).observe(2 * losses[-1]) is not None
    eager = SpikeDetector(6.0, 128)
    assert sum(eager.observe(loss) is not None for loss in losses) < 10


@pytest.mark.parametrize("window", [8, 128])
def test_nothing_is_judged_before_enough_is_known(window):
    enough = min(FEWEST, window)
    assert detector(steady(enough - 1), window=window).observe(100.0) is None
    assert detector(steady(enough), window=window).observe(100.0) is not None


@pytest.mark.parametrize(
    ("level", "next_loss", "found"),
    [
        (2.0, 2.07, False),
        (2.0, 2.09, True),
        (0.0, 0.007, False),
        (0.0, 0.009, True),
        (2.0, 0.1, False),
    ],
)
def test_a_constant_history_makes_no_spike_of_a_ripple(level, next_loss, found):
    """Half a percent of the level, or a thousandth of a nat, counts as one deviation; a fall is never a spike."""
    assert (detector([level] * 50).observe(next_loss) is not None) == found
    assert detector([level] * 50, sigma=0.0).observe(next_loss) is None, "0 sigma: no detector"


def test_another_level_is_accepted_after_some_spikes_in_a_row():
    """And is the level that later spikes stand out from."""
    changed = detector(steady(100))
    found = [changed.observe(loss) for loss in steady(100, level=4.0)]
    assert [spike is not None for spike in found] == [True] * PATIENCE + [False] * (100 - PATIENCE)
    assert [spike.new_level for spike in found[:PATIENCE]] == [False] * (PATIENCE - 1) + [True]
    assert "compared with these" in str(found[PATIENCE - 1])
    assert changed.observe(8.0) is not None


def test_spikes_with_good_losses_between_them_never_make_a_level():
    kept = detector(steady(100))
    for loss in steady(50):
        assert kept.observe(5.0) is not None
        assert kept.observe(loss) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_losses_that_are_not_finite_are_passed_over(bad):
    """They neither count as spikes nor end a row of them."""
    watched = detector(steady(100))
    before = watched.state()
    assert watched.observe(bad) is None
    assert watched.state() == before


@pytest.mark.parametrize("cut", [5, 100, 204])
def test_a_detector_that_comes_back_from_json_goes_on_identically(cut):
    """Cut before anything is judged, in the middle, and between two spikes in a row."""
    losses = [*curve(2, 200), *([30.0] * 12), *curve(3, 100)]
    whole, first = SpikeDetector(8.0, 64), SpikeDetector(8.0, 64)
    found = [whole.observe(loss) for loss in losses]
    for loss in losses[:cut]:
        first.observe(loss)
    second = SpikeDetector(8.0, 64)
    second.load_state(json.loads(json.dumps(first.state())))
    assert [second.observe(loss) for loss in losses[cut:]] == found[cut:]
    assert second.state() == whole.state()
