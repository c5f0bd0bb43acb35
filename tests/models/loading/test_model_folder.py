"""Where a model's name or path leads: what is unpacked is kept, for this file and no other."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from tape_ds.encodings import scaling
from tape_ds.errors import DiskError, UserError
from tape_ds.models.loading import model_folder
from tests.disks import files, make_read_only, mounted


@pytest.fixture
def unpacked(monkeypatch):
    """Files that were unpacked; unpacking writes what was in them."""
    files = []

    def write(file: Path, folder: Path) -> None:
        files.append(file)
        folder.mkdir()
        (folder / "content").write_bytes(file.read_bytes())

    monkeypatch.setattr(model_folder, "_write_gguf", write)
    return files


def test_gguf_files_of_one_name_are_told_apart(tmp_path, unpacked):
    """Converters call every file ggml-model-f16.gguf: the second model was the first, in silence."""
    found = {}
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "ggml-model-f16.gguf"
        file.write_text(f"weights of {name}")
        found[name] = model_folder.resolve(str(file), tmp_path / "models")
        assert model_folder.resolve(str(file), tmp_path / "models") == found[name]
    for name, folder in found.items():
        assert (Path(folder) / "content").read_text() == f"weights of {name}"
    assert len(unpacked) == 2, "each once"


def test_a_gguf_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        model_folder.resolve(str(tmp_path / "absent.gguf"), tmp_path)


def gguf_file(path, fields=(), divisors=None):
    """A GGUF file with RoPE's fields and no weights."""
    writer = GGUFWriter(path, "llama")
    for name, value in dict(fields).items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32 if type(value) is int else None
        (add or writer.add_float32)(f"llama.rope.{'' if name == 'scale_linear' else 'scaling.'}{name}", value)
    writer.add_tensor("rope_freqs.weight" if divisors is not None else "other", np.float32(divisors or [1.0]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_s_own_scaling_is_read(tmp_path):
    """transformers reads none of a Llama's: a scaled model became an unscaled one."""
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
    llama3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    plain = 5e5 ** (-np.arange(0, 128, 2) / 128)
    divisors = (plain / scaling.frequencies({**llama3, "rope_theta": 5e5}, 128)[0]).tolist()
    assert model_folder.gguf_scaling(gguf_file(tmp_path / "3.1.gguf", divisors=divisors), 5e5) == llama3
    fields = {"type": "yarn", "factor": 4.0, "original_context_length": 4096, "attn_factor": 0.5}
    found = model_folder.gguf_scaling(gguf_file(tmp_path / "yarn.gguf", fields), 1e4)
    assert found == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "attn_factor": 0.5}
    for number, old in enumerate(({"factor": 4.0}, {"scale_linear": 4.0})):  # llama.cpp's type is linear by default
        found = model_folder.gguf_scaling(gguf_file(tmp_path / f"{number}.gguf", old), 1e5)
        assert found == {"rope_type": "linear", "factor": 4.0}
    fields = {"type": "yarn", "factor": 4.0, "original_context_length": 4096, "yarn_beta_fast": 16.0}
    found = model_folder.gguf_scaling(gguf_file(tmp_path / "beta.gguf", fields), 1e4)
    assert found == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "beta_fast": 16.0}
    for none in ({}, {"type": "none"}, {"scale_linear": 1.0}):
        assert model_folder.gguf_scaling(gguf_file(tmp_path / "plain.gguf", none), 1e4) == {}
    with pytest.raises(UserError, match="not Llama 3's"):
        model_folder.gguf_scaling(gguf_file(tmp_path / "long.gguf", divisors=[1.0, 2.5, 4.0, 4.0]), 1e4)


@pytest.mark.parametrize("real", [True, False])
def test_a_full_disk_leaves_no_half_of_a_model(tmp_path, monkeypatch, real):
    def write(file, folder):
        folder.mkdir()
        (folder / "content").write_bytes(bytes(2**20 if real else 8))
        if not real:
            raise RuntimeError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(model_folder, "_write_gguf", write)
    (tmp_path / "x.gguf").write_text("weights")
    with contextlib.ExitStack() as held:
        models = held.enter_context(mounted(tmp_path / "disk")) if real else tmp_path / "models"
        with pytest.raises(DiskError, match=f"model = '{models}': the disk of .* is full"):
            model_folder.resolve(str(tmp_path / "x.gguf"), models)
        assert [name for name in files(models) if not name.endswith(".lock")] == []


def test_an_unpacked_model_is_found_where_nothing_may_be_written(tmp_path, unpacked):
    (tmp_path / "x.gguf").write_text("weights")
    with mounted(tmp_path / "disk") as disk:
        found = model_folder.resolve(str(tmp_path / "x.gguf"), disk)
        make_read_only(disk)
        assert model_folder.resolve(str(tmp_path / "x.gguf"), disk) == found
        (tmp_path / "x.gguf").write_text("other weights")
        with pytest.raises(DiskError, match="cannot be written"):
            model_folder.resolve(str(tmp_path / "x.gguf"), disk)


def test_a_gguf_file_without_a_tensor_is_refused(tmp_path, monkeypatch):
    """transformers draws at random what is missing, and the folder of it was kept for every later run."""
    info = {"missing_keys": {"lm_head.weight"}}
    monkeypatch.setattr(model_folder.AutoModelForCausalLM, "from_pretrained", lambda **place: (None, info))
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(UserError, match=r"x\.gguf.*missing: lm_head\.weight"):
        model_folder.resolve(str(tmp_path / "x.gguf"), tmp_path / "models")
    assert not [*(tmp_path / "models").glob("x*")]
