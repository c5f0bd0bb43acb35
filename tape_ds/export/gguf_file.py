"""Write a GGUF file that llama.cpp computes as transformers computes the model: ``tape-ds export SOURCE --gguf FILE``.

Keys are those that llama.cpp's runtime reads, not those that its converter writes: the two differ for YaRN's attention
factor. What llama.cpp would compute otherwise is refused before anything is written. Weights are read, merged,
converted and written in pieces of a few MiB, so that a file needs no more memory than one piece.

Shape letters: R rows of a tensor, C its columns.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.quants import quantize
from torch import Tensor

from tape_ds import building, encodings, storage
from tape_ds.checkpoint.merging import WholeModel
from tape_ds.checkpoint.source_model import SourceModel
from tape_ds.data import tokenizer as tokenizers
from tape_ds.encodings import llama_cpp_rope, scaling
from tape_ds.encodings.trained_rope import KEPT, of_full
from tape_ds.errors import Problem, UserError
from tape_ds.export import gguf_tokenizer
from tape_ds.models.files import config_file, json_file, weight_files
from tape_ds.models.files.gguf_header import DIVISORS
from tape_ds.models.files.tensor_rows import LoadedRows, TensorRows
from tape_ds.models.loading import extendable
from tape_ds.models.model_weights import NotByTensorError

AUTO = "auto"
TYPES = {
    "F32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "F16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "BF16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "Q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
"""Values of ``--gguf_type``: the type of matrices, and llama.cpp's name for such a file. Vectors are always F32."""
_OF_DTYPE = {torch.float16: "F16", torch.bfloat16: "BF16"}
_BLOCK = 32
"""Columns that share a scale in Q8_0."""
_PIECE = 2**22
"""Numbers that are converted at once: 16 MiB in fp32."""
_LARGEST_F16 = float(np.finfo(np.float16).max)
_HEAD = "lm_head.weight"
_PERMUTED = ("self_attn.q_proj.", "self_attn.k_proj.")


@dataclass(frozen=True)
class GgufPlan:
    """A file that can be written, checked."""

    architecture: str
    config: Any
    rope: llama_cpp_rope.Keys
    kind: str
    """One of :data:`TYPES`."""
    tokenizer: gguf_tokenizer.GgufTokenizer
    name: str
    license: str | None


def type_of(choice: str, dtype: torch.dtype) -> str:
    """Return the type of a file's matrices; ``auto``: as the weights are stored."""
    if choice == AUTO:
        return _OF_DTYPE.get(dtype, "F32")
    return choice


def check(source: SourceModel, kind: str) -> list[Problem]:
    """Return why a model cannot be written, from its configuration."""
    config: Any = source.config
    name = str(source.folder)
    remedy = "export a folder, without --gguf"
    rope = dict(of_full(config.rope_parameters or {}))
    if extendable.by_own_class(config):
        wrong = f"its model_type is {config.model_type!r}, and GGUF files are written of Llama, Qwen2 and Qwen3"
        if not config_file.has_llamas_names(config):
            return [Problem("source", name, wrong, remedy)]
        if rope.get("rope_type") in KEPT:
            wrong = "llama.cpp has no such scaling for this model"
            return [Problem("rope_parameters.rope_type", rope["rope_type"], wrong, remedy)]
        problems = []
        # with an export's remedy: theirs is a training's
        for problem in config_file.check_llama_shaped(config):
            problems.append(Problem("source", name, problem.wrong, remedy))
        return problems
    if (
        encodings.llama_rope_parameters(config) is None
        and scaling.as_llama(rope, config.head_dim) is not None
    ):
        encoding = f"{config.position_encoding} {config.position_options or ''}".rstrip()
        return [Problem("position_encoding", encoding, "llama.cpp has no such positions", remedy)]

    architecture = config_file.plain_type(config)
    problems = []
    for parameter, value, wrong in llama_cpp_rope.refusals(rope, architecture):
        problems.append(Problem(f"rope_parameters.{parameter}", value, wrong, remedy))
    for bias in ("attention_bias", "mlp_bias"):
        if getattr(config, bias, False):
            problems.append(
                Problem(bias, True, "no GGUF file is written of a Llama with biases", remedy)
            )
    columns = config.num_attention_heads * config.head_dim
    if architecture == "qwen2" and columns != config.hidden_size:
        wrong = f"llama.cpp takes heads of {config.hidden_size} columns together for a qwen2, and there are {columns}"
        problems.append(Problem("head_dim", config.head_dim, wrong, remedy))
    if kind == "Q8_0":
        for size in ("hidden_size", "intermediate_size"):
            if getattr(config, size) % _BLOCK:
                wrong = f"Q8_0 has blocks of {_BLOCK} columns, which do not fill its rows of {size}"
                problems.append(Problem(size, getattr(config, size), wrong, "--gguf_type F16"))
        if columns % _BLOCK and columns != config.hidden_size:
            wrong = f"Q8_0 has blocks of {_BLOCK} columns, which do not fill {columns}, those of all heads"
            problems.append(Problem("head_dim", config.head_dim, wrong, "--gguf_type F16"))
    return problems


