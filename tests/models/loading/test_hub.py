"""Models of the hub: which names mean one, which commit a name leads to, and which files are downloaded."""

import fnmatch
import json

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file

from tape_ds.data import tokenizer as tokenizers
from tape_ds.errors import UserError
from tape_ds.models.loading import hub, model_folder
from tests import hub_cache

OLD, NEW = "a" * 40, "b" * 40


@pytest.mark.parametrize(
    ("name", "parts", "is_id"),
    [
        ("org/tiny", ("org/tiny", None), True),
        ("org/tiny@v1.0", ("org/tiny", "v1.0"), True),
        ("org/tiny@refs/pr/3", ("org/tiny", "refs/pr/3"), True),
        ("gpt2@main", ("gpt2", "main"), False),
        ("org/tiny@", ("org/tiny@", None), False),
        ("./a/b@c", ("./a/b@c", None), False),
    ],
)
def test_a_revision_stands_behind_the_name(name, parts, is_id):
    assert hub.split(name) == parts and hub.is_id(name) is is_id


def test_a_revision_leads_to_its_commit(tmp_path, monkeypatch):
    """``--model ORG/NAME@REV`` was no such folder, and nothing pinned a base."""
    for size, name in enumerate(("old", "new"), 1):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": "llama"}))
        save_file({"x": torch.ones(size)}, tmp_path / name / "model.safetensors")
    commits = {OLD: tmp_path / "old", NEW: tmp_path / "new"}
    hub_cache.put(monkeypatch, tmp_path / "hub", "org/tiny", commits, {"main": NEW, "v1": OLD})
    found = {name: model_folder.resolve(name) for name in ("org/tiny", "org/tiny@v1", f"org/tiny@{OLD}")}
    assert [hub.commit_of(folder) for folder in found.values()] == [NEW, OLD, OLD]
    assert hub.commit_of(tmp_path / "old") is None
    with pytest.raises(UserError, match=r"org/tiny@v2.*no such folder, and not reachable"):
        model_folder.resolve("org/tiny@v2")
    with pytest.raises(UserError, match="no tokenizer could be read"):
        tokenizers.load_tokenizer("org/tiny@v1")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A function that gives a repository these files; what was downloaded lies in the folder that it returns."""
    folder = tmp_path / "snapshots" / OLD
    folder.mkdir(parents=True)

    def make(**files):
        def download(name, revision, allow_patterns, local_files_only):
            for file, content in files.items():
                if any(fnmatch.fnmatch(file, pattern) for pattern in allow_patterns):
                    (folder / file).write_text(content)
            return str(folder)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        return folder

    return make


INDEX = json.dumps({"weight_map": {"x": "part-1.safetensors", "y": "part-2.safetensors"}})


@pytest.mark.parametrize(
    ("there", "wanted"),
    [
        ({"model.safetensors": ""}, {"model.safetensors"}),
        (
            {"model.safetensors.index.json": INDEX, "part-1.safetensors": "", "part-2.safetensors": ""},
            {"model.safetensors.index.json", "part-1.safetensors", "part-2.safetensors"},
        ),
        (
            {"adapter_model.safetensors": "", "adapter_config.json": "{}"},
            {"adapter_model.safetensors", "adapter_config.json"},
        ),
    ],
)
def test_the_weights_that_are_read_are_downloaded(repository, there, wanted):
    """Mistral's folders hold every weight twice, and older ones pickles as well."""
    others = {"consolidated.safetensors": "", "pytorch_model.bin": "", "config.json": "{}"}
    folder = repository(**others, **there)
    assert hub.download("org/tiny", with_weights=False) == folder
    assert not [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    hub.download("org/tiny")
    pickled = {"pytorch_model.bin"} if "adapter_config.json" in there else set()
    assert {file.name for file in folder.iterdir()} == {"config.json"} | wanted | pickled


def test_pickled_weights_are_downloaded_where_there_are_no_others(repository):
    folder = repository(**{"config.json": "{}", "pytorch_model.bin": ""})
    assert {file.name for file in hub.download("org/tiny").iterdir()} == {"config.json", "pytorch_model.bin"}
    assert model_folder.resolve("org/tiny") == str(folder)


def test_a_hub_that_cannot_be_reached_is_a_user_error(monkeypatch):
    def download(*words, **more):
        raise OSError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(UserError, match=r"not reachable \(offline\)"):
        model_folder.resolve("someone/nothing")


def test_the_hub_is_not_asked_for_a_run_that_is_not_there(monkeypatch):
    """It took half a minute to say no where there is no network."""
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *words, **more: pytest.fail("asked"))
    for name in ("runs/nowhere", "./nowhere", "a/b/c"):
        with pytest.raises(UserError, match="no such folder"):
            model_folder.resolve(name)
