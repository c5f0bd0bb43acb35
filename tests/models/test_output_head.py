"""The loss without logits is transformers' own, taken in training alone, also where the head is replaced or wrapped."""

import logging

import peft
import pytest
import torch
from torch import nn
from transformers.loss.loss_utils import ForCausalLMLoss

from tape_ds.kernels import linear_cross_entropy as kernel
from tape_ds.models import output_head
from tape_ds.models.output_head import OutputHead
from tests.models.helpers import VOCABULARY, gradients, largest_difference, tiny_model, tokens

# fp32 gradients, relative to a tensor's largest entry: the head's own agree to 1e-6, and three layers of backward add
# to that (1.3e-6 seen in the embedding).
TOLERANCE = 4e-6


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch):
    """8 tokens each, and nothing said before."""
    monkeypatch.setattr(kernel, "CHUNK_BYTES", 1)
    monkeypatch.setattr(kernel, "CHUNK_MULTIPLE", 8)
    logging.Logger.warning_once.cache_clear()  # of transformers


@pytest.fixture
def chunked_calls(monkeypatch):
    """One entry for each loss that was computed without logits."""
    calls = []

    def spy(*arguments, **options):
        calls.append(arguments)
        return kernel.linear_cross_entropy(*arguments, **options)

    monkeypatch.setattr(output_head, "linear_cross_entropy", spy)
    return calls


def step(model, **arguments):
    """The loss and every gradient."""
    model.zero_grad()
    out = model(**arguments)
    out.loss.backward()
    return out, gradients(model)


def some_labels(batch=2, length=21):
    labels = tokens(batch, length)
    labels[:, :4] = -100
    labels[0, 9:19] = -100
    return labels


ITEMS = {
    "mean": {},
    "number": {"num_items_in_batch": 7},
    "tensor": {"num_items_in_batch": torch.tensor(7)},
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("items", ITEMS)
def test_loss_and_gradients_are_transformers(items, tied, chunked_calls):
    model, ids, labels = tiny_model(tie_word_embeddings=tied).train(), tokens(2, 21), some_labels()
    alone, found = step(model, input_ids=ids, labels=labels, **ITEMS[items])
    whole, expected = step(model, input_ids=ids, labels=labels, skip_logits=False, **ITEMS[items])
    assert len(chunked_calls) == 1
    assert alone.logits is None and whole.logits.shape == (2, 21, VOCABULARY)
    torch.testing.assert_close(alone.loss, whole.loss, rtol=1e-6, atol=0)
    own = ForCausalLMLoss(whole.logits, labels, VOCABULARY, **ITEMS[items])
    torch.testing.assert_close(alone.loss, own, rtol=1e-6, atol=0)
    assert largest_difference(found, expected) < TOLERANCE


def test_labels_that_are_shifted_already():
    """Sequence parallelism hands them over so; the unshifted ones are then not read."""
    model, ids, labels = tiny_model().train(), tokens(2, 21), some_labels()
    shifted = nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
    expected = model(ids, labels=labels).loss
    assert torch.equal(
        model(ids, labels=torch.zeros_like(labels), shift_labels=shifted).loss, expected
    )


def test_logits_are_there_whenever_they_are_wanted(chunked_calls):
    """In evaluation mode, without labels, with ``logits_to_keep``, for another loss, and when asked for."""
    model, ids = tiny_model(), tokens(2, 12)
    assert model(ids, labels=ids).logits is not None
    assert model(ids, labels=ids, skip_logits=True).logits is None
    with pytest.raises(ValueError, match="needs labels"):
        model(ids, skip_logits=True)
    chunked_calls.clear()
    model.train()
    assert model(ids).logits is not None
    assert model(ids, labels=ids, skip_logits=False).logits is not None
    assert model(ids, labels=ids, logits_to_keep=12).logits is not None
    model.loss_function = lambda logits, labels, **_: logits.sum()
    assert model(ids, labels=ids).loss == model(ids).logits.sum()
    assert chunked_calls == []


@pytest.mark.parametrize("tied", [True, False])
def test_a_resized_head_is_still_one(tied):
    model, ids = tiny_model(tie_word_embeddings=tied).train(), tokens(2, 12)
    before = model(ids).logits.detach()
    model.resize_token_embeddings(70, mean_resizing=False)
    whole = model(ids, labels=ids, skip_logits=False)
    torch.testing.assert_close(whole.logits[..., :VOCABULARY], before)
    torch.testing.assert_close(model(ids, labels=ids).loss, whole.loss, rtol=1e-6, atol=0)
    assert type(model.lm_head) is OutputHead


def test_a_bias_is_part_of_the_loss():
    """GPT-J's head: the loss and every gradient are those of its logits, held whole."""
    head, targets = OutputHead(8, 61, bias=True), tokens(2, 20)
    hidden = torch.randn(2, 20, 8, requires_grad=True)
    targets[0, :3] = -100
    wanted = [hidden, head.weight, head.bias]
    expected = nn.functional.cross_entropy(
        head(hidden).flatten(0, 1), targets.flatten(), reduction="sum"
    )
    found = head(hidden, targets=targets)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    mine, theirs = (torch.autograd.grad(loss, wanted) for loss in (found, expected))
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_a_foreign_head_gives_its_logits_and_warns_once(chunked_calls, caplog):
    model, ids = tiny_model().train(), tokens(2, 12)
    expected = model(ids, labels=ids).loss
    head = nn.Linear(32, VOCABULARY, bias=False)
    head.weight = model.lm_head.weight
    model.set_output_embeddings(head)
    with caplog.at_level(logging.WARNING):
        outs = [model(ids, labels=ids, skip_logits=skip) for skip in (None, True)]
    for out in outs:
        assert out.logits.shape == (2, 12, VOCABULARY)
        torch.testing.assert_close(out.loss, expected, rtol=1e-6, atol=0)
    assert len(chunked_calls) == 1
    assert (
        len([record for record in caplog.records if "output head is a Linear" in record.message])
        == 1
    )


def test_a_copy_that_peft_trains(chunked_calls):
    """``modules_to_save``: the copy is read and gets the gradient; with the adapter off, the original is read."""
    config = peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"])
    model, ids = peft.get_peft_model(tiny_model(), config).train(), tokens(2, 12)
    head = model.get_base_model().lm_head
    with torch.no_grad():
        head.modules_to_save["default"].weight.mul_(1.5)
    alone, found = step(model, input_ids=ids, labels=ids)
    whole, expected = step(model, input_ids=ids, labels=ids, skip_logits=False)
    assert len(chunked_calls) == 1 and alone.logits is None
    torch.testing.assert_close(alone.loss, whole.loss, rtol=1e-6, atol=0)
    assert [name for name in found if "lm_head" in name] == [
        "base_model.model.lm_head.modules_to_save.default.weight"
    ]
    assert largest_difference(found, expected) < TOLERANCE
    with model.disable_adapter():
        original = model(ids, labels=ids)
    assert original.logits is None and abs(original.loss - alone.loss) > 1e-2