def plan(
    source: SourceModel, kind: str, name: str, license: str | None, tokenizer_choice: str
) -> GgufPlan:
    """Return what will be written, of a model without problems in :func:`check`; UserError for its tokenizer."""
    config: Any = source.config
    tokenizer = None
    if source.has_tokenizer and tokenizer_choice != gguf_tokenizer.NONE:
        tokenizer = tokenizers.load_tokenizer(str(source.folder), "source")
    read = gguf_tokenizer.read(tokenizer, config, tokenizer_choice, _end_ids(source))
    parameters = encodings.llama_rope_parameters(config)
    assert parameters is not None, "checked"
    rope = llama_cpp_rope.to_keys(parameters, config.head_dim)
    return GgufPlan(config_file.plain_type(config), config, rope, kind, read, name, license)


def write(plan: GgufPlan, source: SourceModel, file: Path, check_logits: bool = False) -> int:
    """Write the file, complete or not at all, and return its tensors' numbers; ``check_logits``: see
    :class:`tape_ds.checkpoint.adapted_weights.AdaptedWeights`.

    Raises:
        UserError: a weight is no number, or too large for the type.
    """
    weights = _weights(source.whole(check_logits=check_logits))
    names = list(weights.names())
    # llama.cpp takes the embeddings where a file has no head
    if plan.config.tie_word_embeddings and _HEAD in names:
        names.remove(_HEAD)
    assert "model.embed_tokens.weight" in names, "checked when the source was found"
    places = gguf.get_tensor_name_map(
        _ARCHITECTURES[plan.architecture], plan.config.num_hidden_layers
    )

    def build(path: Path) -> None:
        writer = GGUFWriter(path, plan.architecture)
        try:
            _add_keys(writer, plan)
            if plan.rope.divisors is not None:
                writer.add_tensor(DIVISORS, plan.rope.divisors)
            for name in names:
                _add_tensor(writer, plan, weights, name, places)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()

    with building.disk("--gguf", file.parent):
        storage.write_file(file, build)
    return sum(math.prod(weights.shape(name)) for name in names)


_ARCHITECTURES = {
    name: key for key, name in gguf.MODEL_ARCH_NAMES.items() if name in ("llama", "qwen2", "qwen3")
}


def _weights(whole: WholeModel) -> TensorRows:
    """Return the whole model's tensors, adapters merged as they are read; in memory what that does not reach."""
    try:
        return whole.weights()
    except NotByTensorError:
        return LoadedRows(whole.fill(torch.float32).state_dict())


def _end_ids(source: SourceModel) -> list[int]:
    file = source.folder / weight_files.GENERATION
    content = json_file.read(file, "source", str(source.folder)) if file.is_file() else {}
    return config_file.token_ids(content.get("eos_token_id", source.config.eos_token_id))


def _add_keys(writer: GGUFWriter, plan: GgufPlan) -> None:
    config = plan.config
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(plan.name)
    if plan.license is not None:
        writer.add_license(plan.license)
    writer.add_file_type(TYPES[plan.kind][1])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)

    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)

    writer.add_rope_dimension_count(config.head_dim)
    for key, value in plan.rope.values.items():
        name = f"{plan.architecture}.rope.{key}"
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_float32(name, value)
    plan.tokenizer.write(writer)


