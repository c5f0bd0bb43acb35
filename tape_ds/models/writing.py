"""Write a model folder one tensor at a time: the files, names and shards that ``save_pretrained`` would write."""

import contextlib
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from tape_ds import storage
from tape_ds.errors import raise_if_any
from tape_ds.models import hollow, saving
from tape_ds.models.file_tensors import FileTensor, file_tensors, made_together, reverted
from tape_ds.models.files import exact
from tape_ds.models.files.tensor_rows import LoadedRows, bytes_of, pieces
from tape_ds.models.files.weight_files import WHOLE
from tape_ds.models.model_weights import ModelWeights

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT = 8
"""The length of a header is a multiple of this, in bytes."""


def write(
    weights: ModelWeights,
    folder: Path,
    dtype: torch.dtype,
    field: str,
    name: str,
    model: PreTrainedModel | None = None,
) -> None:
    """Write ``folder``: configuration, settings of generation and weights in ``dtype``.

    Args:
        weights: used up.
        field, name: of their source, for messages.
        model: in which class and with which configuration; default: the weights' own. Its parameters have the same
            names; one with fewer rows gets the first ones.

    Raises:
        UserError: weights are not finite.
    """
    model = weights.model if model is None else model
    # the configuration is saved with the dtype that the model has
    hollow.empty(model, dtype)
    saving.save_settings(model, folder)
    tensors = {tensor.name: tensor for tensor in file_tensors(model)}
    forms = {
        each: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for each, tensor in tensors.items()
    }
    wrong: set[str] = set()
    with shards_of(folder, forms, {"total_parameters": model.num_parameters()}) as shards:
        for each, rows in _in_order(weights, model, tensors):
            shards.write(each, _cast(rows, forms[each].dtype, each, wrong))
    raise_if_any(exact.not_finite_weights(sorted(wrong), field, name))


@contextlib.contextmanager
def shards_of(
    folder: Path, forms: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None
) -> Iterator["ShardFiles"]:
    """Yield the files into which ``save_pretrained`` would divide tensors of these ``forms``, to be filled; at the end
    write their index, with ``metadata``, where they are several."""
    largest = (
        inspect.signature(PreTrainedModel.save_pretrained).parameters["max_shard_size"].default
    )
    stem, _, suffix = WHOLE.rpartition(".")
    split = split_torch_state_dict_into_shards(
        dict(forms), filename_pattern=f"{stem}{{suffix}}.{suffix}", max_shard_size=largest
    )
    with ShardFiles(folder, split.filename_to_tensors, forms) as shards:
        yield shards
    if split.is_sharded:
        index = {
            "metadata": {**(metadata or {}), **split.metadata},
            "weight_map": split.tensor_to_filename,
        }
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        storage.write_text(folder / f"{WHOLE}.index.json", text)


def _cast(
    rows: Iterable[Tensor], dtype: torch.dtype, name: str, wrong: set[str]
) -> Iterator[Tensor]:
    for piece in rows:
        if not exact.is_finite(piece):
            wrong.add(name)
        yield piece.to(dtype)


def _in_order(
    weights: ModelWeights, model: PreTrainedModel, tensors: Mapping[str, FileTensor]
) -> Iterator[tuple[str, Iterator[Tensor]]]:
    """Yield the name of each tensor with its pieces; tensors that are made together, together."""
    done: set[str] = set()
    for name, tensor in tensors.items():
        if name in done:
            continue
        if tensor.is_whole:
            (parameter,) = tensor.parameters
            yield name, pieces(weights, parameter, tensor.shape[0] if tensor.shape else None)
            continue
        unchanged = weights.unchanged(tensor)
        if unchanged is not None:
            yield name, pieces(unchanged, name)
            continue
        parameters, members = made_together(tensor, tensors.values())
        read = {parameter: weights.rows(parameter) for parameter in parameters}
        made = LoadedRows(reverted(model, read))
        del read
        for member in members:
            yield member, pieces(made, member)
        done |= set(members)


class ShardFiles:
    """Files of safetensors that are filled in any order, with a progress bar by bytes."""

    def __init__(
        self, folder: Path, names: Mapping[str, Sequence[str]], forms: Mapping[str, Tensor]
    ):
        self._files: dict[str, SafetensorsFile] = {}
        for file, kept in names.items():
            opened = SafetensorsFile(folder / file, {name: forms[name] for name in kept})
            self._files |= dict.fromkeys(kept, opened)
        total = sum(form.nbytes for form in forms.values())
        self._bar = tqdm(
            total=total, desc="writing", unit="B", unit_scale=True, disable=None, leave=False
        )

    def write(self, name: str, rows: Iterable[Tensor]) -> None:
        for written in self._files[name].write(name, rows):
            self._bar.update(written)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._bar.close()
        for file in set(self._files.values()):
            file.close()
            assert kind is not None or file.is_full, "every tensor of a shard is written"


class SafetensorsFile:
    """A file of safetensors whose header is written first and whose tensors follow, in any order.

    The format: the header's length (8 bytes, little-endian), the header as JSON, then the tensors without gaps
    (https://huggingface.co/docs/safetensors). ``save_file`` writes the same bytes, from tensors that are all in memory.
    """

    def __init__(self, path: Path, forms: Mapping[str, Tensor]):
        """``forms``: tensors of the shapes and dtypes that are written later, such as on the meta device."""
        self._forms = forms
        self._missing = set(forms)
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        offsets = {}
        end = 0
        # the largest items first, so that each begins at a multiple of its size
        for name in sorted(forms, key=lambda name: (-forms[name].itemsize, name)):
            offsets[name] = end
            end += forms[name].nbytes
            header[name] = {
                "dtype": _NAMES[forms[name].dtype],
                "shape": list(forms[name].shape),
                "data_offsets": [offsets[name], end],
            }
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        first = 8 + len(text)
        self._offsets = {name: first + offset for name, offset in offsets.items()}
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(8, "little"))
        self._file.write(text)

    @property
    def is_full(self) -> bool:
        return not self._missing

    def write(self, name: str, rows: Iterable[Tensor]) -> Iterator[int]:
        """Write a tensor from its pieces; yield the bytes of each."""
        self._file.seek(self._offsets[name])
        written = 0
        for piece in rows:
            content = bytes_of(piece.contiguous())
            self._file.write(content)
            written += len(content)
            yield len(content)
        assert written == self._forms[name].nbytes, f"{name} has {written} bytes"
        self._missing.discard(name)

    def close(self) -> None:
        self._file.close()
