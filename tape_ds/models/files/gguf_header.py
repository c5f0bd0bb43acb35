"""Read what a GGUF file says of its model, without its weights: sizes, length, RoPE and the names of its tensors.

Llama, Qwen2 and Qwen3 are read key by key: transformers 5.23 drops the scaling, takes a head size of 128 for every
Qwen3, and passes over tensors that its class has no place for. Imports neither torch nor transformers.
"""

import functools
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from tape_ds.encodings import llama_cpp_rope
from tape_ds.errors import Problem, UserError
from tape_ds.models.files import library_errors

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Architectures that are read key by key; transformers reads the configuration of others."""
DIVISORS = "rope_freqs.weight"
_NEEDED = ("block_count", "embedding_length", "attention.head_count")
_AGAIN = "fetch the file again, or give the folder that it was made from"
_FOLDER = "give the folder that the file was made from"
_OUTSIDE = ("token_embd.weight", "output_norm.weight", "output.weight", DIVISORS)
_INSIDE = (
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
)
_BIASED = ("attn_q.bias", "attn_k.bias", "attn_v.bias")
_LAYERS = 4096
_FORMS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
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
                raise self.error(
                    f"its layers differ in {self.architecture}.{key}, which is not read from a GGUF file"
                )
            value = value[0]
        if value is None:
            return default
        return value

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
        values = {
            key.removeprefix(prefix): value
            for key, value in self.fields.items()
            if key.startswith(prefix)
        }
        keys = llama_cpp_rope.Keys(values, self.divisors)
        try:
            return llama_cpp_rope.to_parameters(
                keys, self.head_size, self.of_model("context_length")
            )
        except (ValueError, TypeError) as error:
            raise self.error(str(error)) from error

    def config(self) -> dict[str, Any]:
        """Return the model's ``config.json``, as transformers' Llama, Qwen2 or Qwen3 has it; UserError for a file that
        says something else than these compute."""
        self._require_known()
        rope_parameters, _ = self.rope()
        heads = self.of_model("attention.head_count")
        found = {
            "model_type": self.architecture,
            "hidden_size": self.of_model("embedding_length"),
            "intermediate_size": self.of_model("feed_forward_length"),
            "num_hidden_layers": self.of_model("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.of_model("attention.head_count_kv", heads),
            "rms_norm_eps": self.of_model("attention.layer_norm_rms_epsilon"),
            "max_position_embeddings": self.of_model("context_length"),
            "vocab_size": self.shapes["token_embd.weight"][0],
            "tie_word_embeddings": "output.weight" not in self.shapes,
            "rope_parameters": rope_parameters,
            "bos_token_id": self.fields.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.fields.get("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self.fields.get("tokenizer.ggml.padding_token_id"),
        }
        if self.architecture != "qwen2" or self.head_size * heads != found["hidden_size"]:
            found["head_dim"] = self.head_size
        wrong = []
        for name in ("intermediate_size", "num_key_value_heads", "max_position_embeddings"):
            if not isinstance(found[name], int) or found[name] < 1:
                wrong.append(f"its {name} is {found[name]!r}")
        if not isinstance(found["rms_norm_eps"], float):
            wrong.append(f"its rms_norm_eps is {found['rms_norm_eps']!r}")
        if wrong:
            raise self.error("; ".join(wrong), _AGAIN)
        return found

    def require_sizes(self) -> None:
        """Raise UserError for a file without its model's sizes, for which transformers takes those of its default, a
        model of 7 billion parameters; or with sizes that its own tensors do not have."""
        given = {name: self.of_model(name) for name in _NEEDED}
        wrong = []
        for name, value in given.items():
            if value is None:
                wrong.append(f"it has no {self.architecture}.{name}")
            elif not isinstance(value, int) or value < 1:
                wrong.append(f"its {self.architecture}.{name} is {value!r}")
        blocks = {name.split(".")[1] for name in self.shapes if name.startswith("blk.")}
        if not wrong:
            count = given["block_count"]
            columns = given["embedding_length"]
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
            raise self.error(
                f"it is a mixture of {experts} experts, which is not read from a GGUF file"
            )
        rotated = self.of_model("rope.dimension_count", self.head_size)
        if rotated != self.head_size:
            raise self.error(
                f"it rotates {rotated} of {self.head_size} columns of a head: no {self.architecture} does"
            )
        known = {*_OUTSIDE, *(f"{name}.weight" for name in _INSIDE)}
        known |= set(_BIASED) if self.architecture == "qwen2" else set()
        known |= set(_NORMED) if self.architecture == "qwen3" else set()
        others = sorted({re.sub(r"^blk\.\d+\.", "", name) for name in self.shapes} - known)
        if others:
            raise self.error(
                f"it has tensors without a place in a {self.architecture}: {', '.join(others[:8])}"
            )
        if self.divisors is not None and self.architecture != llama_cpp_rope.LLAMA:
            raise self.error(f"it has {DIVISORS}, which llama.cpp reads for a Llama alone")


def read(file: str | Path) -> GgufHeader:
    """Read a file's header; UserError for one that is damaged."""
    path = Path(file)
    status = path.stat()
    return _read(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int) -> GgufHeader:
    """``changed`` is the file's time, so that another file of this name is read again."""
    try:
        with path.open("rb") as opened:
            return _Walk(opened, size).header(str(path))
    except (ValueError, KeyError, struct.error) as error:
        remedy = (
            "fetch the file again, or give another GGUF file of a model that transformers knows"
        )
        wrong = f"could not be read ({library_errors.words(error)})"
        raise UserError(Problem("model", str(path), wrong, remedy)) from error


