"""Conversion: nothing lost, nothing matched loosely."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from tape_ds.errors import UserError
from tape_ds.models import convert
from tape_ds.models.loading import extendable
from tests.models.helpers import ENCODINGS, HEADS, SIZES, rounding, tiny_config, tiny_model, tokens


def llama(heads="gqa", **changes):
    return LlamaForCausalLM(LlamaConfig(**(SIZES | HEADS[heads] | changes))).eval()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("encoding", ["rope", "tape"])
def test_a_saved_llama_loads_as_itself(tmp_path, heads, tied, encoding):
    model = llama(heads, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    config = convert.tape_config(extendable.read(tmp_path), position_encoding=encoding)
    ours = convert.load(tmp_path, config)
    assert (ours.lm_head.weight is ours.model.embed_tokens.weight) == tied
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, ours.state_dict()[name])
    ids = tokens(2, 33)
    torch.testing.assert_close(ours(ids).logits, model(ids).logits, rtol=0, atol=rounding(ours, ids))


@pytest.mark.parametrize("rope_type", ["default", "yarn", "llama3"])
@pytest.mark.parametrize("tied", [True, False])
def test_there_and_back_is_bit_exact(tmp_path, tied, rope_type):
    """The Llama that comes back works at once and after saving: same weights, same logits to the last bit."""
    scaled = {"factor": 2.0, "original_max_position_embeddings": 32}
    parameters = {
        "default": {},
        "yarn": scaled,
        "llama3": scaled | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    }[rope_type] | {"rope_type": rope_type, "rope_theta": 10_000.0}
    model = llama(tie_word_embeddings=tied, rope_parameters=parameters)
    model.save_pretrained(tmp_path / "llama")
    config = convert.tape_config(extendable.read(tmp_path / "llama"), position_encoding="rope")
    back = convert.to_plain(convert.load(tmp_path / "llama", config))
    back.save_pretrained(tmp_path / "back")
    ids = tokens(2, 20)
    for other in (back, LlamaForCausalLM.from_pretrained(tmp_path / "back")):
        assert torch.equal(other(ids).logits, model(ids).logits)
        assert all(torch.equal(x, other.state_dict()[name]) for name, x in model.state_dict().items())
        assert type(other.config) is LlamaConfig and other.config.model_type == "llama"
    ignored = {"_name_or_path", "architectures", "transformers_version"}
    mine, theirs = ({k: v for k, v in x.config.to_dict().items() if k not in ignored} for x in (back, model))
    assert mine == theirs


@pytest.mark.parametrize("head_size", [8, 16])
@pytest.mark.parametrize("tied", [True, False])
def test_a_qwen2_comes_back_as_a_qwen2(tmp_path, tied, head_size):
    """Biases on queries, keys and values and none on outputs: no Llama has that. Its head size may be its own."""
    sizes = {name: SIZES[name] for name in SIZES if name != "head_dim"} | HEADS["gqa"]
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, head_dim=head_size, tie_word_embeddings=tied)).eval()
    for name, weight in model.named_parameters():
        if name.endswith(".bias"):  # zero in a new model, and without effect
            torch.nn.init.normal_(weight)
    model.save_pretrained(tmp_path / "qwen2")
    config = convert.tape_config(extendable.read(tmp_path / "qwen2"), position_encoding="rope")
    assert config.qkv_bias and convert.tape_config(config).qkv_bias
    back = convert.to_plain(convert.load(tmp_path / "qwen2", config))
    back.save_pretrained(tmp_path / "back")
    ids = tokens(2, 20)
    for other in (back, AutoModelForCausalLM.from_pretrained(tmp_path / "back")):
        assert type(other) is Qwen2ForCausalLM
        assert torch.equal(other(ids).logits, model(ids).logits)
        assert all(torch.equal(x, other.state_dict()[name]) for name, x in model.state_dict().items())
    ignored = {"_name_or_path", "architectures", "transformers_version"}
    mine, theirs = ({k: v for k, v in x.config.to_dict().items() if k not in ignored} for x in (back, model))
    if head_size == SIZES["hidden_size"] // HEADS["gqa"]["num_attention_heads"]:
        del theirs["head_dim"]  # follows from the others
    assert mine == theirs


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name not in ("rope", "yarn")])
def test_what_a_llama_cannot_compute_is_no_llama(encoding):
    """Not ``tape`` without updates either, although it computes the same: an encoding says so for itself."""
    with pytest.raises(UserError, match="only RoPE scaling that transformers knows makes a plain Llama"):
        convert.to_plain(tiny_model(encoding=encoding))


@pytest.mark.parametrize("rope_type", ["ntk", "yarn", "linear"])
def test_scaled_angles_leave_in_transformers_terms(rope_type):
    """``ntk`` is a larger base to transformers, and ``yarn`` the encoding is ``rope`` with yarn's angles."""
    parameters = {"rope_type": rope_type, "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 32}
    ours = tiny_model(encoding="yarn" if rope_type == "yarn" else "rope", rope_parameters=parameters)
    theirs = convert.to_plain(ours)
    if rope_type == "ntk":
        assert theirs.config.rope_parameters["rope_type"] == "default"
        assert theirs.config.rope_parameters["rope_theta"] == pytest.approx(1e4 * 2 ** (8 / 6))
    ids = tokens(2, 60)
    torch.testing.assert_close(theirs(ids).logits, ours(ids).logits, rtol=0, atol=rounding(ours, ids))


def test_every_llama_field_is_kept():
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 32}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    source = LlamaConfig(
        **(SIZES | HEADS["gqa"]),
        rope_parameters=rope,
        tie_word_embeddings=True,
        dtype="bfloat16",
        attention_bias=True,
        mlp_bias=True,
        rms_norm_eps=3e-5,
        pad_token_id=0,
        use_cache=False,
    )
    config = convert.tape_config(source, position_encoding="rope")
    assert config.model_type == "tape"
    ignored = {"model_type", "architectures", "transformers_version", "_name_or_path"}
    for name, value in source.to_dict().items():
        assert name in ignored or config.to_dict()[name] == value, name
    again = convert.tape_config(config, state_dtype="float32")
    assert (again.position_encoding, again.state_dtype) == ("rope", "float32")
    config.rope_parameters["factor"] = 16.0
    assert source.rope_parameters["factor"] == 8.0


