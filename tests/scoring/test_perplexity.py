"""Perplexity by length against the whole logits, block by block."""

import json
import math

import pytest
import torch
from torch import nn

from tape_ds.scoring.losses import Perplexity
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
            losses += nn.functional.cross_entropy(logits_TV[:-1], block_1T[0, 1:], reduction="none").tolist()
    return math.fsum(losses) / len(losses), len(losses)


@pytest.mark.parametrize("length", [2, 16, 48, 100])
def test_equals_the_full_logits(length):
    """The remainder of each document is dropped; every target weighs the same, whatever document it is of."""
    model, documents = tiny_llama(), [document(100), document(131, seed=1)]
    found = score(model, documents, length, chunk=7)
    nll, targets = direct(model, documents, length)
    assert found.nll == pytest.approx(nll, abs=1e-5) and found.value == pytest.approx(math.exp(nll), rel=1e-4)
    blocks = 100 // length + 131 // length
    assert (
        (found.length, found.blocks, found.targets)
        == (length, blocks, targets)
        == (length, blocks, blocks * (length - 1))
    )


def test_a_block_sees_nothing_before_itself():
    """Other tokens in the first block change its loss and not the second's: perplexity at a length is just that."""
    model, whole = tiny_llama(), document(64)
    other = whole.clone()
    other[0, 5:30] = document(25, seed=9)
    calls = []

    def noted(work, blocks):
        calls.append([work(block) for block in blocks])
        return calls[-1]

    score(model, [whole], 32, each=noted)
    score(model, [other], 32, each=noted)
    assert calls[0][0] != calls[1][0] and calls[0][1] == calls[1][1]


def test_lengths_that_divide_a_document_read_all_of_it():
    model, documents = tiny_llama(), [document(96)]
    assert [score(model, documents, length).blocks * length for length in (12, 24, 48, 96)] == [96] * 4


def test_a_longer_look_back_helps_a_model_that_copies():
    """A model that repeats the token of 8 places before is lost without context: shorter blocks must score worse."""

    class Copier(nn.Module):
        config = type("Config", (), {"vocab_size": 11})()

        def __init__(self):
            super().__init__()
            self.base_model = Back()
            self.table = nn.Embedding(11, 11)

        def get_output_embeddings(self):
            return nn.Identity()

        def get_input_embeddings(self):
            return self.table

    class Back(nn.Module):
        def forward(self, input_ids, use_cache):
            logits = torch.zeros(*input_ids.shape, 11)
            logits[:, 7:].scatter_(2, input_ids[:, : input_ids.shape[1] - 7, None], 20.0)
            return type("Output", (), {"last_hidden_state": logits})()

    text = torch.randint(0, 11, (1, 8), generator=torch.Generator().manual_seed(0)).repeat(1, 16)
    found = {length: score(Copier(), [text], length) for length in (8, 16, 64)}
    assert found[8].value == pytest.approx(11, rel=1e-4)
    assert found[16].nll == pytest.approx(7 / 15 * math.log(11), rel=1e-3)
    assert found[64].nll == pytest.approx(7 / 63 * math.log(11), rel=1e-3)


def test_what_has_no_block_is_refused():
    model = tiny_llama()
    with pytest.raises(ValueError, match="a document of 31 tokens has no block of 32"):
        score(model, [document(64), document(31)], 32)
    with pytest.raises(ValueError, match="no documents"):
        score(model, [], 32)
    with pytest.raises(ValueError, match="length = 1"):
        score(model, [document(64)], 1)


def test_json_round_trip_and_extremes():
    found = Perplexity(64, math.log(3), 630, 10)
    stored = json.loads(json.dumps(found.to_dict()))
    assert stored["perplexity"] == pytest.approx(3) and Perplexity.from_dict(stored) == found
    assert Perplexity(64, 1e6, 630, 10).value == math.inf and math.isnan(Perplexity(64, math.nan, 63, 1).value)
