"""Checkpoints of the published code: its own numbers reproduced, nothing matched loosely."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tape_ds.errors import UserError
from tape_ds.model import convert
from tape_ds.model.reference_checkpoint import from_reference
from tests.model.helpers import tokens

GOLDEN = Path(__file__).parents[1] / "assets" / "golden"
VARIANTS = ["rope", "adape", "adamlp", "adattention"]
TOLERANCE = 1e-5


def golden(variant):
    data = np.load(GOLDEN / f"{variant}.npz")
    weights = {name[6:]: torch.from_numpy(data[name]) for name in data.files if name.startswith("param/")}
    return data, ast.literal_eval(str(data["config"])), weights


def renamed(name):
    """The reference's parameter name as ours."""
    for theirs, ours in (
        (".pe.x_proj.", ".position.gate."),
        (".pe.up_proj.", ".position.expand."),
        (".pe.down_proj.", ".position.contract."),
        (".post_attention_linear.", ".position.attend."),
    ):
        name = name.replace(theirs, ours)
    return name


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_published_code_s_numbers(variant):
    """Logits, loss and stored gradients of the original program, from its own weights."""
    data, config, weights = golden(variant)
    model = from_reference(weights, config, variant)
    ids = torch.from_numpy(data["input_ids"])
    out = model(ids, labels=ids)
    out.loss.backward()
    np.testing.assert_allclose(out.logits.detach().numpy(), data["logits"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(out.loss.item(), data["loss"], rtol=0, atol=TOLERANCE)
    compared = 0
    for key in data.files:
        if not key.startswith("grad/"):
            continue
        name = renamed(key[5:])
        mine = model.get_parameter(name).grad
        if ".attend." in name:  # the original adds a row's weights up: each column has the gradient of the sum
            mine = mine[:, None].expand(-1, mine.shape[0])
        np.testing.assert_allclose(mine.numpy(), data[key], rtol=0, atol=TOLERANCE)
        compared += 1
    assert compared == {"rope": 1, "adape": 5, "adamlp": 4, "adattention": 2}[variant]


@pytest.mark.parametrize("variant", VARIANTS)
def test_reference_keys_are_matched_strictly(variant):
    """Each change of the weights is named; a silent mismatch would look like bad training."""
    _, config, weights = golden(variant)
    first = "model.layers.0.mlp.gate_proj.weight"
    position = [name for name in weights if ".layers.0.pe." in name or ".layers.0.post_attention_linear" in name]
    for absent in ["lm_head.weight", first, *position]:
        with pytest.raises(UserError, match=rf"missing: .*{re.escape(renamed(absent))}"):
            from_reference({name: x for name, x in weights.items() if name != absent}, config, variant)
    with pytest.raises(UserError, match=r"without a place: model\.layers\.7\.mlp\.x"):
        from_reference(weights | {"model.layers.7.mlp.x": torch.ones(1)}, config, variant)
    with pytest.raises(UserError, match=r"of another shape: model\.layers\.0\.mlp\.gate_proj\.weight"):
        from_reference(weights | {first: torch.ones(3, 3)}, config, variant)


def test_a_wrong_rank_or_variant_is_named():
    _, config, weights = golden("adape")
    with pytest.raises(UserError, match=r"of another shape: .*position\.contract"):
        from_reference(weights, config | {"position_size": 17}, "adape")
    with pytest.raises(UserError, match="one of: adamlp, adape, adattention, rope"):
        from_reference(weights, config, "adarope")
    with pytest.raises(UserError, match="without a place"):
        from_reference(weights, config, "adamlp")


def test_reference_configurations_are_read_strictly():
    """A size left out, a scaling or a base that is not ours: each would load, and compute something else."""
    _, config, weights = golden("adape")
    with pytest.raises(UserError) as caught:
        from_reference(weights, {}, "adape")
    assert {"config.position_size", "config.hidden_size"} <= {problem.field for problem in caught.value.problems}
    with pytest.raises(UserError, match="not the frequencies of"):
        from_reference(weights, config | {"rope_theta": 5e5}, "adape")
    with pytest.raises(UserError, match="to which it is tied"):
        from_reference(weights, config | {"tie_word_embeddings": True}, "adape")


def test_reference_scaling_is_translated():
    """Its TAPE divides positions by the factor whatever the type says; its rope does so for ``linear`` alone."""
    for variant, kind in (("adape", "yarn"), ("adattention", "linear"), ("rope", "linear")):
        _, config, weights = golden(variant)
        scaled = from_reference(weights, config | {"rope_scaling": {"type": kind, "factor": 2.0}}, variant)
        plain = from_reference(weights, config, variant)
        ids = tokens(1, 20)
        half = plain.model.encoding.start(torch.arange(20)[None] * 0.5)
        assert torch.equal(scaled.model.encoding.start(torch.arange(20)[None]), half)
        assert not torch.equal(scaled(ids).logits, plain(ids).logits)
    _, config, weights = golden("rope")
    with pytest.raises(UserError, match="only linear scaling is reproduced"):
        from_reference(weights, config | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope")
    other_base = from_reference(weights, config | {"rope_theta": 5e5}, "rope")
    assert other_base.config.rope_parameters["rope_theta"] == 10_000.0


def test_it_stands_beside_the_other_conversions():
    assert convert.from_reference is from_reference
