"""New weights: a function of the seed and the name."""

import pytest
import torch

from tape_ds import TapeForCausalLM, encodings
from tape_ds.methods import init_weights
from tests.models.helpers import tiny_config
from tools.experiments.flops import PLACEHOLDERS

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "vocab_size": 512,
    "initializer_range": 0.05,
}


def config(encoding="tape", **changes):
    """A configuration large enough to see the spread of its weights."""
    own = PLACEHOLDERS.get(encoding, {})
    return tiny_config("mha", "rope", **(SIZES | {"position_encoding": encoding} | own | changes))


def build(encoding="tape", seed=1, dtype=torch.float32, **changes):
    return init_weights.build(config(encoding, **changes), seed, dtype)


def test_weights_follow_from_the_seed_and_nothing_else():
    """Not from random numbers drawn before, nor are those drawn after changed; precision only rounds."""
    torch.manual_seed(3)
    one, after = build(), torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), after)
    torch.manual_seed(4)
    other, third = build(dtype=torch.bfloat16), build(seed=2)
    for (name, a), b, c in zip(
        one.named_parameters(), other.parameters(), third.parameters(), strict=True
    ):
        assert torch.equal(a.bfloat16(), b), name
        assert a.std() == 0 or not torch.equal(a, c), name


@pytest.mark.parametrize("encoding", encodings.available())
def test_encodings_share_the_weights_that_all_have(encoding):
    """A comparison at one seed compares encodings, not draws."""
    rope = dict(build("rope").named_parameters())
    mine = dict(build(encoding).named_parameters())
    assert rope.keys() <= mine.keys()
    for name, weight in rope.items():
        assert torch.equal(weight, mine[name]), name
    assert all(weight.isfinite().all() for weight in mine.values())


def test_values_are_those_of_the_model_s_own_initialisation():
    """Norms 1, updates that must start without effect 0, all else normal of the configured spread."""
    own = TapeForCausalLM(config())
    for (name, mine), theirs in zip(build().named_parameters(), own.parameters(), strict=True):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        if theirs.std() == 0:
            assert torch.equal(mine, theirs), name
        else:
            expected = 0.05 * (2 * mine.numel()) ** -0.5  # standard error of a normal's spread
            assert abs(float(mine.detach().std()) - 0.05) < 5 * expected, name
            assert abs(float(mine.detach().mean())) < 10 * expected, name


def test_tied_embeddings_stay_tied():
    tied, free = build(tie_word_embeddings=True), build()
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert torch.equal(tied.model.embed_tokens.weight, free.model.embed_tokens.weight)
    assert not torch.equal(free.lm_head.weight, free.model.embed_tokens.weight)


def test_a_parameter_without_a_value_is_noticed(monkeypatch):
    """What _init_weights leaves out would hold whatever memory held."""
    monkeypatch.setattr(TapeForCausalLM, "_init_weights", lambda self, module: None)
    with pytest.raises(RuntimeError, match=r"gives no value to model\.embed_tokens\.weight"):
        build()
