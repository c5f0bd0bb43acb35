"""Which parameters are stepped alike, and what a learning rate of their own does to TAPE's."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from tape_ds.config.sections import Optimization
from tape_ds.methods.prepare import prepare_model
from tape_ds.training import parameter_groups
from tape_ds.training.parameter_groups import MATRICES, POSITIONS, VECTORS
from tests.methods.test_methods import settings
from tests.models.helpers import tiny_model, tokens

ARGUMENTS = SimpleNamespace(learning_rate=1e-3, weight_decay=0.1)


def divided(method="full", encoding="tape", optimization=None, **switches):
    """The method's model and its groups, by kind."""
    prepared = prepare_model(method, tiny_model(encoding=encoding), settings(**switches))
    groups = parameter_groups.divide(prepared.model, ARGUMENTS, optimization or Optimization())
    assert sorted(name for group in groups for name in group.parameters) == sorted(prepared.names)
    return prepared.model, {group.kind: group for group in groups}


@pytest.mark.parametrize("method", ["full", "tape", "tape+lora"])
def test_position_parameters_are_a_group_whatever_wraps_them(method):
    """peft trains a copy of each layer's, under another name; what it froze is in no group."""
    _, groups = divided(method, optimization=Optimization(position_learning_rate="10x"))
    positions = groups[POSITIONS]
    assert len(positions.parameters) == 8 and all(
        ".position." in name for name in positions.parameters
    )
    assert not any(
        ".position." in name
        for kind in groups
        if kind != POSITIONS
        for name in groups[kind].parameters
    )
    assert (positions.learning_rate, positions.weight_decay) == (pytest.approx(1e-2), 0.0)
    for kind in groups.keys() - {POSITIONS}:
        assert (groups[kind].learning_rate, groups[kind].weight_decay) == (
            1e-3,
            0.1 if kind == MATRICES else 0.0,
        )


@pytest.mark.parametrize(
    ("encoding", "owners"),
    [
        ("t5", ".position."),
        ("fire", ".position."),
        ("rope abacus", "encoding.digits"),
        ("rope", None),
        ("nope", None),
    ],
)
def test_every_encoding_that_learns_has_the_group_and_no_other(encoding, owners):
    _, groups = divided(encoding=encoding)
    assert (POSITIONS in groups) is (owners is not None)
    assert (
        all(owners in name for name in groups[POSITIONS].parameters)
        if owners
        else set(groups) == {MATRICES, VECTORS}
    )


def test_a_sharded_matrix_decays_as_a_whole_one():
    """What ZeRO-3 leaves in place of a matrix has no elements and one dimension."""
    model, whole = divided(encoding="rope")
    for parameter in model.parameters():
        parameter.ds_shape, parameter.data = parameter.shape, torch.empty(0)
    sharded = parameter_groups.divide(model, ARGUMENTS, Optimization())
    assert {group.kind: set(group.parameters) for group in sharded} == {
        kind: set(group.parameters) for kind, group in whole.items()
    }


class RowSums(nn.Module):
    """The published code's matrix [H, H], of which its einsum reads the sum of each row alone."""

    def forward(self, whole_HH):
        return whole_HH.sum(1)

    def right_inverse(self, scale_H):
        return scale_H[:, None].expand(-1, len(scale_H)) / len(scale_H)


def test_scale_at_the_rate_times_heads_is_the_reference_under_adam():
    """Every column of the matrix gets the scalar's gradient, and Adam moves each by a step of its own: the sum of H of
    them goes H times as far. In fp64, at each of four steps; at the same rate for all it falls behind.

    Without the feed-forward, which the factor reaches as well: the published code steps it like everything else."""
    heads, options = 4, {"attention_update": "scale", "feed_forward": False}

    def steps(optimization, reference=False):
        torch.manual_seed(5)
        model = tiny_model(heads="mha", position_options=options).double().train()
        scales = [layer.position.attend for layer in model.model.layers[:-1]]
        for scale in scales if reference else []:
            parametrize.register_parametrization(scale, "weight", RowSums())
        optimizer = torch.optim.AdamW(
            parameter_groups.for_optimizer(model, ARGUMENTS, optimization)
        )
        found = []
        for _ in range(4):
            ids = tokens(2, 12)
            model(ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(torch.stack([scale.weight.detach().clone() for scale in scales]))
        return torch.stack(found)

    reference = steps(Optimization(), reference=True)
    ours = steps(Optimization(position_learning_rate=f"{heads}x"))
    assert reference.abs().min() > 1e-4, "every scalar moves"
    torch.testing.assert_close(ours, reference, rtol=1e-9, atol=0)
    assert (steps(Optimization()) - reference).abs().max() > 1e-3
