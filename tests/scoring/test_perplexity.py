"""Perplexity by length against the whole logits, block by block."""

import math

import pytest
import torch
from torch import nn

from tape_ds.scoring.losses import score_blocks as score
from tests.scoring.test_loss_by_position import document, tiny_llama


@torch.no_grad()
def direct(model, documents, length):
    """Mean loss over every target of every whole block, from the full logits."""
    losses = []
    for document_1T in documents:
        for start in range(0, document_1T.shape[1] - length + 1, length):
            block_1T = document_1T[:, start : start + length]
            logits_TV = model.eval()(block_1T).logits[0].double()
            losses += nn.functional.cross_entropy(
                logits_TV[:-1], block_1T[0, 1:], reduction="none"
            ).tolist()
    return math.fsum(losses) / len(losses), len(losses)


@pytest.mark.parametrize("length", [2, 48, 100])
def test_equals_the_full_logits(length):
    """The remainder of each document is dropped; every target weighs the same, whatever document it is of."""
    model, documents = tiny_llama(), [document(100), document(131, seed=1)]
    found = score(model, documents, length)
    nll, targets = direct(model, documents, length)
    assert found.nll == pytest.approx(nll, abs=1e-5) and found.value == pytest.approx(
        math.exp(nll), rel=1e-4
    )
    blocks = 100 // length + 131 // length
    assert (found.blocks, found.targets) == (blocks, targets) and targets == blocks * (length - 1)


def test_what_has_no_block_is_refused():
    model = tiny_llama()
    with pytest.raises(ValueError, match="a document of 31 tokens has no block of 32"):
        score(model, [document(64), document(31)], 32)
    for documents, length in (([document(64)], 1), ([], 32)):
        with pytest.raises(ValueError, match=r"a window needs 2 tokens|no documents"):
            score(model, documents, length)
