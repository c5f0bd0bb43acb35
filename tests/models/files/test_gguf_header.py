"""A GGUF file's header: the configuration that it states, and everything it says that would be lost."""

import numpy as np
import pytest
from gguf import GGUFWriter

from tape_ds.errors import UserError
from tape_ds.models.files import gguf_header
from tape_ds.models.loading import known_config

SIZES = {
    "block_count": 1,
    "embedding_length": 8,
    "feed_forward_length": 16,
    "context_length": 64,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.key_length": 6,
}
CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 6,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64,
    "vocab_size": 4,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.5},
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": None,
}


def header_file(path, architecture="qwen3", fields=None, tensors=(), divisors=None):
    """A GGUF file of one block with a norm."""
    writer = GGUFWriter(path, architecture)
    rope = {"rope.freq_base": 1e6, "rope.scaling.factor": 2.5}
    for name, value in {
        **SIZES,
        **rope,
        "attention.layer_norm_rms_epsilon": 1e-6,
        **(fields or {}),
    }.items():
        key = f"{architecture}.{name}"
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif type(value) is int:
            writer.add_uint32(key, value)
        elif value is not None:
            writer.add_float32(key, value)
    writer.add_bos_token_id(1)
    writer.add_token_list(["a", "b", "c", "d"])
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    for name in ("blk.0.attn_norm.weight", *tensors):
        writer.add_tensor(name, np.zeros(8, np.float32))
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", np.float32(divisors))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_configuration_is_read_without_the_weights(tmp_path):
    """transformers took a head of 128 columns for every Qwen3."""
    assert gguf_header.read(header_file(tmp_path / "x.gguf")).config() == CONFIG


def test_a_file_of_the_same_name_is_read_again(tmp_path):
    header_file(tmp_path / "x.gguf")
    assert gguf_header.read(tmp_path / "x.gguf").config()["max_position_embeddings"] == 64
    (tmp_path / "x.gguf").unlink()
    header_file(tmp_path / "x.gguf", fields={"context_length": 4096, "name": "longer"})
    assert gguf_header.read(tmp_path / "x.gguf").config()["max_position_embeddings"] == 4096


def test_numbers_of_every_layer_are_read_where_they_are_one(tmp_path):
    same = header_file(tmp_path / "same.gguf", fields={"attention.head_count_kv": [2, 2, 2]})
    assert gguf_header.read(same).config()["num_key_value_heads"] == 2
    differing = header_file(tmp_path / "differing.gguf", fields={"attention.head_count_kv": [2, 1]})
    with pytest.raises(
        UserError, match=r"differing\.gguf.*layers differ in qwen3\.attention\.head_count_kv"
    ):
        gguf_header.read(differing).config()


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"fields": {"rope.scaling.type": "longrope"}}, r"longrope, whose factors are not read"),
        ({"fields": {"rope.scaling.alpha": 2.0}}, r"rope\.scaling\.alpha = 2\.0 is unknown"),
        ({"fields": {"expert_count": 8}}, "a mixture of 8 experts"),
        ({"fields": {"rope.dimension_count": 4}}, "rotates 4 of 6 columns"),
        ({"fields": {"context_length": None}}, "max_position_embeddings is None"),
        ({"fields": {"block_count": "one"}}, r"qwen3\.block_count is 'one'"),
        (
            {"tensors": ["blk.0.attn_q.bias", "blk.0.attn_sinks.weight"]},
            r"a qwen3: attn_q\.bias, attn_sinks\.weight",
        ),
        ({"divisors": [1.0, 2.0, 4.0]}, "for a Llama alone"),
        (
            {
                "architecture": "llama",
                "divisors": [1.0, 2.5, 2.0],
                "fields": {"rope.scaling.factor": None},
            },
            "Llama 3's",
        ),
    ],
)
def test_what_would_be_lost_is_refused_by_the_files_name(tmp_path, options, wrong):
    """A longrope file ended in a traceback, KeyError: 'long_factor'; biases were passed over."""
    file = header_file(tmp_path / "x.gguf", **options)
    with pytest.raises(UserError, match=wrong) as caught:
        gguf_header.read(file).config()
    assert str(file) in str(caught.value)
    assert known_config.check_model(str(file), online=False) == caught.value.problems, (
        "found by a check of the recipe"
    )


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        (lambda content: content[:-8], "before the last of its tensors does"),
        (lambda content: content[:100], "in the middle of its header|a length of"),
        (lambda content: b"junk" * 50, "does not begin with GGUF"),
        (lambda content: b"", "does not begin with GGUF"),
        (lambda content: content[:4] + b"\x09" + content[5:], "its version is 9"),
    ],
)
def test_a_damaged_file_is_a_message(tmp_path, damage, wrong):
    file = header_file(tmp_path / "x.gguf")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=rf"could not be read \({wrong}|could not be read.*{wrong}"):
        gguf_header.read(file)


def test_a_dry_run_knows_the_length_and_the_scaling(tmp_path):
    known = known_config.known(str(header_file(tmp_path / "x.gguf")), online=False)
    assert known == CONFIG
    assert known_config.known(str(tmp_path / "none.gguf"), online=False) is None
