"""RULER's figures: intervals, effective lengths with their probability, and differences from a base."""

import pytest
from scipy.stats import binomtest

from tape_ds.scoring import ruler


def replies(shares, samples=100, tasks=("vt", "cwe")):
    """Replies of which each length's share is right, in every task."""
    return [
        {"task": task, "length": length, "tokens": length - 30, "score": float(number < share * samples)}
        for task in tasks
        for length, share in shares.items()
        for number in range(samples)
    ]


@pytest.mark.parametrize(("right", "asked"), [(0, 5), (3, 25), (25, 25), (430, 500)])
def test_wilsons_interval_is_scipys(right, asked):
    expected = binomtest(right, asked).proportion_ci(method="wilson")
    assert ruler.wilson(right, asked) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_effective_lengths_by_both_rules():
    figures = ruler.figures(replies({4096: 0.9, 8192: 0.86, 16384: 0.80, 32768: 0.5}), seed=0)
    published, own = figures["effective"]["published"], figures["effective"]["own"]
    assert (published["length"], published["threshold"]) == (8192, 0.856)
    # 200 questions of 0.86: the standard error is 0.0245
    assert 0.5 < published["probability"] < 0.65
    assert own["length"] == 16384 and own["threshold"] == pytest.approx(0.765)
    assert own["probability"] > 0.8
    assert figures["lengths"][0]["reaches_own"] == 1.0
    assert figures["lengths"][3]["reaches_published"] == 0.0
    for each in figures["lengths"]:
        assert each["low"] <= each["mean"] <= each["high"] and each["tasks"] == 2


def test_none_reaches_the_threshold():
    found = ruler.figures(replies({4096: 0.5}), seed=0)["effective"]["published"]
    assert (found["length"], found["probability"]) == (None, 0.0)


def test_the_mean_is_of_tasks_and_the_bootstrap_of_questions():
    few = replies({4096: 1.0}, samples=4, tasks=("vt",)) + replies({4096: 0.0}, samples=400, tasks=("cwe",))
    (row,) = ruler.figures(few, seed=0)["lengths"]
    assert (row["mean"], row["low"], row["high"]) == (0.5, 0.5, 0.5)
    assert ruler.figures(replies({4096: 0.7}), seed=3) == ruler.figures(replies({4096: 0.7}), seed=3)
    (row,) = ruler.figures(replies({4096: 0.7}), seed=0)["lengths"]
    assert row["high"] - row["low"] == pytest.approx(2 * 1.96 * (0.7 * 0.3 / 200) ** 0.5, rel=0.1)


def test_differences_are_of_the_same_questions():
    """Both models fail the same questions, so that the difference has no spread although the scores have."""
    base, own = replies({4096: 0.8, 8192: 0.3}), replies({4096: 0.8, 16384: 0.5})
    (row,) = ruler.figures(own, seed=0, against=base)["differences"]
    assert (row["length"], row["base"], row["difference"], row["low"], row["high"]) == (4096, 0.8, 0.0, 0.0, 0.0)
    (row,) = ruler.figures(replies({4096: 0.7}), seed=0, against=base)["differences"]
    assert row["difference"] == pytest.approx(-0.1) and row["low"] < -0.1 < row["high"] < 0
