"""Where addresses lead: what is unpacked is kept, for this file and no other."""

from pathlib import Path

import pytest

from tape_ds.errors import UserError
from tape_ds.model import addresses


@pytest.fixture
def unpacked(monkeypatch):
    """Files that were unpacked; unpacking writes what was in them."""
    files = []

    def write(file: Path, folder: Path) -> None:
        files.append(file)
        folder.mkdir()
        (folder / "content").write_bytes(file.read_bytes())

    monkeypatch.setattr(addresses, "_write_gguf", write)
    return files


def test_gguf_files_of_one_name_are_told_apart(tmp_path, unpacked):
    """Converters call every file ggml-model-f16.gguf: the second model was the first, in silence."""
    found = {}
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "ggml-model-f16.gguf"
        file.write_text(f"weights of {name}")
        found[name] = addresses.resolve(str(file), tmp_path / "models")
        assert addresses.resolve(str(file), tmp_path / "models") == found[name]
    for name, folder in found.items():
        assert (Path(folder) / "content").read_text() == f"weights of {name}"
    assert len(unpacked) == 2, "each once"


def test_a_gguf_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        addresses.resolve(str(tmp_path / "absent.gguf"), tmp_path)
