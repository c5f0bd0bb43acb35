"""Baichuan2-7B becomes a Llama: its formula written out, its files, its code that never runs, what is refused."""

import io
import json
import math
import os

import pytest
import sentencepiece
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from tape_ds.errors import UserError
from tape_ds.models import convert
from tape_ds.models.loading import extendable, model_folder
from tests.models.helpers import tokens

D, H, LAYERS, WIDTH, ROWS = 32, 4, 2, 48, 300
CONFIG = {
    "architectures": ["BaichuanForCausalLM"],
    "auto_map": {
        "AutoConfig": "configuration_baichuan.BaichuanConfig",
        "AutoModelForCausalLM": "modeling_baichuan.BaichuanForCausalLM",
    },
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": D,
    "initializer_range": 0.02,
    "intermediate_size": WIDTH,
    "max_position_embeddings": 64,
    "model_max_length": 64,
    "model_type": "baichuan",
    "num_attention_heads": H,
    "num_hidden_layers": LAYERS,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "use_cache": True,
    "vocab_size": ROWS,
    "z_loss_weight": 0,
}


def published_tensors(dtype=torch.float32):
    """A random state dict under its names; rows of the head have lengths from 1 to 4."""
    block = {
        "self_attn.W_pack.weight": (3 * D, D),
        "self_attn.o_proj.weight": (D, D),
        "mlp.gate_proj.weight": (WIDTH, D),
        "mlp.up_proj.weight": (WIDTH, D),
        "mlp.down_proj.weight": (D, WIDTH),
        "input_layernorm.weight": (D,),
        "post_attention_layernorm.weight": (D,),
    }
    shapes = {f"model.layers.{layer}.{name}": shape for layer in range(LAYERS) for name, shape in block.items()}
    shapes |= {"model.embed_tokens.weight": (ROWS, D), "model.norm.weight": (D,), "lm_head.weight": (ROWS, D)}
    tensors = {name: torch.randn(shape) * 0.2 + ("norm" in name) for name, shape in shapes.items()}
    tensors["lm_head.weight"] *= 1 + 3 * torch.rand(ROWS, 1)
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def published_logits(w, ids):
    """Its formula in fp64, a line a step: [T] -> [T, rows]."""
    w, T, K = {name: x.double() for name, x in w.items()}, len(ids), D // H
    angles = torch.arange(T)[:, None] * 10_000.0 ** (-torch.arange(0, K, 2).double() / K)
    cos, sin = (torch.cat((x, x), -1) for x in (angles.cos(), angles.sin()))

    def norm(x, weight):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight

    def rotate(x):
        return x * cos + torch.cat((-x[..., K // 2 :], x[..., : K // 2]), -1) * sin

    x = w["model.embed_tokens.weight"][ids]
    future = torch.ones(T, T).triu(1).bool()
    for layer in range(LAYERS):
        part = {n.removeprefix(f"model.layers.{layer}."): x for n, x in w.items()}
        packed = norm(x, part["input_layernorm.weight"]) @ part["self_attn.W_pack.weight"].T
        q, k, v = packed.view(T, 3, H, K).permute(1, 2, 0, 3)
        scores = (rotate(q) @ rotate(k).mT / math.sqrt(K)).masked_fill(future, -math.inf)
        x = x + (scores.softmax(-1) @ v).transpose(0, 1).reshape(T, D) @ part["self_attn.o_proj.weight"].T
        y = norm(x, part["post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(y @ part["mlp.gate_proj.weight"].T)
        x = x + (gate * (y @ part["mlp.up_proj.weight"].T)) @ part["mlp.down_proj.weight"].T
    head = w["lm_head.weight"]
    return norm(x, w["model.norm.weight"]) @ (head / head.norm(dim=1, keepdim=True)).T


def publish(folder, changes=None, save="bin", dtype=torch.float32):
    """A folder as on the hub, its code booby-trapped; returns the tensors in it."""
    folder.mkdir()
    content = {name: value for name, value in (CONFIG | (changes or {})).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(content))
    for name in ("configuration_baichuan", "modeling_baichuan", "tokenization_baichuan"):
        (folder / f"{name}.py").write_text("raise SystemExit('remote code ran')\n")
    tokenizer = {"tokenizer_class": "BaichuanTokenizer", "add_bos_token": False, "add_eos_token": False}
    tokenizer["auto_map"] = {"AutoTokenizer": ["tokenization_baichuan.BaichuanTokenizer", None]}
    tokenizer |= {
        name: {"__type": "AddedToken", "content": x} for name, x in (("bos_token", "<s>"), ("eos_token", "</s>"))
    }
    tokenizer["pad_token"] = {"__type": "AddedToken", "content": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    train_sentencepiece(folder / "tokenizer.model")
    tensors = published_tensors(dtype)
    first = {name: x for name, x in tensors.items() if ".layers.0." in name}
    shards = [first, {name: x for name, x in tensors.items() if name not in first}]
    if save == "bin":
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        where = {}
        for number, shard in enumerate(shards):
            save_file(shard, folder / f"model-{number}.safetensors")
            where |= dict.fromkeys(shard, f"model-{number}.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return tensors


def train_sentencepiece(file):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox jumps over a lazy dog  12"] * 50),
        model_writer=model,
        minloglevel=2,
        num_threads=1,
        model_type="bpe",
        vocab_size=ROWS,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        split_digits=True,
    )
    file.write_bytes(model.getvalue())


@pytest.mark.parametrize("save", ["bin", "safetensors"])
def test_the_converted_model_is_the_published_formula(tmp_path, save):
    """Through ``resolve``, as a run does it; whatever the files, and without a line of its code."""
    tensors = publish(tmp_path / "published", save=save)
    folder = model_folder.resolve(str(tmp_path / "published"), tmp_path / "models")
    model = convert.load(folder, convert.tape_config(extendable.read(folder)))
    ids = tokens(1, 50)
    with torch.no_grad():
        expected = published_logits(tensors, ids[0])
        torch.testing.assert_close(model(ids).logits[0].double(), expected, rtol=0, atol=2e-5)
        assert expected.std() > 0.1, "flat logits would hide a mistake"


def test_what_comes_out_is_an_ordinary_llama_folder(tmp_path):
    publish(tmp_path / "published", dtype=torch.bfloat16)
    folder = model_folder.resolve(str(tmp_path / "published"), tmp_path / "models")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert type(model) is LlamaForCausalLM
    assert {x.dtype for x in model.state_dict().values()} == {torch.bfloat16}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reference = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/tokenizer.model")
    text = "the lazy  fox\n日本 12"
    assert tokenizer(text)["input_ids"] == reference.encode(text)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<s>", "</s>", "<unk>")
    assert not [name for name in os.listdir(folder) if name.endswith(".py")]


def test_it_is_converted_once_and_anew_when_it_changes(tmp_path):
    published, models = tmp_path / "published", tmp_path / "models"
    publish(published)
    first = model_folder.resolve(str(published), models)
    written = {path.name: path.stat().st_mtime_ns for path in os.scandir(first)}
    assert model_folder.resolve(str(published), models) == first == model_folder.resolve(first, models)
    assert written == {path.name: path.stat().st_mtime_ns for path in os.scandir(first)}
    torch.save(published_tensors(), published / "pytorch_model.bin")
    assert model_folder.resolve(str(published), models) != first


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40}, "positions are ALiBi's"),
        ({"max_position_embeddings": None}, "positions are ALiBi's"),
        ({"architectures": ["BaiChuanForCausalLM"]}, "the first Baichuan-7B, whose head is not normalised"),
        ({"tie_word_embeddings": True}, "head is tied to its embeddings"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
    ],
)
def test_another_baichuan_is_refused_with_the_reason(tmp_path, changes, words):
    publish(tmp_path / "published", changes)
    for refused in (
        lambda: extendable.read(tmp_path / "published"),
        lambda: model_folder.resolve(str(tmp_path / "published"), tmp_path / "models"),
    ):
        with pytest.raises(UserError, match=words):
            refused()
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    "tensors, words",
    [
        ({"model.norm.weight": torch.ones(D)}, r"missing: lm_head\.weight"),
        (
            published_tensors() | {"model.layers.0.self_attn.W_pack.weight": torch.ones(2 * D, D)},
            r"of another shape: model\.layers\.0\.self_attn\.W_pack\.weight",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused_and_leave_no_half_model(tmp_path, tensors, words):
    publish(tmp_path / "published")
    torch.save(tensors, tmp_path / "published" / "pytorch_model.bin")
    with pytest.raises(UserError, match=words):
        model_folder.resolve(str(tmp_path / "published"), tmp_path / "models")
    assert not [name for name in os.listdir(tmp_path / "models") if not name.startswith(".") and "partial" not in name]
