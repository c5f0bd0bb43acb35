"""Baichuan2-7B becomes a Llama: the model it is equal to, its files, its code that never runs, what is refused.

It is a Llama whose queries, keys and values are one matrix and whose head's rows are normalised in the forward.
"""

import json
import os

import pytest
import sentencepiece
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tape_ds.errors import UserError
from tape_ds.models import convert
from tape_ds.models.loading import extendable, model_folder
from tests.models.helpers import tokens
from tests.models.loading.test_sentencepiece_tokenizer import SETTINGS, train

ROWS = 340
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": ROWS,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.2,
}
CONFIG = SIZES | {
    "architectures": ["BaichuanForCausalLM"],
    "auto_map": {
        "AutoConfig": "configuration_baichuan.BaichuanConfig",
        "AutoModelForCausalLM": "modeling_baichuan.BaichuanForCausalLM",
    },
    "model_type": "baichuan",
    "torch_dtype": "bfloat16",
    "z_loss_weight": 0,
}


def packed(llama):
    """The state dict of the Baichuan that computes what the Llama does; rows of its head have lengths from 1 to 4."""
    tensors = llama.state_dict()
    for layer in range(SIZES["num_hidden_layers"]):
        start = f"model.layers.{layer}.self_attn."
        tensors[f"{start}W_pack.weight"] = torch.cat(
            [tensors.pop(f"{start}{part}_proj.weight") for part in "qkv"]
        )
    tensors["lm_head.weight"] = tensors["lm_head.weight"] * (1 + 3 * torch.rand(ROWS, 1))
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)  # stored, and not read
    return tensors


def publish(folder, changes=None):
    """A folder as on the hub, its code booby-trapped; returns the Llama that it should become."""
    folder.mkdir()
    content = {
        name: value for name, value in (CONFIG | (changes or {})).items() if value is not None
    }
    (folder / "config.json").write_text(json.dumps(content))
    for name in ("configuration_baichuan", "modeling_baichuan", "tokenization_baichuan"):
        (folder / f"{name}.py").write_text("raise SystemExit('remote code ran')\n")
    tokenizer = {
        "tokenizer_class": "BaichuanTokenizer",
        "pad_token": {"__type": "AddedToken", "content": "<unk>"},
    }
    tokenizer["auto_map"] = {"AutoTokenizer": ["tokenization_baichuan.BaichuanTokenizer", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    train(folder / "tokenizer.model", **SETTINGS["baichuan 2"])
    llama = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)).eval()
    with torch.no_grad():
        llama.lm_head.weight.copy_(torch.nn.functional.normalize(llama.lm_head.weight))
    torch.save(packed(llama), folder / "pytorch_model.bin")
    return llama


def test_the_converted_model_computes_what_was_published(tmp_path):
    """Through ``resolve``, as a run does it, and without a line of its code."""
    llama = publish(tmp_path / "published")
    folder = model_folder.resolve(str(tmp_path / "published"), tmp_path / "models")
    model = convert.load(folder, convert.tape_config(extendable.read(folder)), dtype=torch.float32)
    ids = tokens(1, 50)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, llama(ids).logits, rtol=0, atol=2e-5)


def test_what_comes_out_is_an_ordinary_llama_folder_made_once(tmp_path):
    published, models = tmp_path / "published", tmp_path / "models"
    publish(published)
    folder = model_folder.resolve(str(published), models)
    written = {path.name: path.stat().st_mtime_ns for path in os.scandir(folder)}
    assert type(AutoModelForCausalLM.from_pretrained(folder)) is LlamaForCausalLM
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reference = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/tokenizer.model")
    text = "the lazy  fox\n日本 12"
    assert tokenizer(text)["input_ids"] == reference.encode(text)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<s>",
        "</s>",
        "<unk>",
    )
    assert not [name for name in written if name.endswith(".py")]
    assert (
        model_folder.resolve(str(published), models)
        == folder
        == model_folder.resolve(folder, models)
    )
    assert written == {path.name: path.stat().st_mtime_ns for path in os.scandir(folder)}
    torch.save(packed(LlamaForCausalLM(LlamaConfig(**SIZES))), published / "pytorch_model.bin")
    assert model_folder.resolve(str(published), models) != folder


@pytest.mark.parametrize(
    "changes, words",
    [
        (
            {"hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40},
            "positions are ALiBi's",
        ),
        (
            {"architectures": ["BaiChuanForCausalLM"]},
            "the first Baichuan-7B, whose head is not normalised",
        ),
        ({"tie_word_embeddings": True}, "head is tied to its embeddings"),
        ({"rms_norm_eps": None}, "has no rms_norm_eps"),
    ],
)
def test_another_baichuan_is_refused_with_the_reason(tmp_path, changes, words):
    publish(tmp_path / "published", changes)
    with pytest.raises(UserError, match=words):
        extendable.read(tmp_path / "published")
    with pytest.raises(UserError, match=words):
        model_folder.resolve(str(tmp_path / "published"), tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_tensors_that_do_not_fit_are_refused_and_leave_no_half_model(tmp_path):
    publish(tmp_path / "published")
    torch.save({"model.norm.weight": torch.ones(32)}, tmp_path / "published" / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"missing: lm_head\.weight"):
        model_folder.resolve(str(tmp_path / "published"), tmp_path / "models")
    assert not [
        name
        for name in os.listdir(tmp_path / "models")
        if not name.startswith(".") and "partial" not in name
    ]
