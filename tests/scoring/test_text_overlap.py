"""F1, exact match and ROUGE against arithmetic done by hand, and against the example in the official scorer's text."""

import pytest

from tape_ds.scoring import text_overlap
from tape_ds.scoring.text_overlap import best, exact_match, f1, normalised, rouge


def score(metric, texts, references):
    """The score in percent, as the benchmark prints it."""
    return 100 * text_overlap.score(
        [best(metric, *pair) for pair in zip(texts, references, strict=True)]
    )


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("The  Cat, a dog!", "cat dog"),
        ("An apple; THE end.", "apple end"),
        ("theatre and another", "theatre and another"),  # articles are whole words
        # punctuation goes first, so no article is left inside
        (
            "state-of-the-art",
            "stateoftheart",
        ),
        ("“quoted” —", "“quoted” —"),  # only ASCII punctuation
        ("a an the", ""),
    ],
)
def test_normalisation(text, same):
    assert normalised(text) == same


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        # "cat sat on mat" against "cat is on mat": 3 shared, precision 3/4, recall 3/4
        ("The cat sat on the mat.", "the cat is on a mat", 3 / 4),
        # 1 shared of 1 and 3 words: precision 1, recall 1/3: 2 * (1/3) / (4/3) = 1/2
        ("budget", "the secret service budget", 1 / 2),
        # bags: "no no no" shares 2 of its 3 with "no no": precision 2/3, recall 1: 2 * (2/3) / (5/3) = 4/5
        ("no no no", "no, no", 4 / 5),
        ("yes", "no", 0.0),
        ("", "no", 0.0),
        ("the", "a", 0.0),  # nothing left on either side shares nothing
    ],
)
def test_f1(text, reference, expected):
    assert f1(text, reference) == (pytest.approx(expected, abs=1e-15),)


def test_exact_match_is_after_normalisation():
    assert exact_match("Entailment.", "entailment") == (1,)
    assert exact_match("the", "a") == (1,)  # as SQuAD's: both are empty
    assert exact_match("Not mentioned", "Entailment") == (0,)


def test_rouge_by_hand():
    # reference: the cat sat on the mat (6 words, 5 pairs); text: the cat is on the mat
    # ROUGE-1: the cat on the mat, 5 of 6 and 6. ROUGE-2: the-cat, on-the, the-mat, 3 of 5 and 5.
    # ROUGE-L: the cat on the mat, 5 of 6 and 6.
    assert rouge("The cat is on the mat!", "the cat sat on the mat") == pytest.approx(
        (5 / 6, 3 / 5, 5 / 6)
    )
    # mat on sat: 3 words of which all are in the reference; no pair in order; longest common subsequence 1
    # ROUGE-1: precision 1, recall 3/6: 2 * (1/2) / (3/2) = 2/3. ROUGE-L: 1/3 and 1/6: 2 * (1/18) / (1/2) = 2/9
    assert rouge("mat on sat", "the cat sat on the mat") == pytest.approx((2 / 3, 0, 2 / 9))


# The example that the official scorer's own text gives.
TEXTS = ["exact match example", "hello there", "general kenobi"]
REFERENCES = [["exact match example"], ["hello", "hi there"], ["commander kenobi"]]


def test_the_official_example_of_exact_match_and_f1():
    assert round(score("exact_match", TEXTS, REFERENCES), 4) == 33.3333
    # "hello there" against "hello" and "hi there": 2/3 and 1/2; "general kenobi": 1/2. (1 + 2/3 + 1/2) / 3 = 13/18
    assert round(score("f1", TEXTS, REFERENCES), 4) == 72.2222


def test_the_official_example_of_rouge():
    found = score("rouge", TEXTS, REFERENCES)  # averages of the three: 72.2222, 33.3333, 72.2222
    assert round(found, 4) == 55.8136
    assert found == pytest.approx(100 * (13 / 18 * 1 / 3 * 13 / 18) ** (1 / 3))


def test_each_part_chooses_its_own_reference():
    references = ["d c b a", "a b x y z u v w"]
    # a b c d against the first: 1, 0, 1/4. Against the second: 2 of 4 and 8: 1/3; 1 pair of 3 and 7: 1/5; 1/3
    assert best("rouge", "a b c d", references) == pytest.approx((1, 1 / 5, 1 / 3))


def test_the_best_reference_counts():
    assert best("f1", "no", ["yes", "No.", "maybe not"]) == (1,)
    with pytest.raises(ValueError, match="without a reference"):
        best("f1", "no", [])