def _add_tensor(
    writer: GGUFWriter, plan: GgufPlan, weights: TensorRows, name: str, places: gguf.TensorNameMap
) -> None:
    gguf_name = places.get_name(name, try_suffixes=(".weight", ".bias"))
    if gguf_name is None:
        raise UserError(
            Problem("source", name, "a tensor without a place in a GGUF file", "export a folder")
        )
    shape = weights.shape(name)
    # vectors are norms and biases: small, and their rounding is in every token
    kind = TYPES[plan.kind][0] if len(shape) > 1 else GGMLQuantizationType.F32
    columns = math.prod(shape[1:])
    heads = 0
    if plan.architecture == llama_cpp_rope.LLAMA and any(part in name for part in _PERMUTED):
        # llama.cpp rotates neighbouring columns of a Llama's heads, transformers those half a head apart
        heads = shape[0] // plan.config.head_dim
    piece = max(_PIECE // columns, 1)
    # whole heads, whose columns change places
    if heads:
        piece = max(piece // plan.config.head_dim, 1) * plan.config.head_dim

    def pieces() -> Iterator[np.ndarray]:
        for first in range(0, shape[0], piece):
            read = weights.rows(name, first, min(first + piece, shape[0])).to(torch.float32)
            if heads:
                read = _neighbours(read, plan.config.head_dim)
            yield _converted(read, kind, name)

    row_bytes = gguf.quant_shape_to_byte_shape((columns,), kind)[0]
    stored = _Pieces(shape[0] * row_bytes, pieces)
    writer.add_tensor_info(gguf_name, shape, np.dtype(np.float32), stored.nbytes, raw_dtype=kind)
    # written by `write_tensors_to_file`, which asks for no more than these two members
    writer.tensors[-1][gguf_name].tensor = stored


@dataclass(frozen=True)
class _Pieces:
    """Stands in the writer for an array that is never whole in memory."""

    nbytes: int
    pieces: Callable[[], Iterator[np.ndarray]]

    def tofile(self, file: BinaryIO) -> None:
        for piece in self.pieces():
            file.write(piece.tobytes())


def _neighbours(rows_RC: Tensor, head_size: int) -> Tensor:
    """Return whole heads' rows with the two halves of each head interleaved."""
    return rows_RC.unflatten(0, (-1, 2, head_size // 2)).transpose(1, 2).flatten(0, 2)


def _converted(rows: Tensor, kind: GGMLQuantizationType, name: str) -> np.ndarray:
    """Return the bytes of rows; UserError where a weight is no number, or too large."""
    if not bool(rows.isfinite().all()):
        wrong = f"weights that are not finite, NaN or infinite: {name}"
        raise UserError(
            Problem("source", name, wrong, "take an earlier checkpoint, or fetch it again")
        )
    largest = float(rows.abs().max())
    if kind == GGMLQuantizationType.F16 and largest > _LARGEST_F16:
        wrong = f"it holds {largest:g}, and F16 ends at {_LARGEST_F16:g}"
        raise UserError(Problem("source", name, wrong, "--gguf_type BF16"))
    array = rows.numpy()
    if kind == GGMLQuantizationType.F32:
        return array
    return quantize(array, kind)


def described(plan: GgufPlan) -> str:
    """Return architecture, type and tokenizer in one line."""
    if plan.tokenizer.model == gguf_tokenizer.NONE:
        tokens = "no tokenizer"
    else:
        tokens = f"tokenizer {plan.tokenizer.model}"
    if plan.tokenizer.pre:
        tokens += f" ({plan.tokenizer.pre})"
    # the base is in every file, scaled or not
    keys = {key: value for key, value in plan.rope.values.items() if key != "freq_base"}
    rope = json.dumps(keys) if keys else "unscaled RoPE"
    if plan.rope.divisors is not None:
        rope += f" and {DIVISORS}"
    return f"{plan.architecture}, {plan.kind}, {rope}, {tokens}"
