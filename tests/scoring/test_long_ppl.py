"""LongPPL: the loss over the tokens that need a long context, against the formula written out in fp64."""

import math

import pytest
import torch

from tape_ds.scoring import long_ppl
from tape_ds.scoring.long_ppl import LongLoss
from tests.models.helpers import tiny_model, tokens

SHORT = 16
STRIDE = 8


def written_out(model, judge, ids_1T):
    """Every token with its long context, and with one that begins at the stride's last multiple, in fp64."""

    def loss(by, begin, at):
        with torch.no_grad():
            logits = by(ids_1T[:, begin:at]).logits[0, -1].double()
        return float(torch.logsumexp(logits, 0) - logits[ids_1T[0, at]])

    keys = []
    total = []
    for at in range(SHORT, ids_1T.shape[-1]):
        begin = (at - SHORT) // STRIDE * STRIDE
        total.append(loss(model, 0, at))
        judged = total[-1] if judge is model else loss(judge, 0, at)
        # the short context decides only about tokens that the long one knows
        if judged < 2 and loss(judge, begin, at) - judged > 2:
            keys.append(total[-1])
    return math.fsum(keys), len(keys), math.fsum(total), len(total)


def copying(seed):
    """A model whose losses are small and large: its head is scaled, so that contexts matter."""
    torch.manual_seed(seed)
    model = tiny_model(encoding="rope", num_hidden_layers=1).double()
    with torch.no_grad():
        model.lm_head.weight.mul_(12)
    return model


def known_text(judge):
    """Token ids [1, 150] of which every second one is likely, so that some are predicted well."""
    torch.manual_seed(5)
    ids_1T = tokens(1, 150)
    with torch.no_grad():
        for at in range(40, 150, 2):
            ids_1T[0, at] = judge(ids_1T[:, :at]).logits[0, -1].argmax()
    return ids_1T


@pytest.mark.parametrize("other", [False, True])
def test_the_loss_over_key_tokens_is_the_formulas(other):
    model = copying(1)
    judge = copying(2) if other else model
    ids_1T = known_text(judge)
    found = long_ppl.score(model, judge, ids_1T, short=SHORT, stride=STRIDE, chunk=7)
    key_nll, keys, nll, targets = written_out(model, judge, ids_1T)
    assert keys >= 5 and targets == 150 - SHORT
    assert (found.key_tokens, found.targets) == (keys, targets)
    assert found.key_nll == pytest.approx(key_nll, abs=1e-4) and found.nll == pytest.approx(
        nll, rel=1e-5
    )


def test_windows_are_pooled_by_their_tokens():
    found = long_ppl.pooled([LongLoss(2.0, 1, 30.0, 10), LongLoss(1.0, 2, 10.0, 10)])
    assert found["key_nll"] == 1.0 and found["long_ppl"] == pytest.approx(math.e)
    assert (found["key_tokens"], found["targets"], found["nll"]) == (3, 20, 2.0)
    none = long_ppl.pooled([LongLoss(0.0, 0, 30.0, 10)])
    assert (none["long_ppl"], none["key_tokens"]) == (None, 0)
