"""RULER's figures: intervals, effective lengths with their probability, and differences from a base."""

import numpy as np
import pytest
from scipy.stats import binomtest

from tape_ds.scoring import ruler


def replies(shares, samples=100, tasks=("vt", "cwe")):
    """Replies of which each length's share is right, in every task."""
    return [
        {
            "task": task,
            "length": length,
            "tokens": length - 30,
            "score": float(number < share * samples),
        }
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
    few = replies({4096: 1.0}, samples=4, tasks=("vt",)) + replies(
        {4096: 0.0}, samples=400, tasks=("cwe",)
    )
    (row,) = ruler.figures(few, seed=0)["lengths"]
    assert (row["mean"], row["low"], row["high"]) == (0.5, 0.5, 0.5)
    assert ruler.figures(replies({4096: 0.7}), seed=3) == ruler.figures(
        replies({4096: 0.7}), seed=3
    )
    (row,) = ruler.figures(replies({4096: 0.7}), seed=0)["lengths"]
    assert row["high"] - row["low"] == pytest.approx(2 * 1.96 * (0.7 * 0.3 / 200) ** 0.5, rel=0.1)


def test_differences_are_of_the_same_questions():
    """Both models fail the same questions, so that the difference has no spread although the scores have."""
    base, own = replies({4096: 0.8, 8192: 0.3}), replies({4096: 0.8, 16384: 0.5})
    (row,) = ruler.figures(own, seed=0, against=base)["differences"]
    assert (row["length"], row["base"], row["difference"], row["low"], row["high"]) == (
        4096,
        0.8,
        0.0,
        0.0,
        0.0,
    )
    (row,) = ruler.figures(replies({4096: 0.7}), seed=0, against=base)["differences"]
    assert row["difference"] == pytest.approx(-0.1) and row["low"] < -0.1 < row["high"] < 0


def about_texts(replies_of_texts, times):
    """The same replies, each ``times`` times, to questions about one text."""
    return [
        {**reply, "text": number}
        for number, reply in enumerate(replies_of_texts)
        for _ in range(times)
    ]


def test_questions_of_one_text_that_say_the_same_count_once():
    """Five questions about a text were taken for five independent ones: an interval less than half as wide."""
    texts = replies({4096: 0.6, 8192: 0.3}, samples=10)
    once, five_times = (
        ruler.figures(about_texts(texts, 1), seed=0),
        ruler.figures(about_texts(texts, 5), seed=0),
    )
    assert five_times["lengths"] == once["lengths"] and five_times["effective"] == once["effective"]
    for single, cell in zip(once["cells"], five_times["cells"], strict=True):
        assert (cell["samples"], cell["texts"]) == (50, 10)
        assert (cell["low"], cell["high"]) == pytest.approx(
            (single["low"], single["high"]), abs=1e-12
        )
    (row, _) = ruler.figures(about_texts(texts, 5), seed=0, against=about_texts(texts[::-1], 5))[
        "differences"
    ]
    (expected, _) = ruler.figures(texts, seed=0, against=texts[::-1])["differences"]
    assert row == expected and row["low"] < 0 < row["high"]


def test_replies_that_name_no_text_are_independent():
    texts = replies({4096: 0.6}, samples=10)
    named = ruler.figures(about_texts(texts, 1), seed=0)
    plain = ruler.figures(texts, seed=0)
    assert plain["lengths"] == named["lengths"] and "texts" not in plain["cells"][0]
    assert plain["cells"][0]["low"] == ruler.wilson(6, 10)[0]


def test_a_score_of_which_no_text_differs_has_the_interval_of_as_many_texts():
    assert ruler.interval([[1.0] * 5] * 5) == ruler.wilson(5, 5)
    assert ruler.interval([[1.0, 0.0, 1.0]]) == ruler.wilson(2 / 3, 1)


def test_the_design_effect_by_hand():
    low, high = ruler.interval(
        [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 1]]
    )
    # sums 4, 3, 2, 1, 2; share 12 / 20; off 1.6, 0.6, -0.4, -1.4, -0.4
    variance = (1.6**2 + 0.6**2 + 0.4**2 + 1.4**2 + 0.4**2) * 5 / 4 / 400
    effect = variance / (0.6 * 0.4 / 20)
    # Student's t, 19 and 4 degrees of freedom
    independent = 20 / effect * (2.0930240544 / 2.7764451052) ** 2
    expected = binomtest(12, 20).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx(ruler.wilson(0.6 * independent, independent), abs=1e-9)
    assert low < expected.low and high > expected.high


@pytest.mark.parametrize("correlation", [0.1, 0.5, 0.9])
def test_the_interval_covers_the_truth(correlation):
    """Five texts of five questions whose answers depend on the text; 2,000 evaluations."""
    generator = np.random.default_rng(1)
    truth, both = 0.7, (1 - correlation) / correlation
    covered, of_questions = 0, 0
    for _ in range(2000):
        of_texts = generator.beta(truth * both, (1 - truth) * both, size=(5, 1))
        texts = (generator.random((5, 5)) < of_texts).astype(float)
        low, high = ruler.interval(texts.tolist())
        covered += low <= truth <= high
        low, high = ruler.wilson(texts.sum(), 25)
        of_questions += low <= truth <= high
    assert covered / 2000 > 0.93
    assert of_questions < covered and (correlation < 0.5 or of_questions / 2000 < 0.75)
