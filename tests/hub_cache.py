"""The Hugging Face hub's cache, made by hand: what a download would have left."""

import json
import shutil

from huggingface_hub import constants

from tape_ds.models.files import hub


def put(monkeypatch, home, name, commits, refs):
    """Make ``home`` the cache of an offline machine, with the folders ``commits`` (commit -> folder) of a model and its
    ``refs`` (branch or tag -> commit)."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    model = home / f"models--{name.replace('/', '--')}"
    for commit, folder in commits.items():
        shutil.copytree(folder, model / "snapshots" / commit)
    (model / "refs").mkdir()
    for ref, commit in refs.items():
        (model / "refs" / ref).write_text(commit)


def without_weights(monkeypatch, home, folder, **config):
    """Put the small files of a model on a hub that fails the test where weights are asked for; returns its id.
    ``config``: changes to its ``config.json``."""
    small = home / "small"
    shutil.copytree(folder, small, ignore=shutil.ignore_patterns("*.safetensors"))
    content = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps({**content, **config}))
    put(monkeypatch, home / "hub", "org/tiny", {"a" * 40: small}, {"main": "a" * 40})

    def download(name, *, with_weights=True):
        assert not with_weights, "weights were asked for"
        return small

    monkeypatch.setattr(hub, "download", download)
    return "org/tiny"
