"""The loss on answers: of exactly their tokens, every token weighing the same."""

import pytest
import torch

from tape_ds.scoring import answers
from tape_ds.scoring.answers import Prompt
from tests.models.helpers import tiny_model, tokens


@pytest.fixture(scope="module")
def model():
    return tiny_model(encoding="tape").eval()


def asked():
    """Three sequences of unequal length with answers of unequal length, one of a single token."""
    return [Prompt(tokens(1, length), targets) for length, targets in ((12, 5), (20, 1), (7, 6))]


def test_it_is_the_loss_of_the_answers_tokens(model):
    sequences, sums, right = asked(), [], 0
    for one in sequences:
        logits_TV = model(one.input_ids_1T).logits[0, -one.targets - 1 : -1].double()
        targets_T = one.input_ids_1T[0, -one.targets :]
        sums.append(
            float(torch.nn.functional.cross_entropy(logits_TV, targets_T, reduction="sum").detach())
        )
        right += int((logits_TV.argmax(-1) == targets_T).sum())
    found = answers.score(model, sequences)
    assert found.nll == pytest.approx(sum(sums) / 12, rel=1e-5)
    assert (found.foreseen, found.targets, found.examples) == (right / 12, 12, 3)
    with pytest.raises(ValueError, match="no answers"):
        answers.score(model, [])
