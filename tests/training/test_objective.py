"""What a step minimises: weights of targets in the real trainer, against the formula."""

import functools

import pytest
import torch
from torch.nn import functional as F

from tape_ds.config.target_weights import TargetWeights
from tape_ds.data.left_context import Buckets, ExactWeights, measure
from tape_ds.data.order import IGNORED, PADDING, collate, item
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.training.objective import LongCE, gaining
from tests.models.helpers import tiny_model
from tests.training.test_trainer import STEPS, build, losses

LONGCE = TargetWeights(target_weights="longce", longce_short=4, longce_stride=3, longce_most=1.5)
EXACT = TargetWeights(target_weights="exact", exact_tail=5, exact_ratio=1.3)


class Packed(torch.utils.data.Dataset):
    """Sequences of many lengths with two documents; of some only the last tokens are targets, as answers are."""

    def __len__(self):
        return 2 * STEPS

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        length = 13 + index % 5
        ids = torch.randint(3, 61, (length,), generator=generator).numpy()
        owners = [0 if place < 3 + index % 4 else 1 for place in range(length)]
        first = 9 if index % 3 == 0 else 1
        targets = [place for place in range(first, length) if owners[place] == owners[place - 1]]
        return item(ids, targets, document_ids=owners)


def exact_weights():
    buckets = Buckets(5, 1.3)
    histogram, samples = measure(Packed(), buckets)
    return ExactWeights.measured(histogram, buckets, 1.0, samples)


def weighted(folder, settings, *, ones=False, **changes):
    """A trainer whose targets have weights; ``ones``: each is 1."""
    trainer = build(folder, Packed(), weights=settings, method="full", **changes)
    if settings is not None and settings.target_weights == "exact":
        weigh = (lambda documents: torch.ones(documents.shape)) if ones else exact_weights()
        trainer.data_collator = functools.partial(collate, weigh=weigh)
    return trainer


def loss_of_each(model, batch):
    """The loss of every label [B, T - 1], from the logits of the whole model."""
    given = {name: batch[name] for name in ("input_ids", "position_ids", "document_ids")}
    logits = model(**given, use_cache=False).logits
    return F.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="none"
    ).view(batch["labels"][:, 1:].shape)


def short_by_hand(model, batch, short, stride):
    """The loss of every label, where its context begins at the last multiple of ``stride`` that leaves ``short``
    tokens; NaN where its document does not reach back further. One sequence and one target at a time."""
    documents, labels = batch["document_ids"], batch["labels"]
    found = torch.full(labels.shape, torch.nan, dtype=torch.float64)
    for row in range(len(labels)):
        for place in range(short, labels.shape[1]):
            start = (place - short) // stride * stride
            is_one_document = start > 0 and documents[row, start - 1] == documents[row, place]
            if labels[row, place] == IGNORED or not is_one_document:
                continue
            piece = slice(start, place)
            positions = batch["position_ids"].expand_as(labels)[row : row + 1, piece]
            given = {"position_ids": positions, "document_ids": documents[row : row + 1, piece]}
            logits = model(
                batch["input_ids"][row : row + 1, piece], **given, use_cache=False
            ).logits
            found[row, place] = F.cross_entropy(logits[0, -1], labels[row, place])
    return found


def test_targets_that_gain_by_hand():
    """Short contexts of 2 or 3 tokens: they begin at 0, 2, 4, 6. In the first row document 1 begins at 3."""
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, PADDING, PADDING]])
    labels = torch.full((2, 8), 5)
    labels[0, 0] = labels[0, 3] = labels[1, 0] = labels[1, 6] = labels[1, 7] = IGNORED
    gains, begins = gaining(documents, labels, 2, 2)
    assert gains.int().tolist() == [[0, 0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 0, 0]]
    assert begins.tolist() == [[0, 4], [1, 2]]
    assert len(gaining(documents, labels, 8, 2)[1]) == 0


