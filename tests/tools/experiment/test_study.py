"""Arms over seeds and against a reference: pairs, significance and verdicts."""

import math

import pytest

from tape_ds import results
from tape_ds.errors import UserError
from tools.experiment.published import Quantity
from tools.experiment.study import Measure, Study, StudyRow, verdict

LOSS = Quantity("", "loss_past_native")
SHARE = Quantity("look_back", "accuracy", 72)


def rows(arm, values, quantity=LOSS, first=0):
    return [StudyRow(arm, seed, {quantity: value}) for seed, value in enumerate(values, first)]


def study(*found, asked=""):
    return Study([row for part in found for row in part], "rope", asked)


def sentence(*found):
    made = study(*found)
    return verdict(made, made.claims[0])


ROPE = rows("rope", [5.0, 6.0, 7.0, 8.0, 5.0, 6.0, 7.0, 8.0])


def moved(arm, *differences):
    return rows(
        arm, [row.figures[LOSS] + each for row, each in zip(ROPE, differences, strict=False)]
    )


def test_differences_are_paired_by_seed():
    """A seed that one of both lacks counts for neither."""
    found = study(rows("rope", [5.0, 6.0, 7.0]), rows("tape", [6.5, 7.5, 9.0], first=1)).claims[0]
    assert found.differences == {1: 0.5, 2: 0.5} and found.found.n == 2 and found.p == 0.5


def test_an_arm_is_better_where_the_test_says_so():
    """Eight seeds, all the same way: p = 2 / 256."""
    better = sentence(ROPE, moved("tape", *[-1.0, -2.0] * 4))
    assert better == "tape: better than rope by 1.500 (95 %: 1.053 to 1.947, n = 8)."
    assert sentence(ROPE, moved("tape", *[1.0, 2.0] * 4)).startswith(
        "tape: worse than rope by 1.500 (95 %: 1.053"
    )


def test_of_a_share_more_is_better_and_differences_are_points():
    rope, tape = rows("rope", [25.0] * 8, SHARE), rows("tape", [35.0, 45.0] * 4, SHARE)
    assert (
        sentence(rope, tape) == "tape: better than rope by 15.0 points (95 %: 10.5 to 19.5, n = 8)."
    )


def test_claims_are_corrected_for_there_being_several():
    """With eight seeds p = 2 / 256 each; of seven claims Holm's are 0.055 for all of them."""
    arms = [moved(f"arm {number}", *[-1.0, -2.0] * 4) for number in range(7)]
    assert "better than rope by 1.500 (95 %: 1.053 to 1.947, n = 8)." in sentence(ROPE, *arms[:6])
    found = study(ROPE, *arms)
    assert [each.p_holm for each in found.claims] == pytest.approx([14 / 256] * 7)
    assert "Holm's p 0.055" in verdict(found, found.claims[0])


def test_an_arm_that_diverged_is_one_of_the_claims():
    found = study(
        ROPE, moved("tape", *[-1.0, -2.0] * 4), moved("other", math.nan, *[0.0] * 7)
    ).claims
    assert [each.p for each in found] == [2 / 256, 1.0] and found[0].p_holm == 2 * 2 / 256


def test_single_runs_and_missing_seeds_have_no_verdict():
    assert "no interval" in sentence(ROPE[:1], moved("tape", -1.0))
    assert "no verdict" in sentence(ROPE, rows("tape", [math.nan, 1.0]))
    assert "shares no seed with rope" in sentence(ROPE, rows("tape", [1.0], first=20))
    assert "shares no seed with rope" in sentence(rows("tape", [1.0, 2.0])), "the reference failed"
    assert study([StudyRow("untouched", None, {LOSS: 1.0})], ROPE).claims == []


def test_the_primary_figure_is_named_with_or_without_its_task():
    both = [
        StudyRow("rope", 0, {SHARE: 1.0, Quantity("look_back", "accuracy", 96): 0.0, LOSS: 2.0})
    ]
    for name in ("accuracy_72", "look_back_accuracy_72"):
        assert study(both, asked=name).primary == Measure(SHARE)
    for wrong in ("accuracy_7", "accuracy"):
        with pytest.raises(UserError, match="look_back_accuracy_96"):
            study(both, asked=wrong)


def test_a_difference_within_a_run_is_compared_with_0():
    """An arm without updates has nothing to switch off, and no claim."""
    by_updates = Quantity("", "loss_by_updates")
    norms = [StudyRow("rope", seed, {LOSS: 1.5}) for seed in (0, 1)]
    made = study(norms, rows("tape", [0.25, 0.5], by_updates), asked="loss_by_updates")
    (claim,) = made.claims
    assert (claim.arm, claim.differences) == ("tape", {0: 0.25, 1: 0.5})
    assert made.figures()["reference"] == "itself with updates off"


def test_everything_is_stored(tmp_path):
    found = study(ROPE, moved("tape", *[-1.0, -2.0] * 4))
    path = results.save(results.collect(command=["x"]).finish(found.figures()), tmp_path / "x.json")
    figures = results.load(path).figures
    assert (figures["reference"], figures["primary"], figures["seeds"]) == (
        "rope",
        "loss_past_native",
        list(range(8)),
    )
    assert figures["arms"]["tape"]["loss_past_native"]["values"]["1"] == 4.0
    (claim,) = figures["claims"]
    assert claim["p"] == claim["p_holm"] == 2 / 256 and claim["interval"] == pytest.approx(
        [-1.947, -1.053], abs=1e-3
    )
    assert claim["differences"]["7"] == -2.0 and claim["verdict"].startswith(
        "tape: better than rope"
    )


def test_a_figure_of_unknown_direction_is_refused_as_primary():
    """A correlation taken for a loss would have a verdict of the wrong sign."""
    correlation = Quantity("cola", "mcc")
    with pytest.raises(UserError, match="unknown whether more or less of it is better"):
        study(
            rows("rope", [20.0] * 6, correlation),
            rows("tape", [40.0] * 6, correlation),
            asked="mcc",
        )
