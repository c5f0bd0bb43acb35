"""Baichuan2-7B becomes a Llama, once: its own code never runs.

It is a Llama but for two things (the report, arXiv:2309.10305, Section 2): queries, keys and values are one projection,
``W_pack`` [3D, D], and the output head is normalised: logits are products with rows of length 1. The
conversion splits ``W_pack`` in three and divides the head's rows by their lengths. The result is an ordinary Llama
folder of the same dtype, with a tokenizer made from its sentencepiece model. Under ``method: full``
the rows of the head are then free to change their lengths, as any Llama's are, which Baichuan's own training never
lets them.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.models import saving
from tape_ds.models.loading import sentencepiece_tokenizer, weight_files
from tape_ds.models.loading.families import BAICHUAN
from tape_ds.models.loading.strict import fill, require_exact

FILES = ("*.json", "tokenizer.model", "*.safetensors", "pytorch_model*.bin")
"""Files that decide what it becomes."""

_ARCHITECTURE = "BaichuanForCausalLM"
_FIRST = "BaiChuanForCausalLM"
_13B_WIDTH = 5120
_THETA = 10_000.0
"""Fixed in its code; no field of its configuration."""
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "rms_norm_eps",
)
_OPTIONAL = ("hidden_act", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "use_cache")
_FUSED = ".self_attn.W_pack.weight"
_HEAD = "lm_head.weight"


def recognises(content: Mapping[str, Any]) -> bool:
    return content.get("model_type") == BAICHUAN


def llama_config(content: Mapping[str, Any], source: str) -> LlamaConfig:
    """Return the configuration of the Llama it becomes.

    Args:
        content: of its ``config.json``.
        source: where that is, for messages.
    """
    raise_if_any(_problems(content, source))
    fields = {name: content[name] for name in (*_SIZES, *_OPTIONAL) if content.get(name) is not None}
    rope = {"rope_type": "default", "rope_theta": _THETA}
    dtype = content.get("dtype", content.get("torch_dtype"))
    return LlamaConfig(**fields, rope_parameters=rope, tie_word_embeddings=False, dtype=dtype)


def _problems(content: Mapping[str, Any], source: str) -> list[Problem]:
    remedy = "use Baichuan2-7B, or a Llama-shaped checkpoint"
    reasons = []
    architectures = content.get("architectures") or []
    if _FIRST in architectures:
        reasons.append("the first Baichuan-7B, whose head is not normalised")
    elif _ARCHITECTURE not in architectures:
        reasons.append(f"architectures is {architectures!r}, not ['{_ARCHITECTURE}']")
    elif content.get("hidden_size") == _13B_WIDTH or "max_position_embeddings" not in content:
        reasons.append("a Baichuan 13B, whose positions are ALiBi's: it has no RoPE to scale")
    if content.get("tie_word_embeddings"):
        reasons.append("its normalised head is tied to its embeddings, which are not normalised")
    if content.get("quantization_config") is not None:
        reasons.append("its weights are quantised")
    if not reasons:
        reasons = [f"its config.json has no {name}" for name in _SIZES if content.get(name) is None]
    return [Problem("model", source, "not a Baichuan2-7B: " + "; ".join(reasons), remedy)] if reasons else []


def convert(source: Path, folder: Path) -> None:
    """Write the Llama of a published folder: weights of the same dtype, configuration, tokenizer.

    Args:
        source: ``config.json``, weights as safetensors or ``pytorch_model*.bin``, ``tokenizer.model``.
        folder: made.
    """
    content = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config = llama_config(content, str(source))
    sentencepiece = source / "tokenizer.model"
    if not sentencepiece.is_file():
        raise UserError(Problem("model", str(source), "it has no tokenizer.model", "give the whole published folder"))
    tokenizer = sentencepiece_tokenizer.load(sentencepiece, **_special_tokens(source))
    with torch.device("meta"):
        llama = LlamaForCausalLM(config)
    llama = fill(llama, llama_tensors(_read(source), str(source)), str(source))
    if (source / "generation_config.json").is_file():
        llama.generation_config = GenerationConfig.from_pretrained(source)
    saving.save(llama, folder)
    tokenizer.save_pretrained(folder)
    shutil.copy(sentencepiece, folder)


def llama_tensors(tensors: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """Baichuan2-7B's tensors under a Llama's names; ``tensors`` is emptied on the way, so that no weight is held twice.

    Each head row is divided by its length in fp32 and rounded once.
    """
    llama = {}
    for name in list(tensors):
        tensor = tensors.pop(name)
        if name.endswith(_FUSED):
            require_exact(source, (), (), [] if tensor.shape[0] == 3 * tensor.shape[1] else [name])
            for part, rows_DD in zip("qkv", tensor.chunk(3), strict=True):
                llama[name.replace("W_pack", f"{part}_proj")] = rows_DD.clone()
        elif name == _HEAD:
            llama[name] = torch.nn.functional.normalize(tensor.float()).to(tensor.dtype)
        elif not name.endswith(".rotary_emb.inv_freq"):  # follows from the configuration
            llama[name] = tensor
    return llama


def _read(source: Path) -> dict[str, Tensor]:
    """Return the published tensors: of the safetensors where there are any, else of torch files, which are read without
    running anything in them."""
    raise_if_any(weight_files.check_folder(source))
    has_safe = any((source / name).is_file() for name in (weight_files.WHOLE, f"{weight_files.WHOLE}.index.json"))
    whole, read = (
        (weight_files.WHOLE, weight_files.read) if has_safe else (weight_files.PICKLED, weight_files.read_torch_file)
    )
    files = sorted(set(weight_files.places(source, whole).values())) or [whole]  # and no other file of the folder
    return {name: tensor for file in files for name, tensor in read(source / file).items()}


def _special_tokens(source: Path) -> dict[str, Any]:
    """Return the settings of its ``tokenizer_config.json``, without the class, which is code of the folder."""
    file = source / "tokenizer_config.json"
    given = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    settings: dict[str, Any] = {name: given[name] for name in ("add_bos_token", "add_eos_token") if name in given}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = given.get(name)
        if token is not None:
            settings[name] = token["content"] if isinstance(token, dict) else token
    return settings
