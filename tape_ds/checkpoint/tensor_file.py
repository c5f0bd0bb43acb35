"""safetensors files read and written piece by piece, so that no tensor is ever in memory as a whole.

The format: eight bytes with the length of the header (little-endian), the header (JSON: each tensor's dtype, shape, and
first and last byte after the header), then the tensors one after another.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Those of weights, by the names that the format has for them."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
CHUNK = 2**20
"""Elements that are handled at a time."""
_LENGTH_BYTES, _ALIGNMENT, _LONGEST_HEADER = 8, 8, 100_000_000


@dataclass(frozen=True)
class Form:
    """What a file says of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file of weights, of which the header has been read."""

    path: Path
    forms: Mapping[str, Form]
    """By name, in the file's order."""
    starts: Mapping[str, int]
    """First byte of each tensor in the file."""

    def chunks(self, name: str) -> Iterator[Tensor]:
        """A tensor's elements, flattened, :data:`CHUNK` at a time.

        Raises:
            ValueError: the file ends before they do.
        """
        form = self.forms[name]
        with self.path.open("rb") as file:
            file.seek(self.starts[name])
            for start in range(0, form.numel, CHUNK):
                count = min(CHUNK, form.numel - start)
                held = bytearray(count * form.dtype.itemsize)
                if file.readinto(held) != len(held):
                    raise ValueError(f"{self.path.name} ends within {name}")
                yield torch.frombuffer(held, dtype=form.dtype)


def read(path: Path) -> TensorFile:
    """The header of a file.

    Raises:
        ValueError: it is damaged, or holds something else than weights.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 0 < length <= min(_LONGEST_HEADER, path.stat().st_size - _LENGTH_BYTES):
            raise ValueError(f"{path.name} is damaged: it has no header")
        header = file.read(length)
    try:
        fields = json.loads(header)
        fields.pop("__metadata__", None)
        forms = {name: Form(DTYPES[each["dtype"]], tuple(map(int, each["shape"]))) for name, each in fields.items()}
        ends = {name: tuple(map(int, each["data_offsets"])) for name, each in fields.items()}
        if odd := [name for name, (start, end) in ends.items() if start < 0 or end - start != forms[name].size]:
            raise ValueError(f"{odd[0]} has another size than its shape")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path.name} is damaged, or holds no weights ({type(error).__name__}: {error})") from error
    return TensorFile(path, forms, {name: _LENGTH_BYTES + length + start for name, (start, _) in ends.items()})


def write(path: Path, forms: Mapping[str, Form], content: Callable[[str], Iterable[Tensor]]) -> None:
    """Write a file.

    Args:
        path: of the file.
        forms: of its tensors, by name.
        content: given a name, the tensor's elements in order, in pieces of its dtype.

    Raises:
        OSError: the disk.
    """
    with path.open("wb") as file:
        file.write(_header(forms))
        for name, form in forms.items():
            written = 0
            for piece in content(name):
                assert piece.dtype is form.dtype, (name, piece.dtype)
                written += file.write(piece.contiguous().view(-1).view(torch.uint8).numpy().data)
            assert written == form.size, f"{name}: {written} bytes instead of {form.size}"
        file.flush()
        os.fsync(file.fileno())


def _header(forms: Mapping[str, Form]) -> bytes:
    """With the length before it, and blanks behind it: the first tensor begins at a multiple of eight bytes."""
    fields: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, form in forms.items():
        start, end = end, end + form.size
        fields[name] = {"dtype": NAMES[form.dtype], "shape": list(form.shape), "data_offsets": [start, end]}
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text
