"""Rows are those of the whole tensor, from every kind of file."""

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from tape_ds.models.files import tensor_rows
from tape_ds.models.files.tensor_rows import LoadedRows, StoredRows

TENSORS = {
    "matrix": torch.randn(40, 6).bfloat16(),
    "cube": torch.randn(5, 3, 4),
    "vector": torch.randn(9).half(),
    "number": torch.tensor(3.5),
    "whole": torch.arange(12).reshape(6, 2),
    "eighths": torch.randn(4, 4).to(torch.float8_e4m3fn),
}


def rows_of(kind, folder):
    if kind == "memory":
        return LoadedRows(TENSORS)
    if kind == "safetensors":
        save_file(TENSORS, folder / "x.safetensors")
        return StoredRows([folder / "x.safetensors"])
    kept = {
        name: tensor for name, tensor in TENSORS.items() if kind == "torch" or name != "eighths"
    }
    torch.save(kept, folder / "x.bin", _use_new_zipfile_serialization=kind == "torch")
    return StoredRows([folder / "x.bin"])


@pytest.mark.parametrize("kind", ["memory", "safetensors", "torch", "torch's older form"])
def test_rows_are_those_of_the_tensor(tmp_path, monkeypatch, kind):
    found = rows_of(kind, tmp_path)
    monkeypatch.setattr(tensor_rows, "PIECE", 20)
    assert set(found.names()) >= set(TENSORS) - {"eighths"}
    for name in found.names():
        tensor = TENSORS[name]
        assert found.shape(name) == tuple(tensor.shape)
        assert same(found.rows(name), tensor)
        pieces = list(tensor_rows.pieces(found, name))
        assert same(torch.cat(pieces) if tensor.dim() else pieces[0], tensor)
    assert [len(piece) for piece in tensor_rows.pieces(found, "cube")] == [1] * 5
    assert [len(piece) for piece in tensor_rows.pieces(found, "matrix", 7)] == [3, 3, 1]
    assert same(found.rows("matrix", 11, 13), TENSORS["matrix"][11:13])


def same(one, other):
    return one.dtype == other.dtype and torch.equal(one.float(), other.float())


def test_what_is_read_is_its_reader_s_own(tmp_path):
    """peft merges in place: another read gets what the file has."""
    found = rows_of("safetensors", tmp_path)
    found.rows("matrix").zero_()
    assert same(found.rows("matrix"), TENSORS["matrix"])


def test_a_later_file_s_tensor_counts(tmp_path):
    save_file({"a": torch.zeros(2), "b": torch.zeros(2)}, tmp_path / "1.safetensors")
    save_file({"b": torch.ones(3)}, tmp_path / "2.safetensors")
    found = StoredRows([tmp_path / "1.safetensors", tmp_path / "2.safetensors"])
    assert (
        found.shape("b") == (3,)
        and bool((found.rows("b") == 1).all())
        and bool((found.rows("a") == 0).all())
    )


def test_a_file_that_became_shorter_is_an_error(tmp_path):
    found = rows_of("safetensors", tmp_path)
    with (tmp_path / "x.safetensors").open("r+b") as file:
        file.truncate(file.seek(0, 2) - 8)
    with pytest.raises((OSError, SafetensorError)):
        [found.rows(name) for name in TENSORS]