def test_a_wrong_change_is_named():
    with pytest.raises(UserError, match="no field of TapeConfig"):
        convert.tape_config(LlamaConfig(), positon_encoding="rope")
    with pytest.raises(UserError, match="did you mean 'rope'"):
        convert.tape_config(LlamaConfig(), position_encoding="ropee")


@pytest.mark.parametrize("said", [{}, {"original_max_position_embeddings": 16}], ids=str)
@pytest.mark.parametrize("length", [20, 64, 65, 150])
def test_a_llama_with_dynamic_scaling_is_one_here(tmp_path, length, said):
    """Its window is its ``max_position_embeddings``, which its ``rope_parameters`` need not repeat. Where they say
    another, transformers ignores it; here it was taken for the window, and logits were off by 5.6 at 24 tokens."""
    model = llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, **said})
    model.save_pretrained(tmp_path)
    native = extendable.read(tmp_path)
    config = convert.tape_config(native, position_encoding="rope")
    assert config.rope_parameters == convert.tape_config(model.config).rope_parameters == native.rope_parameters
    assert config.rope_parameters["original_max_position_embeddings"] == 64
    ids = tokens(1, length)
    torch.testing.assert_close(convert.load(tmp_path, config)(ids).logits, model(ids).logits, rtol=0, atol=1e-5)


def change_weights(folder, change):
    """Rewrite the folder's weights by ``change(tensors)``."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda x: x.pop("model.norm.weight"), r"missing: model\.norm\.weight"),
        (lambda x: x.update(extra=torch.ones(1)), "without a place: extra"),
        (
            lambda x: x.update({"model.norm.weight": torch.ones(5)}),
            r"another shape: model\.norm\.weight \[5\], not \[32\]",
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
    with pytest.raises(UserError, match=r"missing: model\.layers\.1\.position\.attend\.weight$|missing: .*attend"):
        convert.load(tmp_path, model.config)
    change_weights(tmp_path, lambda x: x.pop("model.layers.0.position.attend.weight"))
    loaded = convert.load(tmp_path, model.config)
    assert (loaded.model.layers[0].position.attend.weight == 0).all()
    assert torch.equal(loaded.model.layers[0].position.gate.weight, model.model.layers[0].position.gate.weight)


def test_another_form_of_update_is_refused(tmp_path):
    tiny_model(encoding="tape").save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"attend\.weight \[2, 4\], not \[4\]"):
        convert.load(tmp_path, tiny_config(encoding="tape scale"))


def test_stored_frequencies_of_old_checkpoints_are_recomputed(tmp_path):
    """Llama 2's files on the hub hold ``rotary_emb.inv_freq`` in every layer; they follow from the configuration."""
    llama().save_pretrained(tmp_path)
    change_weights(tmp_path, lambda x: x.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    convert.load(tmp_path, convert.tape_config(extendable.read(tmp_path)))


@pytest.mark.parametrize("encoding", ["t5", "fire", "bipe_rope", "tape", "tape separate"])
def test_a_llama_has_no_encoding_s_parameters_and_the_log_says_which_are_new(encoding, tmp_path, caplog):
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
