"""Read a model's tensors a few rows at a time, so that none of its files is in memory as a whole."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from tape_ds.models.files import weight_files

PIECE = 2**20
"""Numbers that are read at once: 4 MiB in fp32, which a processor's cache holds."""
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""safetensors' names. A file with others is read by safetensors."""


class TensorRows(Protocol):
    """Tensors by name. A row is an entry of the first dimension; a tensor without dimensions is its own only row."""

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def rows(self, name: str, first: int = 0, last: int | None = None) -> Tensor:
        """Return rows ``first`` to ``last`` (default: all of them), in the dtype in which they are held."""


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a tensor without gaps."""
    array: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


def pieces(tensors: TensorRows, name: str, count: int | None = None) -> Iterator[Tensor]:
    """Yield a tensor's first ``count`` rows (default: all of them) in order, about :data:`PIECE` numbers at a time."""
    shape = tensors.shape(name)
    if math.prod(shape) <= PIECE:
        yield tensors.rows(name, 0, count)
        return
    step = max(1, PIECE // math.prod(shape[1:]))
    end = shape[0] if count is None else count
    for first in range(0, end, step):
        yield tensors.rows(name, first, min(first + step, end))


class StoredRows:
    """Tensors in files of safetensors, or in torch's own; of two with one name the later file's counts."""

    def __init__(self, files: list[Path]):
        self._files: dict[str, Path] = {}
        self._headers: dict[str, weight_files.Header] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._loaded: tuple[Path, Mapping[str, Tensor]] | None = None
        for file in files:
            if file.suffix == ".safetensors":
                headers = weight_files.headers_of(file)
                self._headers |= headers
                found = {name: header.shape for name, header in headers.items()}
            else:
                found = {
                    name: tuple(tensor.shape) for name, tensor in self._torchs_own(file).items()
                }
            self._shapes |= found
            self._files |= dict.fromkeys(found, file)

    def names(self) -> list[str]:
        return list(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        header = self._headers.get(name)
        if header is None or header.dtype not in _DTYPES:
            return self.rows(name).dtype
        return _DTYPES[header.dtype]

    def rows(self, name: str, first: int = 0, last: int | None = None) -> Tensor:
        file = self._files[name]
        if file.suffix != ".safetensors":
            tensor = self._torchs_own(file)[name]
            return (tensor[first:last] if tensor.dim() else tensor).clone()
        header = self._headers[name]
        if header.dtype not in _DTYPES:
            with safe_open(file, framework="pt") as opened:
                tensor = opened.get_tensor(name)
                return (tensor[first:last] if tensor.dim() else tensor).clone()
        # Read, and not mapped: what is mapped counts as used until the file is closed.
        shape = header.shape
        if shape:
            last = shape[0] if last is None else last
            shape = (last - first, *shape[1:])
        rows = torch.empty(shape, dtype=_DTYPES[header.dtype])
        begin = (
            weight_files.beginnings_of(file)[name] + first * math.prod(shape[1:]) * rows.itemsize
        )
        left = bytes_of(rows)
        with file.open("rb", buffering=0) as opened_file:
            opened_file.seek(begin)
            while left:
                count = opened_file.readinto(left)
                if not count:
                    raise OSError(f"{file} has become shorter")
                left = left[count:]
        return rows

    def _torchs_own(self, file: Path) -> Mapping[str, Tensor]:
        """Return the tensors of a file, and let go of the last one's: torch's older format is read, not mapped."""
        if self._loaded is None or self._loaded[0] != file:
            self._loaded = None
            self._loaded = (file, weight_files.read(file))
        return self._loaded[1]


class LoadedRows:
    """Tensors in memory."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self._tensors = tensors

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def rows(self, name: str, first: int = 0, last: int | None = None) -> Tensor:
        tensor = self._tensors[name]
        if tensor.dim():
            return tensor[first:last]
        return tensor