class _Walk:
    """A walk over a file's header. It passes over the vocabulary, for which gguf's own reader takes seconds."""

    def __init__(self, file: BinaryIO, size: int):
        self.file = file
        self.size = size

    def header(self, name: str) -> GgufHeader:
        """Raises ValueError, KeyError or struct.error for what is no GGUF file, or not all of one."""
        if self.file.read(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version = self.number("I")
        if version not in (2, 3):
            raise ValueError(f"its version is {version:,}, and 2 and 3 are read")
        count = self.number("Q")
        fields = {}
        for _ in range(self.number("Q")):
            key = self.text()
            fields[key] = self.value(self.number("I"))

        shapes = {}
        places = {}
        for _ in range(count):
            tensor = self.text()
            dimensions = [self.number("Q") for _ in range(self.number("I"))]
            shapes[tensor] = tuple(reversed(dimensions))
            kind = self.number("I")
            places[tensor] = (kind, self.number("Q"), math.prod(dimensions))
        alignment = fields.get("general.alignment") or 32
        if not isinstance(alignment, int):
            raise ValueError(f"its general.alignment is {alignment!r}")
        start = -(-self.file.tell() // alignment) * alignment
        if places:
            kind, offset, numbers = max(places.values(), key=lambda place: place[1])
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
            if start + offset + numbers // block * block_bytes > self.size:
                raise ValueError(
                    f"it ends after {self.size:,} bytes, before the last of its tensors does"
                )

        architecture = fields.get("general.architecture")
        if not isinstance(architecture, str):
            raise ValueError("it has no general.architecture")
        divisors = None
        if DIVISORS in places:
            kind, offset, numbers = places[DIVISORS]
            if kind != GGMLQuantizationType.F32:
                raise ValueError(f"its {DIVISORS} is not in F32")
            self.file.seek(start + offset)
            divisors = np.frombuffer(self.bytes(4 * numbers), "<f4").astype(np.float64)
        return GgufHeader(name, architecture, fields, shapes, divisors)

    def bytes(self, count: int) -> bytes:
        if count > self.size:
            raise ValueError(f"a length of {count:,} bytes in a file of {self.size:,}")
        found = self.file.read(count)
        if len(found) < count:
            raise ValueError(f"it ends after {self.size:,} bytes, in the middle of its header")
        return found

    def number(self, form: str) -> Any:
        (found,) = struct.unpack(f"<{form}", self.bytes(struct.calcsize(form)))
        return found

    def text(self) -> str:
        return self.bytes(self.number("Q")).decode("utf-8")

    def value(self, kind: int) -> Any:
        """Return a value; numbers for each layer as a tuple, None for a list of texts or a longer one."""
        if kind == GGUFValueType.STRING:
            return self.text()
        if kind != GGUFValueType.ARRAY:
            found = self.number(_FORMS[GGUFValueType(kind)])
            # the shortest number that it may stand for: 1e-05, and not 9.999999747378752e-06
            if kind == GGUFValueType.FLOAT32:
                return float(str(np.float32(found)))
            return found
        inner = self.number("I")
        count = self.number("Q")
        if inner == GGUFValueType.STRING:
            for _ in range(count):
                self.bytes(self.number("Q"))
            return None
        form = _FORMS[GGUFValueType(inner)]
        content = self.bytes(count * struct.calcsize(form))
        if count <= _LAYERS:
            return struct.unpack(f"<{count}{form}", content)
        return None
