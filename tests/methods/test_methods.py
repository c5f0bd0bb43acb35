"""What each method trains, by exact name; the published recipe froze what it meant to train by a misspelt substring."""

from types import SimpleNamespace

import pytest
import torch

from tape_ds.errors import UserError
from tape_ds.methods.prepare import assert_trainable, prepare_model
from tests.models.helpers import tiny_model, tokens

NORMS = {
    *(
        f"model.layers.{i}.{kind}_layernorm.weight"
        for i in range(3)
        for kind in ("input", "post_attention")
    ),
    "model.norm.weight",
}
POSITION = {
    f"model.layers.{i}.position.{kind}.weight"
    for i in range(2)
    for kind in ("attend", "gate", "expand", "contract")
}


def settings(**changes):
    """A method section."""
    defaults = {
        "train_position": True,
        "train_norms": True,
        "train_embeddings": False,
        "lora_r": 2,
        "lora_alpha": 4,
        "lora_dropout": 0.0,
        "lora_targets": ["q_proj", "o_proj"],
        "group_tokens": None,
    }
    return SimpleNamespace(**(defaults | changes))


def test_tape_trains_exactly_the_groups_and_full_everything():
    assert set(prepare_model("tape", tiny_model(), settings()).names) == POSITION | NORMS
    only = prepare_model(
        "tape", tiny_model(), settings(train_norms=False, train_embeddings=True)
    ).names
    assert set(only) == POSITION | {"model.embed_tokens.weight"}

    model = tiny_model()
    assert set(prepare_model("full", model, settings()).names) == {
        name for name, _ in model.named_parameters()
    }


def test_lora_adapts_targets_and_copies_groups_whole():
    """Nothing but the targets is adapted; norms are trained as whole copies; position updates only if asked."""
    trained = prepare_model("lora", tiny_model(encoding="rope"), settings(train_position=False))
    adapters = {name for name in trained.names if "lora_" in name}
    assert len(adapters) == 3 * 2 * 2 and all(
        ".q_proj." in name or ".o_proj." in name for name in adapters
    )
    rest = set(trained.names) - adapters
    assert len(rest) == len(NORMS) and all(
        "norm" in name and "modules_to_save" in name for name in rest
    )


@pytest.mark.parametrize(
    ("method", "encoding", "changes", "field"),
    [
        ("tape", "rope", {}, "train_position"),
        ("tape", "tape", {"train_position": False, "train_norms": False}, "method"),
        ("lora", "tape", {"lora_targets": ["query"]}, "lora_targets"),
    ],
)
def test_nothing_to_train_is_refused(method, encoding, changes, field):
    with pytest.raises(UserError) as caught:
        prepare_model(method, tiny_model(encoding=encoding), settings(**changes))
    assert [problem.field for problem in caught.value.problems] == [field]


def test_a_scaling_alone_trains_nothing_and_the_control_the_norms():
    model = tiny_model(encoding="rope")
    assert prepare_model("yarn", model, settings(train_position=False)).names == ()
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert set(prepare_model("norms", model, settings(train_position=False)).names) == NORMS


def test_longlora_is_lora_with_grouped_attention_in_training():
    plain = prepare_model("lora", tiny_model(encoding="rope"), settings(train_position=False))
    grouped = prepare_model(
        "longlora", tiny_model(encoding="rope"), settings(train_position=False, group_tokens=4)
    )
    assert grouped.names == plain.names
    grouped.model.load_state_dict(plain.model.state_dict())
    ids = tokens(1, 16)
    assert torch.equal(grouped.model.eval()(ids).logits, plain.model.eval()(ids).logits)
    assert not torch.allclose(
        grouped.model.train()(ids).logits, plain.model.train()(ids).logits, atol=1e-4
    )


def test_tape_and_lora_train_both():
    trained = prepare_model("tape+lora", tiny_model(), settings()).names
    assert sum(".position." in name for name in trained) == len(POSITION)
    assert sum("lora_" in name for name in trained) == 3 * 2 * 2


def test_an_encoding_within_another_is_copied_once_with_adapters():
    """With Abacus around BiPE, a second copy of BiPE's table would be trained, and the one that is read stay frozen."""
    digits = {"abacus": True, "abacus_digits": list(range(20, 50))}
    model = tiny_model(encoding="bipe_rope", position_options={"separators": [7], **digits})
    trained = prepare_model("lora", model, settings())
    ids = tokens(2, 16)
    trained.model.train()(input_ids=ids, labels=ids).loss.backward()
    found = {
        name: parameter.grad
        for name, parameter in trained.model.named_parameters()
        if name in trained.names
    }
    tables = {name: grad for name, grad in found.items() if "encoding" in name}
    assert sorted(name.split("default.")[1] for name in tables) == [
        "digits.weight",
        "inner.intra.weight",
    ]
    assert all(grad is not None and grad.any() for grad in tables.values())


def test_a_changed_set_is_noticed():
    trained = prepare_model("tape", tiny_model(), settings())
    assert_trainable(trained.model, trained.names)
    trained.model.lm_head.requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"not meant to train \['lm_head.weight'\]"):
        assert_trainable(trained.model, trained.names)
