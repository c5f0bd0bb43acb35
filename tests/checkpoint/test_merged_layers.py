"""Each layer of an adapter is merged as peft merges it, and compared with the layer that peft computes unmerged."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import layer as lora
from peft.tuners.lora.variants import DoraLinearVariant
from torch import nn

from tape_ds.checkpoint.merged_layers import Adapter, MergedLayer, MergedLinear, merged_layer
from tape_ds.errors import UserError
from tape_ds.models import hollow
from tape_ds.models.files.tensor_rows import LoadedRows
from tape_ds.models.hollow import WeightSource
from tape_ds.models.model_weights import NotByTensorError

ADAPTER = Adapter("model", "an adapter", "LORA")


class Maps(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(24, 40)
        self.table = nn.Embedding(50, 24)
        self.picture = nn.Conv2d(3, 4, 2)

    def forward(self, ids):
        return self.map(self.table(ids))


def wrapped(target, **options):
    """peft's layer with random weights, and the base's weights."""
    torch.manual_seed(0)
    model = Maps()
    base = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    config = LoraConfig(
        **{"r": 4, "lora_alpha": 8, "target_modules": [target], "init_lora_weights": False}
        | options
    )
    return get_peft_model(model, config).eval().get_base_model().get_submodule(target), base


def merged(layer, base, target, dtype=torch.float32):
    """The layer as it is merged, after its base's weights were taken away."""
    inner = layer.get_base_layer()
    hollow.empty(inner, torch.float32)
    stored = LoadedRows({name: tensor.to(dtype) for name, tensor in base.items()})
    sources = {
        parameter: WeightSource(stored, f"{target}.{name}")
        for name, parameter in inner.named_parameters()
    }
    return merged_layer(target, layer, sources, ADAPTER)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"r": 1, "lora_alpha": 3}])
def test_lora_over_a_linear_map_is_merged_by_rows_as_peft_does(options, dtype):
    """To the last bit, whatever rows are asked for: peft multiplies and adds in the same order."""
    layer, base = wrapped("map", **options)
    ours = merged(layer, base, "map", dtype)
    assert type(ours) is MergedLinear and ours.names == ["weight", "bias"]
    expected = base["map.weight"].to(dtype).float() + layer.get_delta_weight("default")
    assert torch.equal(ours.rows("weight"), expected)
    assert torch.equal(ours.rows("weight", 16, 24), expected[16:24])
    assert torch.equal(ours.rows("bias"), base["map.bias"].to(dtype))


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("map", {"use_dora": True}),
        ("map", {"lora_bias": True}),
        ("table", {}),
        ("table", {"use_dora": True}),
    ],
)
def test_any_other_layer_is_merged_by_peft(target, options):
    layer, base = wrapped(target, **options)
    ids = torch.arange(50)
    inputs = ids if target == "table" else torch.randn(5, 24)
    with torch.no_grad():
        expected = layer(inputs)
    ours = merged(layer, base, target)
    assert type(ours) is MergedLayer
    own = {name: ours.rows(name) for name in ours.names}
    plain = (
        nn.functional.embedding(ids, own["weight"])
        if target == "table"
        else inputs @ own["weight"].T + own["bias"]
    )
    torch.testing.assert_close(plain, expected, atol=1e-5, rtol=0)
    assert all(map(hollow.is_hollow, layer.get_base_layer().parameters())), "weights are let go of"
    ours.forget()
    assert torch.equal(ours.rows("weight"), own["weight"]), "and it is merged again"


def test_a_merge_that_is_not_the_adapter_is_refused(monkeypatch):
    """A layer of either way, changed by a little in one number."""
    layer, base = wrapped("map")
    ours = merged(layer, base, "map")
    ours.rows("weight")
    ours._factors.up_OR[3, 1] += 0.01
    with pytest.raises(
        UserError, match=r"merging changed the output of map by .* more than rounding .*kind: LORA"
    ):
        ours.rows("weight")
    ours.rows("weight", 4, None)  # other rows are as they should be

    merge = DoraLinearVariant.merge_safe

    def wrong(module, name, weight):
        changed = merge(module, name, weight)
        changed[3, 1] += 0.01
        return changed

    monkeypatch.setattr(DoraLinearVariant, "merge_safe", staticmethod(wrong))
    layer, base = wrapped("map", use_dora=True)
    ours = merged(layer, base, "map")
    with pytest.raises(UserError, match="merging changed the output of map"):
        ours.rows("weight")


def test_weights_that_are_not_finite_come_out_as_they_are():
    """They are refused with their names where they are written; peft would say that the adapter seems to be broken."""
    for options in ({}, {"use_dora": True}):
        layer, base = wrapped("map", **options)
        base["map.weight"][2, 2] = float("nan")
        ours = merged(layer, base, "map")
        rows = ours.rows("weight")
        assert rows.isnan().sum() == 1 and rows[2, 2].isnan()


def test_a_layer_of_another_kind_is_left_to_the_whole_model():
    layer, base = wrapped("picture")
    with pytest.raises(NotByTensorError, match=r"picture: Conv2d over Conv2d"):
        merged(layer, base, "picture")
    assert not MergedLinear.fits(layer) and isinstance(layer, lora.Conv2d)