@pytest.mark.parametrize("encoding", ["rope", "tape", "alibi", "tape log scale"])
def test_short_losses_are_those_of_the_sequence_without_its_beginning(encoding):
    """Packed rows of unequal length, each target read apart in fp64; a target whose document is short has none."""
    torch.manual_seed(2)
    model = tiny_model("gqa", encoding).double().train()
    batch = collate([Packed()[index] for index in range(4)])
    found = LongCE(LONGCE, RankSync(), None, alike=False).short_losses(model, batch)
    assert model.training
    with torch.no_grad():
        expected = short_by_hand(model.eval(), batch, 4, 3)
    assert (~expected.isnan()).sum() > 10
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("settings", [EXACT, LONGCE], ids=["exact", "longce"])
@pytest.mark.parametrize("micro", [4, 1])
def test_a_step_is_the_formula_s(tmp_path, settings, micro):
    """In micro-batches of one sequence or all at once: a step of plain gradient descent moves every weight by the
    gradient of the weighted mean over the whole step, whose other figures are logged with it."""
    changes = {
        "optim": "sgd",
        "learning_rate": 1.0,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
    }
    changes |= {"max_steps": 1, "per_device_train_batch_size": micro}
    trainer = weighted(tmp_path, settings, **changes | {"gradient_accumulation_steps": 4 // micro})
    model = trainer.model
    batch = collate([Packed()[index] for index in range(4)])
    model.eval()
    each = loss_of_each(model, batch)
    counted = batch["labels"][:, 1:] != IGNORED
    if settings is EXACT:
        weights = exact_weights()(batch["document_ids"])[:, 1:]
        divisor = weights[counted].sum()
    else:
        with torch.no_grad():
            short = short_by_hand(model, batch, 4, 3)[:, 1:]
        weights = torch.where(short.isnan(), 1.0, (short - each.detach()).exp().clamp(max=1.5))
        divisor = counted.sum()
    weights = weights.detach()
    assert len(weights[counted].unique()) > 2
    mean = (weights * each)[counted].sum() / divisor
    names = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    gradients = torch.autograd.grad(mean, list(names.values()))
    before = {name: parameter.detach().clone() for name, parameter in names.items()}
    trainer.train()
    for (name, weight), gradient in zip(before.items(), gradients, strict=True):
        moved = weight - trainer.model.get_parameter(name).detach()
        torch.testing.assert_close(moved, gradient.float(), rtol=2e-4, atol=3e-7, msg=name)
    (logged,) = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert logged["loss"] == pytest.approx(mean.item(), rel=1e-5)
    assert logged["plain_loss"] == pytest.approx(each[counted].mean().item(), rel=1e-5)
    assert logged["mean_weight"] == pytest.approx(weights[counted].mean().item(), rel=1e-5)


def test_weights_of_one_are_the_plain_run(tmp_path):
    """So EXACT's, and LongCE's where no document reaches back beyond the short context."""
    plain = weighted(tmp_path / "plain", None)
    plain.train()
    far = LONGCE.model_copy(update={"longce_short": 17})
    for name, settings in (("exact", EXACT), ("longce", far)):
        run = weighted(tmp_path / name, settings, ones=True)
        run.train()
        logged = [entry for entry in run.state.log_history if "loss" in entry]
        assert losses(run) == pytest.approx(losses(plain), rel=1e-6)
        assert [entry["plain_loss"] for entry in logged] == pytest.approx(losses(plain), rel=1e-6)
        assert [entry["mean_weight"] for entry in logged] == pytest.approx([1.0] * STEPS)
        for (name, mine), other in zip(
            run.model.named_parameters(), plain.model.parameters(), strict=True
        ):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("settings", [EXACT, LONGCE], ids=["exact", "longce"])
def test_a_weighted_run_goes_on_to_the_last_digit(tmp_path, settings):
    """Its checkpoint is between two logging steps: the sums of the other figures are in it."""
    changes = {"logging_steps": 2}
    whole = weighted(tmp_path / "whole", settings, **changes)
    whole.train()
    rest = weighted(tmp_path / "rest", settings, **changes)
    rest.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    logs = [[each for each in run.state.log_history if "loss" in each] for run in (whole, rest)]
    # a resumed run has the lines of its first part
    assert len(logs[0]) == STEPS // 2
    for name in ("loss", "plain_loss", "mean_weight"):
        assert [each[name] for each in logs[0]] == [each[name] for each in logs[1]], name
    for (name, mine), other in zip(
        rest.model.named_parameters(), whole.model.parameters(), strict=True
    ):
        assert torch.equal(mine, other), name
