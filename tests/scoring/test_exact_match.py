"""Exact match by one pass over prompt and answer: it is what writing the answer gives, in bounded batches; shares of
right answers, and means of a grid's parts."""

import pytest
import torch

from tape_ds.data.generated.task import GeneratedSample
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.llama import TapeForCausalLM
from tape_ds.scoring.exact_match import AnswerCount, judge, means

VOCABULARY, EOS = "0123456", 1


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = TapeConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        position_encoding="tape",
        initializer_range=0.5,
        pad_token_id=None,
    )
    return TapeForCausalLM(config).eval()


def greedy(model, prompt, tokens):
    """What the model writes behind ``prompt``, the end included where it comes."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(tokens):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def asked(prompt, answer):
    words = tuple(map(str, (*prompt, *answer)))
    return GeneratedSample(words, tuple(range(len(prompt), len(words))))


def right(model, samples, **options):
    """Which answers are right as a whole."""
    return [all(found) for found in judge(model, VOCABULARY, samples, **options)]


@pytest.fixture(scope="module")
def questions(model):
    """Prompts of all lengths with what the model writes; each third answer is changed in one token."""
    torch.manual_seed(1)
    made, expected = [], []
    for number in range(24):
        prompt = torch.randint(2, len(VOCABULARY), (1 + number % 9,)).tolist()
        answer = greedy(model, prompt, 1 + number % 5)
        if number % 3 == 0:
            place = number % len(answer)
            answer[place] = (answer[place] + 1) % len(VOCABULARY)
        made.append(asked(prompt, answer))
        expected.append(number % 3 != 0)
    return made, expected


@pytest.mark.parametrize("batch_tokens", [1, 40])
def test_right_is_what_the_model_would_have_written(model, questions, batch_tokens):
    made, expected = questions
    assert right(model, made, batch_tokens=batch_tokens) == expected


def test_each_answer_is_judged_by_the_token_before_it_wherever_it_stands(model):
    torch.manual_seed(0)
    samples, expected = [], []
    for number in range(12):
        ids_T = torch.randint(len(VOCABULARY), (6 + number % 5,))
        answers_T = torch.rand(len(ids_T)) < 0.4
        answers_T[0], answers_T[-1] = False, True
        with torch.no_grad():
            right_T = model(input_ids=ids_T[None]).logits[0, :-1].argmax(dim=-1) == ids_T[1:]
        samples.append(
            GeneratedSample(
                tuple(map(str, ids_T.tolist())), tuple(answers_T.nonzero()[:, 0].tolist())
            )
        )
        expected.append(right_T[answers_T[1:]].tolist())
    assert judge(model, VOCABULARY, samples) == expected
    assert len({each for one in expected for each in one}) == 2


def test_the_interval_is_wilsons_of_the_sequences():
    """Known values: of 10 of 10 [0.7225, 1], of 50 of 100 [0.4038, 0.5962]."""
    assert AnswerCount(32, "", 10, 10, 10, 0.5).interval == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert AnswerCount(32, "", 100, 100, 50, 0.5).interval == pytest.approx(
        (0.4038, 0.5962), abs=1e-4
    )
    many = AnswerCount(32, "", 100, 1600, 800, 0.5)
    assert many.share == 0.5 and many.interval == AnswerCount(32, "", 100, 100, 50, 0.5).interval


def cell(first, second, samples, correct):
    return {"first": first, "second": second, "samples": samples, "correct": correct}


def square(last, right):
    """A grid of 4 samples a cell, of which ``right(i, j)`` are right."""
    return [cell(i, j, 4, right(i, j)) for i in range(1, last + 1) for j in range(1, last + 1)]


def values(cells, trained):
    return {name: (mean["value"], mean["cells"]) for name, mean in means(cells, trained).items()}


def test_a_model_without_extrapolation_reaches_a_quarter_of_the_grid():
    found = values(square(6, lambda i, j: 4 * (i <= 3 and j <= 3)), (3, 3))
    assert found == {
        "whole": (0.25, 36),
        "trained": (1.0, 9),
        "beyond": (0.0, 27),
        "both_beyond": (0.0, 9),
        "twice": (0.25, 36),
    }


def test_every_cell_counts_alike_and_an_empty_one_not_at_all():
    cells = [cell(1, 1, 1, 1), cell(1, 2, 100, 0), cell(2, 1, 0, 0), cell(2, 2, 4, 2)]
    assert values(cells, (1, 1)) == {
        "whole": (0.5, 3),
        "trained": (1.0, 1),
        "beyond": (0.25, 2),
        "both_beyond": (0.5, 1),
        "twice": (0.5, 3),
    }
