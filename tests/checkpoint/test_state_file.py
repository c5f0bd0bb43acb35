"""Files of tensors that are filled where they lie: what ``torch.load`` reads like any other."""

import errno
from collections import OrderedDict

import pytest
import torch

from tape_ds.checkpoint import state_file
from tape_ds.checkpoint.state_file import Space


def test_torch_reads_what_was_filled(tmp_path):
    shared = Space((2, 3), torch.bfloat16, lambda tensor: tensor.fill_(2.5))
    content = {
        "flat": [Space((5,), torch.float32, lambda tensor: tensor[1:3].fill_(7.0), requires_grad=True)],
        "module": OrderedDict(a=shared, b=shared, c=torch.arange(3)),
        "shape": torch.Size([2, 3]),
        "plain": (1, "x", None),
    }
    state_file.write(tmp_path / "x.pt", content)
    for weights_only in (True, False):
        found = torch.load(tmp_path / "x.pt", weights_only=weights_only)
        flat = found["flat"][0]
        assert flat.requires_grad and flat.tolist() == [0.0, 7.0, 7.0, 0.0, 0.0]
        module = found["module"]
        assert type(module) is OrderedDict and torch.equal(module["a"], torch.full((2, 3), 2.5).bfloat16())
        assert module["a"].data_ptr() == module["b"].data_ptr() and module["c"].tolist() == [0, 1, 2]
        assert found["shape"] == torch.Size([2, 3]) and found["plain"] == (1, "x", None)


def test_one_tensor_in_two_places_becomes_two(tmp_path):
    """As a step counter does that several flat tensors begin with: one that they shared would count twice."""
    step = torch.tensor(3.0)
    state_file.write(tmp_path / "x.pt", {"a": step, "b": step})
    found = torch.load(tmp_path / "x.pt", weights_only=True)
    found["a"] += 1
    assert found["b"] == 3


def test_a_disk_without_room_is_an_error_before_anything_is_filled(tmp_path, monkeypatch):
    """Written through a map, a full disk would end the process by a signal."""

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    filled = []
    with pytest.raises(OSError, match="No space"):
        state_file.write(tmp_path / "x.pt", {"a": Space((5,), torch.float32, filled.append)})
    assert not filled
