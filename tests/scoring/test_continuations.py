"""Log-probabilities of continuations against a direct computation from all logits."""

import pytest
import torch

from tape_ds.scoring.continuations import ContinuationSequence, score
from tests.model.helpers import tiny_model, tokens


def direct(model, context, continuation):
    """(log-probability, greedy) from the logits of the whole text, in fp64."""
    with torch.no_grad():
        logits_1TV = model(torch.tensor([[*context, *continuation]])).logits.double()
    log_TV = logits_1TV[0].log_softmax(dim=-1)[len(context) - 1 : -1]
    total = float(log_TV.gather(1, torch.tensor(continuation)[:, None]).sum())
    return total, log_TV.argmax(dim=-1).tolist() == list(continuation)


def sequence(context, *continuations):
    assert len({(*context, *each[:-1]) for each in continuations}) == 1
    return ContinuationSequence((*context, *continuations[0][:-1]), continuations)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return tiny_model()


@pytest.mark.parametrize("chunk", [1, 3, 1024])
def test_scores_are_those_of_all_logits(model, chunk):
    """Sequences of different lengths, one- and several-token continuations, answers that share what is read."""
    text = tuple(tokens(1, 40)[0].tolist())
    asked = [(text[:9], [(4,), (5,), (60,)]), (text[:30], [text[30:37]]), (text[5:6], [text[6:9]])]
    found = score(model, [sequence(context, *each) for context, each in asked], chunk=chunk)
    for (context, wanted), scores in zip(asked, found, strict=True):
        for continuation, given in zip(wanted, scores, strict=True):
            log_probability, greedy = direct(model, context, continuation)
            assert given.log_probability == pytest.approx(log_probability, abs=2e-5)
            assert given.greedy == greedy


def test_what_the_model_would_write_is_greedy(model):
    text = torch.tensor([[5, 9, 17]])
    for _ in range(4):
        text = torch.cat((text, model(text).logits[:, -1:].argmax(dim=-1)), dim=1)
    *context, a, b, c, d = text[0].tolist()
    ((right, wrong),) = score(
        model, [ContinuationSequence((*context, a, b, c), ((a, b, c, d), (a, b, c, (d + 1) % 61)))]
    )
    assert right.greedy and not wrong.greedy and right.log_probability > wrong.log_probability


def test_a_continuation_may_split_the_same_text_elsewhere(model):
    """Two answers that end at the same place, of which one is the end of the other."""
    ((whole, end),) = score(model, [ContinuationSequence((7, 8, 9), ((8, 9, 10), (10,)))])
    assert whole.log_probability == pytest.approx(direct(model, (7,), (8, 9, 10))[0], abs=2e-5)
    assert end.log_probability == pytest.approx(direct(model, (7, 8, 9), (10,))[0], abs=2e-5)


@pytest.mark.parametrize(
    ("sequences", "chunk"),
    [
        ([], 1),
        ([ContinuationSequence((3,), ())], 1),
        ([ContinuationSequence((3,), ((3, 4),))], 1),
        ([ContinuationSequence((3,), ((),))], 1),
        ([ContinuationSequence((3,), ((4,),))], 0),
    ],
)
def test_sequences_that_cannot_be_scored(model, sequences, chunk):
    with pytest.raises(ValueError, match="each needs tokens"):
        score(model, sequences, chunk=chunk)
