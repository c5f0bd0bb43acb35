"""Models of the hub: which names mean one, which commit a name leads to, and which files are downloaded."""

import fnmatch
import json

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file

from tape_ds.errors import UserError
from tape_ds.models.files import hub
from tape_ds.models.loading import model_folder
from tests import hub_cache

OLD, NEW = "a" * 40, "b" * 40


def test_a_revision_leads_to_its_commit(tmp_path, monkeypatch):
    for size, name in enumerate(("old", "new"), 1):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": "llama"}))
        save_file({"x": torch.ones(size)}, tmp_path / name / "model.safetensors")
    commits = {OLD: tmp_path / "old", NEW: tmp_path / "new"}
    hub_cache.put(monkeypatch, tmp_path / "hub", "org/tiny", commits, {"main": NEW, "v1": OLD})
    found = {
        name: model_folder.resolve(name) for name in ("org/tiny", "org/tiny@v1", f"org/tiny@{OLD}")
    }
    assert [hub.commit_of(folder) for folder in found.values()] == [NEW, OLD, OLD]
    assert hub.config.__wrapped__("org/tiny@v1").file.parent.name == OLD
    assert hub.commit_of(tmp_path / "old") is None
    with pytest.raises(UserError, match=r"org/tiny@v2.*no such folder, and not reachable"):
        model_folder.resolve("org/tiny@v2")


INDEX = json.dumps({"weight_map": {"x": "part-1.safetensors", "y": "part-2.safetensors"}})


@pytest.mark.parametrize(
    ("there", "wanted"),
    [
        ({"model.safetensors": ""}, {"model.safetensors"}),
        (
            {
                "model.safetensors.index.json": INDEX,
                "part-1.safetensors": "",
                "part-2.safetensors": "",
            },
            {"model.safetensors.index.json", "part-1.safetensors", "part-2.safetensors"},
        ),
        ({}, {"pytorch_model.bin"}),
    ],
)
def test_the_weights_that_are_read_are_downloaded(tmp_path, monkeypatch, there, wanted):
    """Mistral's folders hold every weight twice, and older ones pickles as well."""
    files = {"consolidated.safetensors": "", "pytorch_model.bin": "", "config.json": "{}"} | there

    def download(name, revision, allow_patterns, local_files_only):
        for file, content in files.items():
            if any(fnmatch.fnmatch(file, pattern) for pattern in allow_patterns):
                (tmp_path / file).write_text(content)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    hub.download("org/tiny", with_weights=False)
    assert not [*tmp_path.glob("*.safetensors"), *tmp_path.glob("*.bin")]
    hub.download("org/tiny")
    assert {file.name for file in tmp_path.iterdir()} == {"config.json"} | wanted
