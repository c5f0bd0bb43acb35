"""Conversion: nothing lost, nothing matched loosely."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

from tape_ds.errors import UserError
from tape_ds.models import convert
from tape_ds.models.loading import extendable
from tests.models.helpers import ENCODINGS, HEADS, SIZES, rounding, tiny_config, tiny_model, tokens


def llama(heads="gqa", **changes):
    return LlamaForCausalLM(LlamaConfig(**(SIZES | HEADS[heads] | changes))).eval()


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


def test_a_llama_comes_back_with_every_field(tmp_path):
    """Before it is saved: same configuration, same logits to the last bit. Saved ones: loading/test_families.py."""
    biases = {"attention_bias": True, "mlp_bias": True}
    own = {"tie_word_embeddings": True, "rms_norm_eps": 3e-5, "pad_token_id": 0, "use_cache": False}
    model, ids = llama(rope_parameters=LLAMA3, **biases, **own), tokens(2, 20)
    model.save_pretrained(tmp_path)
    config = convert.tape_config(extendable.read(tmp_path), position_encoding="rope")
    assert config.model_type == "tape" and convert.tape_config(config).position_encoding == "rope"
    back = convert.to_plain(convert.load(tmp_path, config))
    assert torch.equal(back(ids).logits, model(ids).logits)
    ignored = {"_name_or_path", "architectures", "transformers_version"}
    mine, theirs = (
        {k: v for k, v in x.config.to_dict().items() if k not in ignored} for x in (back, model)
    )
    assert mine == theirs


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name not in ("rope", "yarn")])
def test_what_a_llama_cannot_compute_is_no_llama(encoding):
    with pytest.raises(UserError, match="makes a plain Llama"):
        convert.to_plain(tiny_model(encoding=encoding))


@pytest.mark.parametrize("rope_type", ["ntk", "yarn", "linear"])
def test_scaled_angles_leave_in_transformers_terms(rope_type):
    """``ntk`` is a larger base to transformers, and ``yarn`` the encoding is ``rope`` with yarn's angles."""
    parameters = {
        "rope_type": rope_type,
        "rope_theta": 1e4,
        "factor": 2.0,
        "original_max_position_embeddings": 32,
    }
    ours = tiny_model(
        encoding="yarn" if rope_type == "yarn" else "rope", rope_parameters=parameters
    )
    theirs = convert.to_plain(ours)
    if rope_type == "ntk":
        assert theirs.config.rope_parameters["rope_type"] == "default"
        assert theirs.config.rope_parameters["rope_theta"] == pytest.approx(1e4 * 2 ** (8 / 6))
    ids = tokens(2, 60)
    torch.testing.assert_close(
        theirs(ids).logits, ours(ids).logits, rtol=0, atol=rounding(ours, ids)
    )


@pytest.mark.parametrize("given", [{}, {"original_max_position_embeddings": 16}], ids=str)
@pytest.mark.parametrize("length", [24, 64, 65])
def test_a_llama_with_dynamic_scaling_is_one_here(tmp_path, length, given):
    """Its window is its ``max_position_embeddings``; another one in its ``rope_parameters`` is ignored by transformers
    too."""
    model = llama(
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, **given}
    )
    model.save_pretrained(tmp_path)
    native = extendable.read(tmp_path)
    config = convert.tape_config(native, position_encoding="rope")
    assert config.rope_parameters["original_max_position_embeddings"] == 64
    ids = tokens(1, length)
    torch.testing.assert_close(
        convert.load(tmp_path, config)(ids).logits, model(ids).logits, rtol=0, atol=1e-5
    )


def change_weights(folder, change):
    """Rewrite the folder's weights by ``change(tensors)``."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda x: x.pop("model.norm.weight"), "missing: model.norm.weight"),
        (lambda x: x.update(extra=torch.ones(1)), "without a place: extra"),
        (
            lambda x: x.update({"model.norm.weight": torch.ones(5)}),
            "another shape: model.norm.weight",
        ),
    ],
)
def test_a_damaged_llama_is_refused(tmp_path, change, words):
    """transformers would fill the gap with random numbers and train on."""
    llama().save_pretrained(tmp_path)
    change_weights(tmp_path, change)
    with pytest.raises(UserError, match=words):
        convert.load(tmp_path, convert.tape_config(AutoConfig.from_pretrained(tmp_path)))


def test_one_lost_position_update_is_refused(tmp_path):
    """A kind of update may be absent (it starts at zero effect), but not in one layer alone."""
    model = tiny_model()
    model.save_pretrained(tmp_path)
    change_weights(tmp_path, lambda x: x.pop("model.layers.1.position.attend.weight"))
    with pytest.raises(
        UserError, match=r"missing: model\.layers\.1\.position\.attend\.weight$|missing: .*attend"
    ):
        convert.load(tmp_path, model.config)
    change_weights(tmp_path, lambda x: x.pop("model.layers.0.position.attend.weight"))
    loaded = convert.load(tmp_path, model.config)
    assert (loaded.model.layers[0].position.attend.weight == 0).all()
    assert torch.equal(
        loaded.model.layers[0].position.gate.weight, model.model.layers[0].position.gate.weight
    )


def test_stored_frequencies_of_old_checkpoints_are_recomputed(tmp_path):
    """Llama 2's files on the hub hold ``rotary_emb.inv_freq`` in every layer; they follow from the configuration."""
    llama().save_pretrained(tmp_path)
    change_weights(
        tmp_path,
        lambda x: x.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}),
    )
    convert.load(tmp_path, convert.tape_config(extendable.read(tmp_path)))


@pytest.mark.parametrize("encoding", ["t5", "bipe_rope", "tape"])
def test_parameters_that_a_llama_lacks_are_new_and_in_the_log(encoding, tmp_path, caplog):
    """Everything else comes from the Llama; the encoding's own start as in a new model."""
    plain = tiny_model(encoding="rope")
    convert.to_plain(plain).save_pretrained(tmp_path)
    with caplog.at_level("INFO", logger="tape_ds.models.convert"):
        model = convert.load(tmp_path, tiny_config(encoding=encoding))
    own = {name for name, _ in model.named_parameters()} - plain.state_dict().keys()
    assert own and "new parameters of the encoding" in caplog.text
    assert all(name.partition("position.")[2] or name.partition("encoding.")[2] for name in own)
    for name, weight in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight)
