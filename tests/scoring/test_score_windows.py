"""Windows under a model: every convention against whole logits, batches, memory, and what is made of many windows."""

import math
import statistics
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tape_ds.models.changed_positions import evaluated_at
from tape_ds.scoring import window_jobs
from tape_ds.scoring.losses import WindowLoss, score_windows
from tape_ds.scoring.windows import CONVENTIONS
from tests.models.helpers import VOCABULARY, tiny_model
from tests.scoring.test_loss_by_position import VOCABULARY as LLAMA_VOCABULARY
from tests.scoring.test_loss_by_position import tiny_llama

BEGIN = 1


def pool(documents):
    return SimpleNamespace(**window_jobs.pool(documents))


def text(length, vocabulary=LLAMA_VOCABULARY, seed=0):
    return np.random.default_rng(seed).integers(3, vocabulary, length, dtype=np.int32)


def windows_of(ids, convention, length, stride, begin):
    return [(ids, window) for window in CONVENTIONS[convention](len(ids), length, stride, begin)]


@torch.no_grad()
def published(model, ids, convention, length, stride, begin):
    """Mean loss, accuracy and targets as the published loops have them: labels of -100 over whole logits."""
    size = length - begin
    bounds = {
        "all_tokens": range(0, len(ids) - size, stride),
        "new_tokens": range(0, len(ids), stride),
        "blocks": range(0, len(ids) - size + 1, size),
    }[convention]
    losses, right, known = [], [], 0
    for start in bounds:
        end = min(start + size, len(ids))
        row = torch.tensor([*([BEGIN] if begin else []), *ids[start:end]], dtype=torch.int64)[None]
        labels = row.clone()
        labels[:, :1] = -100
        if convention == "new_tokens":
            labels[:, : row.shape[1] - (end - known)] = -100
        known = end
        logits_NV = model(row).logits[0, :-1].double()
        chosen = labels[0, 1:] != -100
        losses += nn.functional.cross_entropy(
            logits_NV[chosen], labels[0, 1:][chosen], reduction="none"
        ).tolist()
        right += (logits_NV.argmax(dim=-1) == labels[0, 1:])[chosen].tolist()
        if end == len(ids) and convention == "new_tokens":
            break
    return statistics.fmean(losses), statistics.fmean(right), len(losses)


@pytest.mark.parametrize("begin", [False, True])
@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize(("tokens", "length", "stride"), [(70, 16, 5), (64, 33, 32), (19, 18, 1)])
def test_equals_the_whole_logits(convention, tokens, length, stride, begin):
    model, ids = tiny_llama().eval(), text(tokens)
    windows = windows_of(ids, convention, length, stride, begin)
    found = pool([score_windows(model, windows, begin=BEGIN if begin else None, chunk=7)])
    nll, accuracy, targets = published(model, ids, convention, length, stride, begin)
    assert (found.targets, found.windows) == (targets, len(windows))
    # fp32 logits of one chunk against fp64 of whole ones
    assert found.nll == pytest.approx(nll, abs=1e-5)
    assert found.accuracy == pytest.approx(accuracy, abs=1e-12)
    assert found.perplexity == pytest.approx(math.exp(nll), rel=1e-4)


@pytest.mark.parametrize(
    "encoding", ["tape", "randpe", "bipe_rope", "rope dynamic", "yarn", "alibi"]
)
def test_an_encoding_is_used_as_it_says_for_the_length(encoding):
    """Lengths beyond the 64 positions of the configuration, where an encoding may differ from what it was before."""
    model, ids = tiny_model(encoding=encoding), text(190, VOCABULARY)
    windows = windows_of(ids, "new_tokens", 90, 41, False)
    with evaluated_at(model, 90):
        found = pool([score_windows(model, windows)])
        nll, _, targets = published(model, ids, "new_tokens", 90, 41, False)
    assert found.targets == targets
    assert found.nll == pytest.approx(nll, abs=2e-5)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_batches_change_nothing_but_rounding(convention):
    model = tiny_llama().eval()
    windows = [
        each
        for seed in (0, 1)
        for each in windows_of(text(83, seed=seed), convention, 16, 5, False)
    ]
    calls = []
    model.model.register_forward_hook(
        lambda _, args, output: calls.append(output.last_hidden_state.shape[0])
    )
    one = score_windows(model, windows)
    assert calls == [1] * len(windows)
    calls.clear()
    four = score_windows(model, windows, batch=4)
    assert len(calls) < len(windows) and max(calls) == 4 and sum(calls) == len(windows)
    assert [each.targets for each in one] == [each.targets for each in four]
    assert [each.nll for each in one] == pytest.approx([each.nll for each in four], abs=1e-4)


def test_golden_pool():
    """Worked by hand: 12 targets with 18 nats, 3 foreseen; documents of 10 nats in 8 and 8 in 4 stray by -2 and 2."""
    documents = [[WindowLoss(4.0, 1, 4), WindowLoss(6.0, 0, 4)], [], [WindowLoss(8.0, 2, 4)]]
    found = pool(documents)
    assert (found.nll, found.accuracy, found.targets, found.windows, found.documents) == (
        1.5,
        0.25,
        12,
        3,
        2,
    )
    assert found.standard_error == pytest.approx(math.sqrt((4 + 4) * 2 / 1) / 12)
    assert pool(documents[:1]).standard_error is None
    with pytest.raises(ValueError, match="no window has a target"):
        pool([[], []])
