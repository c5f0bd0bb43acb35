"""Files such as ``torch.save`` writes, of tensors that are never in memory: room is made first, and filled in place.

What is filled lies in mapped pages of the file, which the system writes out and takes back as it needs; nothing of it
counts as a process's own memory.
"""

import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Size, Tensor

from tape_ds import storage
from tape_ds.checkpoint.engine_state import load


@dataclass(frozen=True, eq=False)
class Space:
    """Stands for a tensor in what :func:`write` is given; the same one in two places is one tensor in the file."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    fill: Callable[[Tensor], Any]
    """Given the tensor, contiguous and all zero, in the file."""
    requires_grad: bool = False


def write(path: Path, content: Any) -> None:
    """Write nested dicts, lists and tuples of plain values, tensors and :class:`Space`.

    Raises:
        OSError: the disk; there is no room for it, above all.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    made: dict[Space, Tensor] = {}

    def room(leaf: Any) -> Any:
        if isinstance(leaf, Space) and leaf in made:
            return made[leaf]
        with FakeTensorMode():
            found = torch.empty(leaf.shape, dtype=leaf.dtype, requires_grad=leaf.requires_grad)
        return made.setdefault(leaf, found) if isinstance(leaf, Space) else found

    with path.open("wb") as file, torch.serialization.skip_data(materialize_fake_tensors=True):
        torch.save(_mapped(content, room), file)
    with path.open("rb+") as made_file:  # a hole for which there is no room would be the process's death when filled
        os.posix_fallocate(made_file.fileno(), 0, path.stat().st_size)
    _fill(path, content)
    storage.sync(path)


def _fill(path: Path, content: Any) -> None:
    with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
        written = load(path)
    done: set[Space] = set()
    with torch.no_grad():
        for leaf, tensor in zip(_leaves(content), _leaves(written), strict=True):
            assert isinstance(tensor, Tensor)
            if isinstance(leaf, Tensor):
                tensor.copy_(leaf)
            elif leaf not in done:
                done.add(leaf)
                leaf.fill(tensor)


def _mapped(content: Any, change: Callable[[Any], Any]) -> Any:
    """``content`` with every leaf changed."""
    if isinstance(content, Tensor | Space):
        return change(content)
    if isinstance(content, dict):
        return type(content)((key, _mapped(value, change)) for key, value in content.items())
    if isinstance(content, list | tuple) and not isinstance(content, Size):
        return type(content)(_mapped(value, change) for value in content)
    return content


def _leaves(content: Any) -> Iterator[Tensor | Space]:
    """Every leaf, in the order of :func:`_mapped`."""
    if isinstance(content, Tensor | Space):
        yield content
    elif isinstance(content, dict):
        for value in content.values():
            yield from _leaves(value)
    elif isinstance(content, list | tuple) and not isinstance(content, Size):
        for value in content:
            yield from _leaves(value)
