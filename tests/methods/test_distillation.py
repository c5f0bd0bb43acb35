"""Distillation from the untouched model: its predictions, and the loss with them."""

import pytest
import torch
from torch.nn import functional as F

from tape_ds import TapeForCausalLM
from tape_ds.data.order import collate
from tape_ds.methods.distillation import Teacher, native_places
from tests.models.helpers import norms_in_own_dtype, randomised, tiny_config, tokens

WINDOW = 10


def sequence(length, documents=None, positions=None):
    """An item of a training set."""
    ids = tokens(1, length)[0]
    documents = (
        torch.zeros(length, dtype=torch.int32)
        if documents is None
        else torch.tensor(documents).int()
    )
    labels = ids.clone()
    labels[0] = -100
    labels[1:][documents.diff() != 0] = -100
    places = torch.arange(length) if positions is None else torch.tensor(positions)
    return {"input_ids": ids, "labels": labels, "position_ids": places, "document_ids": documents}


def packed():
    """Two sequences: documents of 4 and 12 tokens, and one of 16 whose positions skip ahead after the fifth."""
    return collate(
        [
            sequence(16, [0] * 4 + [1] * 12),
            sequence(16, positions=[*range(5), 7, 8, *range(30, 39)]),
        ]
    )


def pair(window=WINDOW, share=0.5):
    """A TAPE model as it starts from a Llama, and the Llama as its teacher."""
    torch.manual_seed(2)
    llama = TapeForCausalLM(tiny_config(encoding="rope"))
    student = TapeForCausalLM(tiny_config(encoding="tape"))
    student.load_state_dict(llama.state_dict(), strict=False)
    return student.train(), Teacher(llama, window, share)


def test_positions_count_from_each_document_s_start():
    batch = packed()
    places, inside = native_places(batch["position_ids"], batch["document_ids"], WINDOW)
    assert places[0].tolist() == [*range(4), *range(10), 9, 9]
    assert inside[0].tolist() == [True] * 14 + [False] * 2
    assert (
        places[1].tolist() == [*range(5), 7, 8, *[9] * 9]
        and inside[1].tolist() == [True] * 7 + [False] * 9
    )
    padded = collate([sequence(4), sequence(6)])
    assert native_places(padded["position_ids"], padded["document_ids"], WINDOW)[1].sum() == 10


def test_tape_begins_without_divergence():
    """The model starts as the Llama: to rounding, on all sequences and at skipped positions too."""
    student, teacher = pair()
    batch = packed()
    found = student(**batch, teacher=teacher.tokens(batch))
    alone = student(**batch).loss
    assert 0 <= abs(float(found.divergence)) < 1e-6 and torch.equal(
        found.cross_entropy, alone.detach()
    )
    torch.testing.assert_close(found.loss, 0.5 * alone, rtol=0, atol=1e-6)
    randomised(student)
    taught = teacher.tokens(batch)
    assert student(**batch, teacher=taught).divergence > 1e-2
    with pytest.raises(ValueError, match="needs labels"):
        student(**batch | {"labels": None}, teacher=taught)


def test_the_loss_is_the_plain_formula(monkeypatch):
    """Logits of both models in fp64, tokens within the window alone, divided as the cross-entropy is; gradients.
    (Here the teacher counts through the sequence, and angles are rounded to fp32: 4e-10 apart.)"""
    norms_in_own_dtype(monkeypatch)
    student, teacher = pair(share=0.3)
    randomised(student).double()
    teacher.model.double()
    batch, weights = packed(), dict(student.named_parameters())
    own = student(**batch, teacher=teacher.tokens(batch)).loss
    mine = torch.autograd.grad(own, list(weights.values()))
    logits, target = (
        model(**batch, skip_logits=False).logits for model in (student, teacher.model)
    )
    _, inside = native_places(batch["position_ids"], batch["document_ids"], WINDOW)
    labels = F.pad(batch["labels"], (0, 1), value=-100)[:, 1:]
    count = (labels != -100).sum()
    apart = F.kl_div(
        logits[inside].log_softmax(-1),
        target[inside].log_softmax(-1),
        reduction="sum",
        log_target=True,
    )
    plain = (
        0.7 * F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") + 0.3 * apart
    ) / count
    theirs = torch.autograd.grad(plain, list(weights.values()))
    torch.testing.assert_close(own, plain, rtol=0, atol=1e-8)
    assert apart > 0.1
    for name, a, b in zip(weights, mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8, msg=name)


def test_the_teacher_reads_no_token_after_the_window():
    """Of a sequence of one document it is given the window alone."""
    _, teacher = pair()
    assert (
        not any(weight.requires_grad for weight in teacher.model.parameters())
        and not teacher.model.training
    )
    first = collate([sequence(16)])
    other = {**first, "input_ids": first["input_ids"].clone()}
    other["input_ids"][:, WINDOW:] = 5
    assert torch.equal(teacher.tokens(first).hidden_ND, teacher.tokens(other).hidden_ND)
