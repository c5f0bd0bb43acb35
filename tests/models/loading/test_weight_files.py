"""Files of weights from outside: damaged ones are refused by name before a tensor is read, and nothing in one runs."""

import json
import os
import pickle

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from tape_ds.errors import UserError
from tape_ds.models import convert
from tape_ds.models.loading import extendable, model_folder, weight_files
from tests.models.helpers import tiny_model


def lying(raw):
    """The same file with a first tensor that is said to be longer than the file."""
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["x"]["data_offsets"][1] = 10**12
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + raw[8 + length :]


DAMAGES = {
    "empty": lambda raw: b"",
    "cut in its header": lambda raw: raw[:20],
    "cut in a tensor": lambda raw: raw[:-1],
    "something behind it": lambda raw: raw + b"x",
    "a header that lies about sizes": lying,
    "a header without end": lambda raw: (2**40).to_bytes(8, "little") + raw[8:],
    "not safetensors": lambda raw: b"PK\x03\x04" * 100,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_refused_by_name(tmp_path, damage):
    file = tmp_path / "model.safetensors"
    save_file({"x": torch.ones(8)}, file)
    assert weight_files.check_folder(tmp_path) == [] and weight_files.read(file)["x"].sum() == 8
    file.write_bytes(damage(file.read_bytes()))
    (problem,) = weight_files.check_folder(tmp_path, "here")
    assert (problem.field, problem.value, problem.remedy) == ("here", str(file), weight_files.REMEDY)
    with pytest.raises(UserError, match=r"model\.safetensors"):
        weight_files.read(file)


def test_a_file_without_tensors_is_none(tmp_path):
    save_file({}, tmp_path / "model.safetensors")
    assert [each.wrong for each in weight_files.check_folder(tmp_path)] == ["holds no tensor"]


def test_a_file_that_is_not_there_is_a_message(tmp_path):
    with pytest.raises(UserError, match="none"):
        weight_files.read(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ({"weight_map": {"x": "model-1.safetensors", "y": "model-2.safetensors"}}, "weights are missing: model-2"),
        ({"weight_map": {"x": "model-1.safetensors", "y": "../model-1.safetensors"}}, "is not a file of this folder"),
        ({"weight_map": {"x": "model-1.safetensors", "y": "/etc/passwd"}}, "is not a file of this folder"),
        ({"weight_map": ["x"]}, "could not be read"),
        ({}, "could not be read"),
    ],
)
def test_an_index_names_files_that_lie_beside_it(tmp_path, content, wrong):
    save_file({"x": torch.ones(8)}, tmp_path / "model-1.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(content))
    (problem,) = weight_files.check_folder(tmp_path)
    assert wrong in problem.wrong and problem.value.endswith("index.json")


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


def test_a_torch_file_of_tensors_is_read(published):
    assert load(published).num_parameters() > 0


@pytest.mark.parametrize(
    "write",
    [
        lambda trap, file: torch.save({"x": trap}, file),
        lambda trap, file: file.write_bytes(pickle.dumps(trap)),
        lambda trap, file: file.write_bytes(pickle.dumps(trap, protocol=0)),
    ],
    ids=["torch", "pickle", "old pickle"],
)
def test_a_pickle_that_would_run_is_refused_and_does_not(published, write):
    file = published / "pytorch_model.bin"
    write(Trap(published / "ran"), file)
    with pytest.raises(UserError) as caught:
        load(published)
    with pytest.raises(UserError):
        weight_files.read(file)
    assert not (published / "ran").exists()
    assert "weights_only=False" not in str(caught.value), "torch's advice is not to be followed"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" + b"0" * 200, b"junk" * 50])
def test_a_damaged_torch_file_is_a_message(published, content):
    (published / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(UserError):
        load(published)


def test_a_torch_file_that_is_not_there_is_a_message(published):
    """A link into a cache that was emptied ended in a traceback, before a recipe said anything."""
    file = published / "pytorch_model.bin"
    file.unlink()
    file.symlink_to(published / "emptied")
    (problem,) = weight_files.check_folder(published)
    assert problem.value == str(file) and "cannot be opened" in problem.wrong


@pytest.mark.parametrize("content", [{"model": {"x": torch.ones(1)}}, [torch.ones(1)]], ids=["nested", "a list"])
def test_a_torch_file_of_something_else_is_a_message(published, content):
    """What training scripts save is often a dictionary of dictionaries; converting a Baichuan ended in a traceback."""
    torch.save(content, published / "pytorch_model.bin")
    with pytest.raises(UserError, match="something else than tensors"):
        weight_files.read(published / "pytorch_model.bin")


def test_a_folder_without_weights_is_a_message(published):
    (published / "pytorch_model.bin").unlink()
    with pytest.raises(UserError, match="no weights in it"):
        load(published)


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "pytorch_model-00001-of-00002.bin"])
def test_shards_without_their_index_are_a_message(tmp_path, name):
    """A dry run passed, and the run ended in a traceback."""
    save = save_file if name.endswith(".safetensors") else torch.save
    save({"x": torch.ones(8)}, tmp_path / name)
    (problem,) = weight_files.check_folder(tmp_path)
    assert problem.value == str(tmp_path) and name in problem.wrong and ".index.json" in problem.wrong


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + bytes(40), b"junk" * 20])
def test_a_damaged_gguf_is_a_message_and_leaves_nothing(tmp_path, content):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(UserError, match="could not be read"):
        model_folder.resolve(str(tmp_path / "x.gguf"), tmp_path / "models")
    assert [path for path in (tmp_path / "models").iterdir() if not path.name.endswith(".lock")] == []


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda folder: (folder / weight_files.ADAPTER).write_bytes(b""), "could not be read as safetensors"),
        (lambda folder: save_file({}, folder / weight_files.ADAPTER), "holds no tensor"),
        (lambda folder: (folder / weight_files.ADAPTER).unlink(), "there is no adapter_model.safetensors"),
        (lambda folder: (folder / weight_files.ADAPTER_CONFIG).unlink(), "could not be read"),
        (lambda folder: (folder / weight_files.ADAPTER_CONFIG).write_text("{"), "could not be read"),
        (lambda folder: (folder / weight_files.ADAPTER_CONFIG).write_text("[]"), "could not be read"),
        (
            lambda folder: (folder / weight_files.ADAPTER_CONFIG).write_text('{"megatron_config": {"x": 1}}'),
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
