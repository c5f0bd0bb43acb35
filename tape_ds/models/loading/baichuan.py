"""Baichuan2-7B becomes a Llama, once: its own code never runs.

It is a Llama but for two things (the report, arXiv:2309.10305, Section 2): queries, keys and values are one projection,
``W_pack`` [3D, D], and the output head is normalised: logits are products with rows of length 1. The conversion splits
``W_pack`` in three and divides the head's rows by their lengths. The result is an ordinary Llama folder of the same
dtype. Training it whole may change the lengths of the head's rows, which Baichuan's own training never does.
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
from tape_ds.models.files import weight_files
from tape_ds.models.files.exact import fill, require_exact
from tape_ds.models.loading import sentencepiece_tokenizer

FILES = ("*.json", "tokenizer.model", "*.safetensors", "pytorch_model*.bin")
"""Files that decide what it becomes."""

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "rms_norm_eps",
)
_OPTIONAL = (
    "hidden_act",
    "initializer_range",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "use_cache",
)
_TOKENIZER = ("add_bos_token", "add_eos_token", "bos_token", "eos_token", "unk_token", "pad_token")


def llama_config(content: Mapping[str, Any], source: str) -> LlamaConfig:
    """Return the configuration of the Llama that a ``config.json`` with this content becomes; ``source`` is for
    messages."""
    architectures = content.get("architectures") or []
    missing = [name for name in _SIZES if content.get(name) is None]
    reason = ""
    if "BaiChuanForCausalLM" in architectures:
        reason = "the first Baichuan-7B, whose head is not normalised"
    elif "BaichuanForCausalLM" not in architectures:
        reason = f"architectures is {architectures!r}"
    elif content.get("hidden_size") == 5120 or "max_position_embeddings" in missing:
        reason = "a Baichuan 13B, whose positions are ALiBi's: it has no RoPE to scale"
    elif content.get("tie_word_embeddings") or content.get("quantization_config"):
        reason = "its head is tied to its embeddings, or its weights are quantised"
    elif missing:
        reason = f"its config.json has no {', '.join(missing)}"
    if reason:
        remedy = "use Baichuan2-7B, or a Llama-shaped checkpoint"
        raise UserError(Problem("model", source, f"not a Baichuan2-7B: {reason}", remedy))
    return LlamaConfig(
        **{name: content[name] for name in (*_SIZES, *_OPTIONAL) if content.get(name) is not None},
        # fixed in its code, no field
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=False,
        dtype=content.get("dtype", content.get("torch_dtype")),
    )


def convert(source: Path, folder: Path) -> None:
    """Write the Llama of a published folder: weights of the same dtype, configuration, tokenizer."""
    config = llama_config(
        json.loads((source / "config.json").read_text(encoding="utf-8")), str(source)
    )
    sentencepiece = source / "tokenizer.model"
    settings = source / "tokenizer_config.json"
    if not sentencepiece.is_file():
        raise UserError(
            Problem(
                "model", str(source), "it has no tokenizer.model", "give the whole published folder"
            )
        )
    # without the class, which is code of the folder
    given = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
    chosen = {name: given[name] for name in _TOKENIZER if given.get(name) is not None}
    chosen = {
        name: token["content"] if isinstance(token, dict) else token
        for name, token in chosen.items()
    }
    tokenizer = sentencepiece_tokenizer.load(sentencepiece, **chosen)

    raise_if_any(weight_files.check_folder(source))
    tensors: dict[str, Tensor] = {}
    for file in weight_files.files(source):
        tensors |= weight_files.read(file)
    converted = {}
    for name in list(tensors):
        tensor = tensors.pop(name)  # no weight is held twice
        if name.endswith(".self_attn.W_pack.weight"):
            require_exact(
                str(source), (), (), [] if tensor.shape[0] == 3 * tensor.shape[1] else [name]
            )
            for part, rows_DD in zip("qkv", tensor.chunk(3), strict=True):
                converted[name.replace("W_pack", f"{part}_proj")] = rows_DD.clone()
        elif name == "lm_head.weight":
            # rounded once
            converted[name] = torch.nn.functional.normalize(tensor.float()).to(tensor.dtype)
        elif not name.endswith(".rotary_emb.inv_freq"):  # follows from the configuration
            converted[name] = tensor

    with torch.device("meta"):
        llama = LlamaForCausalLM(config)
    llama = fill(llama, converted, str(source))
    if (source / "generation_config.json").is_file():
        llama.generation_config = GenerationConfig.from_pretrained(source)
    saving.save(llama, folder)
    tokenizer.save_pretrained(folder)
    shutil.copy(sentencepiece, folder)
