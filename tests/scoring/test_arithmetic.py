"""Replies to sums are those of full passes, and the means of a grid are of the cells that they say."""

import pytest
import torch

from tape_ds.scoring import exact_match
from tape_ds.scoring.answers import Asked
from tape_ds.scoring.arithmetic import ArithmeticQuestion, means, replies
from tests.model.helpers import tiny_model

END = 2
QUESTIONS = [
    ArithmeticQuestion((5, 9, 30, 11), (7, 44, 8)),
    ArithmeticQuestion((17, 50), (3,)),
    ArithmeticQuestion((40, 3, 12, 12, 60), (9, 9, 9, 9, 9)),
]


@pytest.mark.parametrize("encoding", ["tape", "rope", "fire", "nope"])
@torch.no_grad()
def test_replies_are_the_most_likely_tokens_of_one_full_pass(encoding):
    """With a cache, without, in batches of any size; so asking is what teacher forcing would score."""
    torch.manual_seed(0)
    model = tiny_model(encoding=encoding)
    found = replies(model, QUESTIONS, end=END, batch_size=3)
    assert replies(model, QUESTIONS, end=END, batch_size=3, use_cache=False) == found
    for question, reply in zip(QUESTIONS, found, strict=True):
        ids = torch.tensor([question.prompt + reply])
        likely = model(ids).logits[0, len(question.prompt) - 1 :].argmax(dim=-1).tolist()
        assert tuple(likely[: len(reply)]) == reply
        assert len(reply) == 6 or likely[len(reply)] == END, "the longest answer's room, or an end"
    alone = replies(model, QUESTIONS, end=END, batch_size=1)
    assert all(len(reply) <= 1 + len(question.answer) for question, reply in zip(QUESTIONS, alone, strict=True))
    assert [one[: len(other)] for one, other in zip(found, alone, strict=True)] == alone


def test_a_reply_that_goes_on_behind_the_answer_is_another():
    """There is room for one token more than the answer, so that what equals the answer has ended."""
    torch.manual_seed(0)
    model = tiny_model()
    (whole,) = replies(model, [ArithmeticQuestion((5, 9), (1,) * 9)], end=END, batch_size=1)
    assert len(whole) == 10, "this model does not end by itself"
    (cut,) = replies(model, [ArithmeticQuestion((5, 9), whole[:4])], end=END, batch_size=1)
    assert cut == whole[:5] != whole[:4]
    first = whole.index(whole[4])
    (ended,) = replies(model, [ArithmeticQuestion((5, 9), whole[:first])], end=whole[4], batch_size=1)
    assert ended == whole[:first]


def cell(first, second, samples, correct):
    return {"first": first, "second": second, "samples": samples, "correct": correct}


def square(last, right):
    """A grid of 4 samples a cell, of which ``right(i, j)`` are right."""
    return [cell(i, j, 4, right(i, j)) for i in range(1, last + 1) for j in range(1, last + 1)]


def values(cells, trained):
    return {name: (mean.value, mean.cells) for name, mean in means(cells, trained).items()}


def test_a_model_without_extrapolation_reaches_a_quarter_of_the_grid():
    """What is trained is right and nothing else: 25 % of the whole, as published for RoPE, and 0 beyond."""
    found = values(square(6, lambda i, j: 4 * (i <= 3 and j <= 3)), (3, 3))
    assert found == {
        "whole": (0.25, 36),
        "trained": (1.0, 9),
        "beyond": (0.0, 27),
        "both_beyond": (0.0, 9),
        "twice": (0.25, 36),
    }


@pytest.mark.parametrize(
    ("last", "trained", "cells"),
    [
        (6, (3, 3), {"whole": 36, "trained": 9, "beyond": 27, "both_beyond": 9, "twice": 36}),
        (8, (3, 3), {"whole": 64, "trained": 9, "beyond": 55, "both_beyond": 25, "twice": 36}),
        (5, (3, 3), {"whole": 25, "trained": 9, "beyond": 16, "both_beyond": 4, "twice": 0}),
        (6, (3, 2), {"whole": 36, "trained": 6, "beyond": 30, "both_beyond": 12, "twice": 24}),
        (3, (3, 3), {"whole": 9, "trained": 9, "beyond": 0, "both_beyond": 0, "twice": 0}),
    ],
)
def test_which_cells_a_mean_is_of(last, trained, cells):
    found = means(square(last, lambda i, j: 1), trained)
    assert {name: mean.cells for name, mean in found.items()} == cells
    assert all(mean.value == (0.25 if mean.cells else None) for mean in found.values())


def test_every_cell_counts_alike_and_an_empty_one_not_at_all():
    cells = [cell(1, 1, 1, 1), cell(1, 2, 100, 0), cell(2, 1, 0, 0), cell(2, 2, 4, 2)]
    assert values(cells, (1, 1)) == {
        "whole": (0.5, 3),
        "trained": (1.0, 1),
        "beyond": (0.25, 2),
        "both_beyond": (0.5, 1),
        "twice": (0.5, 3),
    }


@pytest.mark.parametrize("encoding", ["tape", "rope"])
def test_asking_and_teacher_forcing_agree(encoding):
    """What a run scores after training is what the grid counts: a right answer, one that is cut short, another one."""
    torch.manual_seed(0)
    model = tiny_model(encoding=encoding)
    (whole,) = replies(model, [ArithmeticQuestion((5, 9, 30), (1,) * 9)], end=END, batch_size=1)
    end = next(token for token in whole[2:] if token not in whole[:2])
    right = whole[: whole.index(end)]
    answers = [right, right[:-1], (*right[:-1], 60 - right[-1]), (*right, 7)]
    questions = [ArithmeticQuestion((5, 9, 30), answer) for answer in answers]
    found = replies(model, questions, end=end, batch_size=4)
    forced = [Asked(torch.tensor([[*q.prompt, *q.answer, end]]), len(q.answer) + 1) for q in questions]
    assert [reply == answer for reply, answer in zip(found, answers, strict=True)] == [True, False, False, False]
    assert exact_match.right(model, forced) == [True, False, False, False]
