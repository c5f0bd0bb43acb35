"""Models that hold a decoder among others, such as those with pictures: whose text decoder is extended alone."""

import json

import pytest
import torch
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)

from tape_ds.models.loading import extendable
from tape_ds.scoring.losses import target_losses

VOCABULARY = 97
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
WINDOW = {"sliding_window": 16}
GEMMA4 = {
    "global_head_dim": 16,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
}
SEES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
SEES |= {"image_size": 28, "patch_size": 14}
SIGLIP = {**SEES, "model_type": "siglip_vision_model", "vision_use_head": False}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 96}
STATES = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16}
WRAPPERS = {
    "gemma3": {"text_config": TEXT | WINDOW, "vision_config": SIGLIP, "mm_tokens_per_image": 4},
    "gemma4": {"text_config": TEXT | WINDOW | GEMMA4, "vision_config": SEES, "audio_config": None},
    "llama4": {"text_config": TEXT | EXPERTS, "vision_config": SEES | {"vision_output_dim": 64}},
    "qwen3_5": {
        "text_config": TEXT | STATES | {"linear_value_head_dim": 16},
        "vision_config": {"depth": 1},
    },
    "mllama": {"text_config": TEXT | {"cross_attention_layers": [1]}, "vision_config": SEES},
    "fuyu": {**TEXT, "text_config": {**TEXT, "model_type": "persimmon"}},
    "mistral3": {
        "text_config": {**TEXT, "model_type": "mistral"},
        "vision_config": {**SEES, "model_type": "pixtral", "head_dim": 16},
    },
}
EXTENDED = ("gemma3", "gemma4", "fuyu", "mistral3", "qwen3_5")
"""Wrappers of decoders that can be extended."""
REFUSED = {
    "llama4": "its layers attend within chunks",
    "mllama": "its text model cannot be extended either",
}


def configuration(kind, folder):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **WRAPPERS[kind]}))
    return AutoConfig.from_pretrained(folder)


def tiny(kind, folder):
    torch.manual_seed(0)
    loader = AutoModelForImageTextToText if kind == "mistral3" else AutoModelForCausalLM
    return loader.from_config(configuration(kind, folder)).float().eval()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["gemma3", "gemma4", "llama4", "qwen3_5", "mllama", "fuyu"])
def test_the_loss_is_that_of_its_own_logits(kind, tmp_path):
    """The sizes of the text model are not in the wrapper's configuration: an AttributeError, or no decoder found."""
    model = tiny(kind, tmp_path)
    ids = torch.randint(3, VOCABULARY, (2, 20))
    found, _ = target_losses(model, ids)
    logits = model(input_ids=ids).logits[:, :-1].flatten(0, 1).float()
    wanted = F.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
    torch.testing.assert_close(found.flatten().float(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", WRAPPERS)
def test_its_text_decoder_is_extended_or_refused_with_the_reason(kind, tmp_path):
    config = extendable.read(configuration(kind, tmp_path / kind).name_or_path)
    problems = extendable.check(config)
    if kind in EXTENDED:
        assert not problems and config.model_type == WRAPPERS[kind]["text_config"].get(
            "model_type", f"{kind}_text"
        )
    else:
        assert REFUSED[kind] in problems[0].wrong + problems[0].remedy
