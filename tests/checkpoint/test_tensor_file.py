"""Weights written piece by piece: an ordinary safetensors file."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from tape_ds.checkpoint import tensor_file
from tape_ds.checkpoint.tensor_file import Form

TENSORS = {
    "b": torch.randn(3, 5, generator=torch.Generator().manual_seed(0)),
    "a.weight": torch.arange(7).bfloat16(),
    "one": torch.tensor(2.5, dtype=torch.float16),
    "none": torch.empty(0, 4),
}


def test_safetensors_reads_what_was_written(tmp_path):
    forms = {name: Form(tensor.dtype, tuple(tensor.shape)) for name, tensor in TENSORS.items()}
    tensor_file.write(tmp_path / "x", forms, lambda name: TENSORS[name].flatten().split(2))
    found = load_file(tmp_path / "x")
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(found[name], tensor) and found[name].dtype is tensor.dtype
    length = int.from_bytes((tmp_path / "x").read_bytes()[:8], "little")
    assert length % 8 == 0


def test_what_safetensors_has_written_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_file, "CHUNK", 4)
    save_file(TENSORS, tmp_path / "x")
    file = tensor_file.read(tmp_path / "x")
    assert {name: form.shape for name, form in file.forms.items()} == {n: tuple(t.shape) for n, t in TENSORS.items()}
    pieces = list(file.chunks("b"))
    assert [len(piece) for piece in pieces] == [4, 4, 4, 3]
    assert torch.equal(torch.cat(pieces), TENSORS["b"].flatten())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no header"),
        (b"\xff" * 40, "no header"),
        ((2).to_bytes(8, "little") + b"[]", "no weights"),
        ((4).to_bytes(8, "little") + b"{..}", "no weights"),
    ],
)
def test_a_file_that_is_none_is_told(tmp_path, content, said):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match=said):
        tensor_file.read(tmp_path / "x")


def test_a_file_that_was_cut_is_told(tmp_path):
    save_file({"a": torch.ones(100)}, tmp_path / "x")
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-8])
    with pytest.raises(ValueError, match="ends within a"):
        list(tensor_file.read(tmp_path / "x").chunks("a"))


def test_whole_numbers_are_no_weights(tmp_path):
    save_file({"a": torch.ones(3, dtype=torch.int64)}, tmp_path / "x")
    with pytest.raises(ValueError, match="no weights"):
        tensor_file.read(tmp_path / "x")
