"""Every family that can be extended computes here what it computes in transformers; others are refused with the reason.

The configurations are those that the families publish, with tiny sizes: old fields (``rope_scaling``, its ``type``, no
``rope_theta``) are part of the proof.
"""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tape_ds.errors import UserError
from tape_ds.models import convert
from tape_ds.models.loading import extendable
from tests.models.helpers import tokens

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 61,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 32,
}
LLAMA = {"model_type": "llama", **SIZES}
QWEN2 = {
    "model_type": "qwen2",
    **SIZES,
    "num_key_value_heads": 2,
    "rope_theta": 1e6,
    "max_position_embeddings": 64,
    "use_sliding_window": False,
    "sliding_window": 64,
    "max_window_layers": 2,
}
QWEN3 = {
    "model_type": "qwen3",
    **SIZES,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rope_theta": 1e6,
    "rope_scaling": None,
    "max_position_embeddings": 64,
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 3,
}
MISTRAL = {
    "model_type": "mistral",
    **SIZES,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
PUBLISHED = {
    "llama 3": LLAMA
    | {"num_key_value_heads": 2, "max_position_embeddings": 64, "rope_theta": 5e5}
    | {"pretraining_tp": 1, "rope_scaling": None},
    "llama 3.1": LLAMA
    | {"num_key_value_heads": 2, "max_position_embeddings": 256, "rope_theta": 5e5}
    | {
        "rope_scaling": {**LLAMA3, "rope_type": "llama3"},
        "eos_token_id": [2, 3],
        "attention_bias": False,
    },
    "llama 3.2": LLAMA
    | {
        "num_key_value_heads": 1,
        "max_position_embeddings": 256,
        "rope_theta": 5e5,
        "tie_word_embeddings": True,
    }
    | {"rope_scaling": {**LLAMA3, "factor": 32.0, "rope_type": "llama3"}, "head_dim": 8},
    "smollm2": LLAMA
    | {
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "rope_theta": 1e5,
        "tie_word_embeddings": True,
    }
    | {"rope_interleaved": False, "is_llama_config": True},
    "with every bias": LLAMA
    | {"attention_bias": True, "mlp_bias": True, "max_position_embeddings": 64},
    "mistral, heads of their own size": MISTRAL
    | {"sliding_window": None, "rope_theta": 1e6, "head_dim": 16},
    "qwen2": QWEN2,
    "qwen2 with yarn, tied, heads of their own size": QWEN2
    | {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}
    | {"tie_word_embeddings": True, "head_dim": 16},
    "qwen3, tied, with biases": QWEN3 | {"tie_word_embeddings": True, "attention_bias": True},
    "qwen2, a window no layer uses": QWEN2 | {"use_sliding_window": True, "max_window_layers": 3},
}


def publish(folder, content):
    """A random model of this configuration, saved with the configuration unchanged; no parameter is silent."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content))
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(folder), dtype=torch.float32
    ).eval()
    for name, weight in model.named_parameters():
        if name.endswith(".bias"):
            torch.nn.init.normal_(weight, std=0.5)
        elif "norm" in name:
            torch.nn.init.normal_(weight, mean=1.0, std=0.1)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(content))
    return model


@pytest.mark.parametrize("encoding", ["rope", "tape"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_family_computes_what_transformers_does(tmp_path, name, encoding):
    """Logits of whole sequences and of padded ones (either side), and what is generated with a cache; fp32 rounding."""
    theirs = publish(tmp_path / "model", PUBLISHED[name])
    config = convert.tape_config(extendable.read(tmp_path / "model"), position_encoding=encoding)
    ours = convert.load(tmp_path / "model", config)
    ids = tokens(3, 45)
    mask = torch.ones_like(ids)
    mask[1, :7], mask[2, -5:] = 0, 0
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=0, atol=2e-5)
        mine, expected = (
            model(ids, attention_mask=mask).logits[mask.bool()] for model in (ours, theirs)
        )
        torch.testing.assert_close(mine, expected, rtol=0, atol=2e-5)
    how = {
        "attention_mask": mask[:2, :20],
        "max_new_tokens": 8,
        "do_sample": False,
        "pad_token_id": 0,
    }
    how |= {"return_dict_in_generate": True, "output_logits": True, "eos_token_id": None}
    mine, expected = (model.generate(ids[:2, :20], **how) for model in (ours, theirs))
    assert torch.equal(mine.sequences, expected.sequences)
    torch.testing.assert_close(
        torch.stack(mine.logits), torch.stack(expected.logits), rtol=0, atol=2e-5
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_family_leaves_as_it_came(tmp_path, name):
    """Bit for bit: every tensor, and every logit of the plain model that comes back."""
    theirs = publish(tmp_path / "model", PUBLISHED[name])
    config = convert.tape_config(extendable.read(tmp_path / "model"), position_encoding="rope")
    convert.to_plain(convert.load(tmp_path / "model", config)).save_pretrained(tmp_path / "plain")
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    family = name.split(",")[0].split(" ")[0]
    assert back.config.model_type == (family if family.startswith("qwen") else "llama")
    assert theirs.state_dict().keys() == back.state_dict().keys()
    assert all(
        torch.equal(weight, back.state_dict()[key]) for key, weight in theirs.state_dict().items()
    )
    ids = tokens(2, 40)
    with torch.no_grad():
        assert torch.equal(back(ids).logits, theirs(ids).logits)


LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
}
LONG_ROPE |= {"original_max_position_embeddings": 32, "factor": 2.0}
HEADS = {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
QUANTISED = {"quant_method": "gptq", "bits": 4}
FOREIGN = {
    "gemma": (SIZES | HEADS | {"hidden_act": "gelu_pytorch_tanh"}, "model_type is 'gemma'"),
    "gpt2": ({"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 61}, "no rope_parameters"),
    "mistral": (SIZES | HEADS | {"sliding_window": 16}, "a sliding window of 16"),
    "qwen2": (QWEN2 | {"use_sliding_window": True}, "a sliding window of 64"),
    "llama": (SIZES | HEADS | {"hidden_act": "gelu"}, "activation is 'gelu'"),
    "llama, longrope": (SIZES | HEADS | {"rope_parameters": LONG_ROPE}, "rope_type is 'longrope'"),
    "llama, quantised": (
        SIZES | HEADS | {"quantization_config": QUANTISED},
        "its weights are quantised",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_another_architecture_is_refused_with_what_differs(tmp_path, name):
    """From the configuration alone: no weight has to be there."""
    content, wrong = FOREIGN[name]
    (tmp_path / "config.json").write_text(json.dumps(content | {"model_type": name.split(",")[0]}))
    with pytest.raises(UserError, match=f"not Llama-shaped.*{wrong}"):
        convert.tape_config(extendable.read(tmp_path))
