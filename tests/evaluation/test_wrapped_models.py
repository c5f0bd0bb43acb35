"""Models that hold a decoder among others, such as those with pictures: scored as they are, extended alone."""

import json

import pytest
import torch
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedTokenizerFast,
)

from tape_ds.models.loading import extendable
from tape_ds.scoring.losses import target_losses
from tests.docs import pages

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
EXTENDED = ("gemma3", "gemma4", "fuyu", "mistral3")
"""Wrappers of decoders that can be extended."""


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
def test_extend_refuses_it_with_what_can_be_done(kind, tmp_path):
    (problem,) = extendable.check(
        extendable.read(configuration(kind, tmp_path / kind).name_or_path)
    )
    if kind in EXTENDED:
        assert "docs/extending.md" in problem.remedy and "Models with pictures" in problem.remedy
    else:
        assert "its text model cannot be extended either" in problem.remedy


def shown():
    """The code of the page that the message names."""
    page = pages.ROOT / "docs" / "extending.md"
    (block,) = [
        each
        for each in pages.blocks(page)
        if each.info == "python" and "get_text_config" in each.text
    ]
    return block.text


@torch.no_grad()
@pytest.mark.parametrize("kind", ["gemma3", "mistral3"])
def test_its_text_model_is_saved_alone_as_the_page_shows(kind, tmp_path, base):
    model = tiny(kind, tmp_path / "whole")
    model.save_pretrained(tmp_path / "whole")
    PreTrainedTokenizerFast.from_pretrained(base).save_pretrained(tmp_path / "whole")
    code = shown().replace("models/gemma-3-4b-text", str(tmp_path / "text"))
    code = code.replace("models/gemma-3-4b", str(tmp_path / "whole"))
    if kind == "mistral3":
        code = code.replace(
            "AutoModelForCausalLM.from_pretrained", "AutoModelForImageTextToText.from_pretrained"
        )
        code = "from transformers import AutoModelForImageTextToText\n" + code
    exec(code, {})
    assert extendable.check(extendable.read(tmp_path / "text")) == []
    ids = torch.randint(3, VOCABULARY, (2, 20))
    alone = AutoModelForCausalLM.from_pretrained(tmp_path / "text").eval()
    torch.testing.assert_close(alone(ids).logits, model(input_ids=ids).logits, rtol=0, atol=1e-6)
