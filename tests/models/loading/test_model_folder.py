"""Where a model's name or path leads: what is unpacked is kept, for this file and no other."""

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from tape_ds.errors import UserError
from tape_ds.models.loading import model_folder


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


def test_gguf_files_of_one_name_are_two_models(tmp_path, unpacked):
    """Converters call every file ggml-model-f16.gguf."""
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


SIZES = {"block_count": 1, "embedding_length": 8, "attention.head_count": 2}
OTHERS = {"context_length": 64, "feed_forward_length": 16}


def sized_gguf(path, sizes):
    """A GGUF file of one block with these sizes, and embeddings that are 8 wide."""
    writer = GGUFWriter(path, "llama")
    for name, value in sizes.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    writer.add_tensor("blk.0.attn_norm.weight", np.zeros(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"embedding_length": None}, "it has no llama.embedding_length"),
        ({"attention.head_count": None}, "it has no llama.attention.head_count"),
        (
            {"block_count": 9_000_000},
            r"llama.block_count is 9,000,000, and it has tensors of 1 blocks",
        ),
        (
            {"embedding_length": 4096},
            r"llama.embedding_length is 4,096, and its embeddings are 8 wide",
        ),
    ],
)
def test_a_gguf_file_has_the_sizes_of_its_tensors(tmp_path, monkeypatch, change, wrong):
    """Without sizes transformers built its default, of 7 billion parameters; with others, as many as they said."""
    monkeypatch.setattr(
        model_folder.AutoModelForCausalLM,
        "from_pretrained",
        lambda **_: pytest.fail("it was built"),
    )
    sizes = {name: value for name, value in (SIZES | change).items() if value is not None}
    with pytest.raises(UserError, match=wrong):
        model_folder.resolve(str(sized_gguf(tmp_path / "x.gguf", sizes)), tmp_path / "models")


def test_a_gguf_file_without_a_tensor_is_refused(tmp_path, monkeypatch):
    """transformers draws at random what is missing."""
    info = {"missing_keys": {"lm_head.weight"}}
    monkeypatch.setattr(
        model_folder.AutoModelForCausalLM, "from_pretrained", lambda **place: (None, info)
    )
    sized_gguf(tmp_path / "x.gguf", SIZES | OTHERS)
    with pytest.raises(UserError, match=r"x\.gguf.*missing: lm_head\.weight"):
        model_folder.resolve(str(tmp_path / "x.gguf"), tmp_path / "models")
    assert not [*(tmp_path / "models").glob("x*")]


def test_a_folder_with_its_own_code_is_found_without_a_question(tmp_path, monkeypatch):
    """transformers asks on the terminal, for a quarter of a minute, whether such code may run."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question on the terminal"))
    code = {"AutoConfig": "configuration_own.OwnConfig"}
    content = {"model_type": "own", "auto_map": code}
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert model_folder.resolve(str(tmp_path)) == str(tmp_path)
