"""Where a model's name or path leads: what is unpacked is kept, for this file and no other."""

import contextlib
from pathlib import Path

import pytest

from tape_ds.errors import DiskError, UserError
from tape_ds.model import name_or_path
from tests.disks import files, make_read_only, mounted


@pytest.fixture
def unpacked(monkeypatch):
    """Files that were unpacked; unpacking writes what was in them."""
    files = []

    def write(file: Path, folder: Path) -> None:
        files.append(file)
        folder.mkdir()
        (folder / "content").write_bytes(file.read_bytes())

    monkeypatch.setattr(name_or_path, "_write_gguf", write)
    return files


def test_gguf_files_of_one_name_are_told_apart(tmp_path, unpacked):
    """Converters call every file ggml-model-f16.gguf: the second model was the first, in silence."""
    found = {}
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "ggml-model-f16.gguf"
        file.write_text(f"weights of {name}")
        found[name] = name_or_path.resolve(str(file), tmp_path / "models")
        assert name_or_path.resolve(str(file), tmp_path / "models") == found[name]
    for name, folder in found.items():
        assert (Path(folder) / "content").read_text() == f"weights of {name}"
    assert len(unpacked) == 2, "each once"


def test_a_gguf_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        name_or_path.resolve(str(tmp_path / "absent.gguf"), tmp_path)


@pytest.mark.parametrize("real", [True, False])
def test_a_full_disk_leaves_no_half_of_a_model(tmp_path, monkeypatch, real):
    def write(file, folder):
        folder.mkdir()
        (folder / "content").write_bytes(bytes(2**20 if real else 8))
        if not real:
            raise RuntimeError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(name_or_path, "_write_gguf", write)
    (tmp_path / "x.gguf").write_text("weights")
    with contextlib.ExitStack() as held:
        models = held.enter_context(mounted(tmp_path / "disk")) if real else tmp_path / "models"
        with pytest.raises(DiskError, match=f"model = '{models}': the disk of .* is full"):
            name_or_path.resolve(str(tmp_path / "x.gguf"), models)
        assert [name for name in files(models) if not name.endswith(".lock")] == []


def test_an_unpacked_model_is_found_where_nothing_may_be_written(tmp_path, unpacked):
    (tmp_path / "x.gguf").write_text("weights")
    with mounted(tmp_path / "disk") as disk:
        found = name_or_path.resolve(str(tmp_path / "x.gguf"), disk)
        make_read_only(disk)
        assert name_or_path.resolve(str(tmp_path / "x.gguf"), disk) == found
        (tmp_path / "x.gguf").write_text("other weights")
        with pytest.raises(DiskError, match="cannot be written"):
            name_or_path.resolve(str(tmp_path / "x.gguf"), disk)
