"""Read what a GGUF file says of its model, without its weights: sizes, length, RoPE and the names of its tensors.

Llama, Qwen2 and Qwen3 are read key by key: transformers 5.23 drops the scaling, takes a head size of 128 for every
Qwen3, and passes over tensors that its class has no place for. Imports neither torch nor transformers.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tape_ds.encodings import llama_cpp_rope
from tape_ds.errors import Problem, UserError
from tape_ds.models.loading import library_errors

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Architectures that are read key by key; transformers reads the configuration of others."""
DIVISORS = "rope_freqs.weight"
_NEEDED = ("block_count", "embedding_length", "attention.head_count")
_AGAIN = "fetch the file again, or give the folder that it was made from"
_FOLDER = "give the folder that the file was made from"
_OUTSIDE = ("token_embd.weight", "output_norm.weight", "output.weight", DIVISORS)
_INSIDE = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
_BIASED = ("attn_q.bias", "attn_k.bias", "attn_v.bias")
_LAYERS = 4096
_NORMED = ("attn_q_norm.weight", "attn_k_norm.weight")


@dataclass(frozen=True)
class GgufHeader:
    """What a file says before its weights."""

    name: str
    """Path of the file, for messages."""
    architecture: str
    fields: Mapping[str, Any]
    """Single values by key; numbers for each layer as a tuple."""
    shapes: Mapping[str, tuple[int, ...]]
    """Of the tensors, as torch counts dimensions."""
    divisors: np.ndarray | None
    """Of the frequencies [head_size / 2], as Llama 3's scaling is stored."""

    def of_model(self, key: str, default: Any = None) -> Any:
        """Return a value of the architecture, such as ``block_count``; UserError where layers differ in it."""
        value = self.fields.get(f"{self.architecture}.{key}")
        if isinstance(value, tuple):
            if len(set(value)) != 1:
                raise self.error(f"its layers differ in {self.architecture}.{key}, which is not read from a GGUF file")
            value = value[0]
        return default if value is None else value

    def error(self, wrong: str, remedy: str = _FOLDER) -> UserError:
        return UserError(Problem("model", self.name, wrong, remedy))

    @property
    def has_tokenizer(self) -> bool:
        return self.fields.get("tokenizer.ggml.model", "none") not in ("none", "no_vocab")

    @property
    def head_size(self) -> int:
        columns = self.of_model("embedding_length") // self.of_model("attention.head_count")
        return int(self.of_model("attention.key_length", columns))

    def rope(self) -> tuple[dict[str, Any], list[str]]:
        """Return complete ``rope_parameters``, and notes on keys that change nothing; UserError for a scaling that is
        not read."""
        prefix = f"{self.architecture}.rope."
        values = {key.removeprefix(prefix): value for key, value in self.fields.items() if key.startswith(prefix)}
        keys = llama_cpp_rope.Keys(values, self.divisors)
        try:
            return llama_cpp_rope.to_parameters(keys, self.head_size, self.of_model("context_length"))
        except ValueError as error:
            raise self.error(str(error)) from error

    def config(self) -> dict[str, Any]:
        """Return the model's ``config.json``, as transformers' Llama, Qwen2 or Qwen3 has it; UserError for a file that
        says something else than these compute."""
        self._require_known()
        rope_parameters, _ = self.rope()
        heads = self.of_model("attention.head_count")
        length = self.of_model("context_length")
        if length is None:
            raise self.error(f"it has no {self.architecture}.context_length", _AGAIN)
        found = {
            "model_type": self.architecture,
            "hidden_size": self.of_model("embedding_length"),
            "intermediate_size": self.of_model("feed_forward_length"),
            "num_hidden_layers": self.of_model("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.of_model("attention.head_count_kv", heads),
            "rms_norm_eps": self.of_model("attention.layer_norm_rms_epsilon"),
            "max_position_embeddings": length,
            "vocab_size": self.shapes["token_embd.weight"][0],
            "tie_word_embeddings": "output.weight" not in self.shapes,
            "rope_parameters": rope_parameters,
            "bos_token_id": self.fields.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.fields.get("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self.fields.get("tokenizer.ggml.padding_token_id"),
        }
        if self.architecture != "qwen2" or self.head_size * heads != found["hidden_size"]:
            found["head_dim"] = self.head_size
        missing = [name for name in ("intermediate_size", "rms_norm_eps") if found[name] is None]
        if missing:
            raise self.error(f"it says nothing of {', '.join(missing)}", _AGAIN)
        return found

    def require_sizes(self) -> None:
        """Raise UserError for a file without its model's sizes, for which transformers takes those of its default, a
        model of 7 billion parameters; or with sizes that its own tensors do not have."""
        given = {name: self.of_model(name) for name in _NEEDED}
        wrong = [f"it has no {self.architecture}.{name}" for name, value in given.items() if value is None]
        blocks = {name.split(".")[1] for name in self.shapes if name.startswith("blk.")}
        if not wrong:
            count, columns = given["block_count"], given["embedding_length"]
            if count > len(blocks):
                wrong.append(
                    f"{self.architecture}.block_count is {count:,}, and it has tensors of {len(blocks):,} blocks"
                )
            width = self.shapes.get("token_embd.weight", (columns,))[-1]
            if columns != width:
                wrong.append(
                    f"{self.architecture}.embedding_length is {columns:,}, and its embeddings are {width:,} wide"
                )
        if wrong:
            raise self.error("; ".join(wrong), _AGAIN)

    def _require_known(self) -> None:
        """Raise UserError for a file that holds more than a plain model of its architecture."""
        self.require_sizes()
        if "token_embd.weight" not in self.shapes:
            raise self.error("it has no token_embd.weight", _AGAIN)
        if experts := self.of_model("expert_count", 0):
            raise self.error(f"it is a mixture of {experts} experts, which is not read from a GGUF file")
        rotated = self.of_model("rope.dimension_count", self.head_size)
        if rotated != self.head_size:
            raise self.error(f"it rotates {rotated} of {self.head_size} columns of a head: no {self.architecture} does")
        known = {*_OUTSIDE, *(f"{name}.weight" for name in _INSIDE)}
        known |= set(_BIASED) if self.architecture == "qwen2" else set()
        known |= set(_NORMED) if self.architecture == "qwen3" else set()
        others = sorted({re.sub(r"^blk\.\d+\.", "", name) for name in self.shapes} - known)
        if others:
            raise self.error(f"it has tensors without a place in a {self.architecture}: {', '.join(others[:8])}")
        if self.divisors is not None and self.architecture != llama_cpp_rope.LLAMA:
            raise self.error(f"it has {DIVISORS}, which llama.cpp reads for a Llama alone")


def read(file: str | Path) -> GgufHeader:
    """Read a file's header; UserError for one that is damaged."""
    path = Path(file)
    status = path.stat()
    return _read(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int) -> GgufHeader:
    """``changed`` and ``size`` are the file's, so that another file of this name is read again."""
    from gguf import GGUFReader

    remedy = "fetch the file again, or give another GGUF file of a model that transformers knows"
    with library_errors.as_message("could not be read", "model", str(path), remedy):
        reader = GGUFReader(path)
        fields = {name: _content(field) for name, field in reader.fields.items()}
        shapes = {tensor.name: tuple(int(size) for size in reversed(tensor.shape)) for tensor in reader.tensors}
        divisors = next((tensor.data for tensor in reader.tensors if tensor.name == DIVISORS), None)
        copied = None if divisors is None else np.array(divisors, dtype=np.float64).reshape(-1)
    architecture = fields.get("general.architecture")
    if not isinstance(architecture, str):
        raise UserError(Problem("model", str(path), "it has no general.architecture", remedy))
    return GgufHeader(str(path), architecture, fields, shapes, copied)


def _content(field: Any) -> Any:
    """Return a single value, or numbers for each layer as a tuple; None for texts, which may be a vocabulary. A float32
    becomes the shortest number that it may stand for: 1e-05, and not 9.999999747378752e-06."""
    from gguf import GGUFValueType

    if GGUFValueType.ARRAY in field.types:
        is_short = field.types[-1] != GGUFValueType.STRING and len(field.data) <= _LAYERS
        return tuple(field.contents()) if is_short else None
    value = field.contents()
    return float(str(np.float32(value))) if field.types[-1] == GGUFValueType.FLOAT32 else value
