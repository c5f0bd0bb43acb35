"""Files of weights from outside: damaged ones are refused by name before a tensor is read, and nothing in one runs."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from tape_ds.errors import UserError
from tape_ds.models import convert
from tape_ds.models.files import library_errors, weight_files
from tape_ds.models.loading import extendable, model_folder
from tests.models.helpers import tiny_model

DAMAGES = {
    "empty": lambda raw: b"",
    "cut in a tensor": lambda raw: raw[:-1],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_refused_by_name(tmp_path, damage):
    file = tmp_path / "model.safetensors"
    save_file({"x": torch.ones(8)}, file)
    assert weight_files.check_folder(tmp_path) == [] and weight_files.read(file)["x"].sum() == 8
    file.write_bytes(damage(file.read_bytes()))
    (problem,) = weight_files.check_folder(tmp_path, "here")
    assert (problem.field, problem.value, problem.remedy) == (
        "here",
        str(file),
        library_errors.READ_AGAIN,
    )
    with pytest.raises(UserError, match=r"model\.safetensors"):
        weight_files.read(file)


def test_a_header_is_read_once_until_its_file_changes(tmp_path, monkeypatch):
    """It was read when a folder was checked, when its sizes were compared, for its dtype, and when it was loaded."""
    file = tmp_path / "model.safetensors"
    save_file({"x": torch.ones(8, dtype=torch.bfloat16)}, file)
    opened = []
    real = weight_files.safe_open
    monkeypatch.setattr(
        weight_files,
        "safe_open",
        lambda *given, **options: opened.append(1) or real(*given, **options),
    )
    assert weight_files.check_folder(tmp_path) == []
    assert weight_files.headers(tmp_path) == {"x": weight_files.Header((8,), "BF16")}
    assert weight_files.stored_dtype(tmp_path) == "BF16" and len(opened) == 1
    save_file({"x": torch.ones(9)}, file)
    assert (
        weight_files.headers(tmp_path) == {"x": weight_files.Header((9,), "F32")}
        and len(opened) == 2
    )


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (
            {"weight_map": {"x": "model-1.safetensors", "y": "model-2.safetensors"}},
            "weights are missing: model-2",
        ),
        (
            {"weight_map": {"x": "model-1.safetensors", "y": "../model-1.safetensors"}},
            "is not a file of this folder",
        ),
    ],
)
def test_an_index_names_files_of_its_folder(tmp_path, content, wrong):
    save_file({"x": torch.ones(8)}, tmp_path / "model-1.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(content))
    (problem,) = weight_files.check_folder(tmp_path)
    assert wrong in problem.wrong and problem.value.endswith("index.json")


@pytest.mark.parametrize(
    "content", ["7", "[]", "<html>", "{}", '{"weight_map": null}', '{"weight_map": {"x": 1}}']
)
def test_a_damaged_index_is_a_message_whatever_is_asked_first(tmp_path, content):
    """A configuration asked for the names of the files before they were checked: a traceback of json."""
    save_file({"x": torch.ones(8)}, tmp_path / "model-1.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(content)
    (problem,) = weight_files.check_folder(tmp_path)
    for ask in (weight_files.files, weight_files.headers, weight_files.stored_dtype):
        with pytest.raises(UserError) as refused:
            ask(tmp_path)
        assert refused.value.problems == [problem]


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe" * 8])
def test_a_damaged_header_is_a_message_whatever_is_asked_first(tmp_path, content):
    """``evaluate`` asked for the stored dtype before the files were checked: a traceback of struct."""
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError) as refused:
        weight_files.stored_dtype(tmp_path)
    assert refused.value.problems == weight_files.check_folder(tmp_path)


class Trap:
    """What a malicious pickle holds: it makes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.fixture
def published(tmp_path):
    """A Llama with torch's own file, as some still are."""
    torch.manual_seed(0)
    plain = convert.to_plain(tiny_model(encoding="rope"))
    assert isinstance(plain, LlamaForCausalLM)
    plain.config.save_pretrained(tmp_path)
    torch.save(plain.state_dict(), tmp_path / "pytorch_model.bin")
    return tmp_path


def load(folder):
    return convert.load(folder, convert.tape_config(extendable.read(folder)))


def test_a_pickle_that_would_run_is_refused_and_does_not(published):
    file = published / "pytorch_model.bin"
    torch.save({"x": Trap(published / "ran")}, file)
    with pytest.raises(UserError):
        load(published)
    with pytest.raises(UserError):
        weight_files.read(file)
    assert not (published / "ran").exists()


def test_a_torch_file_is_read_unless_it_is_damaged(published):
    assert load(published).num_parameters() > 0
    (published / "pytorch_model.bin").write_bytes(b"PK\x03\x04" + b"0" * 200)
    with pytest.raises(UserError):
        load(published)
    # as training scripts save it
    torch.save({"model": {"x": torch.ones(1)}}, published / "pytorch_model.bin")
    with pytest.raises(UserError, match="something else than tensors"):
        weight_files.read(published / "pytorch_model.bin")


def test_shards_without_their_index_are_refused(tmp_path):
    save_file({"x": torch.ones(8)}, tmp_path / "model-00001-of-00002.safetensors")
    (problem,) = weight_files.check_folder(tmp_path)
    assert problem.value == str(tmp_path) and ".index.json" in problem.wrong


@pytest.mark.parametrize("content", [b"GGUF" + bytes(40), b"junk" * 20])
def test_a_damaged_gguf_leaves_nothing(tmp_path, content):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(UserError, match="could not be read"):
        model_folder.resolve(str(tmp_path / "x.gguf"), tmp_path / "models")
    assert [
        path for path in (tmp_path / "models").iterdir() if not path.name.endswith(".lock")
    ] == []


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (
            lambda folder: (folder / weight_files.ADAPTER).unlink(),
            "there is no adapter_model.safetensors",
        ),
        (lambda folder: (folder / weight_files.ADAPTER_CONFIG).write_text("[]"), "is not readable"),
        (
            lambda folder: (folder / weight_files.ADAPTER_CONFIG).write_text("[" * 100_000),
            "is not readable",
        ),
        (
            lambda folder: (folder / weight_files.ADAPTER_CONFIG).write_text(
                '{"megatron_config": {"x": 1}}'
            ),
            "has a module imported",
        ),
    ],
)
def test_an_adapter_is_whole_and_asks_for_no_code(tmp_path, change, wrong):
    save_file({"x": torch.ones(8)}, tmp_path / weight_files.ADAPTER)
    (tmp_path / weight_files.ADAPTER_CONFIG).write_text('{"peft_type": "LORA"}')
    assert weight_files.check_adapter(tmp_path) == []
    change(tmp_path)
    (problem,) = weight_files.check_adapter(tmp_path)
    assert wrong in problem.wrong
