"""Parameters as counted against the models themselves, and which of them a method trains."""

import pytest

from tape_ds import TapeConfig, TapeForCausalLM, encodings
from tape_ds.encodings import registry
from tape_ds.methods.prepare import prepare_model
from tape_ds.planning import shape
from tape_ds.planning.shape import TrainedShape
from tests.planning.helpers import published
from tools.experiments.flops import PLACEHOLDERS, parameters

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 99,
}


def small(encoding="tape", **changes):
    return TapeConfig(
        **{**SMALL, "position_encoding": encoding, **PLACEHOLDERS.get(encoding, {}), **changes}
    )


@pytest.mark.parametrize("encoding", encodings.available())
def test_all_parameters_of_every_encoding(encoding):
    config = small(encoding)
    found = shape.tensors(shape.sizes(config), TrainedShape.everything())
    assert shape.total(found) == parameters(config) == shape.total(found, trained=True)


@pytest.mark.parametrize(
    ("name", "billions"), [("llama2-7b", 6.738), ("llama2-70b", 68.977), ("llama3-8b", 8.030)]
)
def test_published_sizes(name, billions):
    """The parameter counts of the models' own pages."""
    model = shape.sizes(published(name))
    assert round(shape.total(shape.tensors(model, TrainedShape())) / 1e9, 3) == billions


class Settings:
    train_position = train_norms = train_embeddings = True
    lora_r, lora_alpha, lora_dropout, lora_targets = 4, 8, 0.0, ["q_proj", "down_proj"]
    group_tokens = 16


@pytest.mark.parametrize(
    ("method", "trained"),
    [
        ("full", TrainedShape.everything()),
        ("tape", TrainedShape(norms=True, embeddings=True, positions=True)),
        (
            "tape+lora",
            TrainedShape(
                norms=True,
                embeddings=True,
                positions=True,
                adapters=(("q_proj", 4), ("down_proj", 4)),
            ),
        ),
    ],
)
def test_what_a_method_trains(method, trained):
    """Counted on the model that the method really makes; peft keeps a frozen original of each trained copy."""
    config = small(tie_word_embeddings=False, num_key_value_heads=2)
    prepared = prepare_model(method, TapeForCausalLM(config), Settings)
    parameters = dict(prepared.model.named_parameters())
    found = shape.tensors(shape.sizes(config), trained)
    assert shape.total(found) == sum(each.numel() for each in parameters.values())
    assert shape.total(found, trained=True) == sum(
        parameters[name].numel() for name in prepared.names
    )


def test_tensor_parallelism_splits_matrices_and_leaves_norms_whole():
    model = shape.sizes(small())
    whole, half = shape.tensors(model, TrainedShape()), shape.tensors(model, TrainedShape(), 2)
    for before, after in zip(whole, half, strict=True):
        assert after.total == (
            before.total / 2 if before.kind in ("linear", "head", "embedding") else before.total
        )
    # of an adapter the factor that meets the split side
    found = shape.tensors(model, TrainedShape(adapters=(("q_proj", 4), ("o_proj", 4))))
    assert [each.split for each in found if each.kind == "adapter"] == [False, True, True, False]


@pytest.mark.parametrize(
    ("encoding", "nope_layers"),
    [("tape", None), ("tape", [0, 4]), ("repo", 2), ("repo", [5]), ("fox", [5])],
)
def test_layers_of_every_kind_are_counted(encoding, nope_layers):
    """Only one of each kind is built: those without positions, the last one, and those below RePo's first."""
    options = {} if nope_layers is None else {"nope_layers": nope_layers}
    config = small(encoding, position_options=options, num_hidden_layers=6)
    found = shape.sizes(config)
    assert shape.total(shape.tensors(found, TrainedShape())) == parameters(config)
    fixed, for_each_key = found.position_work
    counted = [
        registry.build_layer(config, layer).multiplications_per_token(7.0) for layer in range(6)
    ]
    assert sum(counted) == pytest.approx(fixed + 7 * for_each_key)
