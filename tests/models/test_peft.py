"""What peft does with any transformers model, done with ours."""

import peft
import pytest
import torch

from tests.models.helpers import WITH_EVERY_HEADS, rounding, tiny_model, tokens


@pytest.mark.parametrize("encoding", WITH_EVERY_HEADS)
def test_replicated_layers_have_positions_of_their_own_in_a_cache(encoding):
    """peft renumbers the copies by the name ``layer_idx``; under another name two copies write to one place in the
    cache."""
    config = peft.LoraConfig(target_modules=["q_proj"], layer_replication=[(0, 2), (1, 3), (1, 3)])
    model, ids = peft.get_peft_model(tiny_model(encoding=encoding), config).eval(), tokens(2, 12)
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        first = model(ids[:, :7], use_cache=True)
        second = model(ids[:, 7:], past_key_values=first.past_key_values)
    assert len(first.past_key_values.layers) == 6
    cached = torch.cat((first.logits, second.logits), dim=1)
    torch.testing.assert_close(cached, whole, rtol=0, atol=rounding(model, ids))


def prefixed(encoding):
    """A prefix of four positions, trained as peft does, and ids."""
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    return peft.get_peft_model(tiny_model(encoding=encoding), config).eval(), tokens(2, 9)


@pytest.mark.parametrize("encoding", ["rope", "xpos", "sincos", "randpe", "repo"])
def test_a_prefix_is_seen(encoding):
    """Keys and values from elsewhere are all that a plain cache holds: every number of the prefix gets a gradient."""
    model, ids = prefixed(encoding)
    model(ids, labels=ids).loss.backward()
    assert bool((model.prompt_encoder.default.embedding.weight.grad != 0).all())
    assert model.generate(input_ids=ids, max_new_tokens=3, min_new_tokens=3).shape == (2, 12)


@pytest.mark.parametrize("encoding", ["tape", "alibi", "bipe_rope", "rope dynamic"])
def test_a_prefix_without_positions_or_states_is_refused_by_name(encoding):

    model, ids = prefixed(encoding)
    with pytest.raises(
        ValueError, match=r"keeps \d+, positions or position states among them.*prefix tuning"
    ):
        model(ids)
