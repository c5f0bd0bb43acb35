"""The Hugging Face hub's cache, made by hand: what a download would have left."""

import shutil

from huggingface_hub import constants


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
