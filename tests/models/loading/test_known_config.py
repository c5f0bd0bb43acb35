"""The model of a recipe, checked before anything is loaded: its family, its files, and its name on the hub."""

import json
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants, errors
from safetensors.numpy import save_file

from tape_ds.models.files import hub
from tape_ds.models.loading import known_config
from tape_ds.training import dry_run
from tests.config import loads
from tests.config.conftest import in_a_folder_of_its_own  # noqa: F401
from tests.config.helpers import problems_of, write

LLAMA = {
    "model_type": "llama",
    "max_position_embeddings": 8192,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 256,
}
BERT = {"model_type": "bert", "max_position_embeddings": 512}


@pytest.fixture
def folder():
    """A model's folder of two shards, whole."""
    made = Path("model")
    made.mkdir()
    (made / "config.json").write_text(json.dumps(LLAMA))
    (made / "tokenizer.json").write_text("{}")
    save_file({"a": np.zeros(8)}, made / "model-1.safetensors")
    save_file({"b": np.zeros(8)}, made / "model-2.safetensors")
    places = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (made / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return made


def test_another_family_is_refused_without_what_follows_from_it(folder):
    (folder / "config.json").write_text(json.dumps(BERT))
    found, _ = problems_of("--recipe", write(model="model", wnidow=2), "--target_length", "100")
    assert set(found) == {"model", "wnidow"} and "no rotary positions" in found["model"].wrong


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def test_a_folder_that_holds_a_model_is_none(folder):
    Path("runs/x/trained").mkdir(parents=True)
    Path("runs/x/trained/trained.json").write_text("{}")
    Path("cache/snapshots").mkdir(parents=True)
    folder.rename("cache/snapshots/abc")
    for name, inner in {"runs/x": "runs/x/trained", "cache": "cache/snapshots/abc"}.items():
        (problem,) = known_config.check_model(name, online=False)
        assert problem.value == name and inner in problem.remedy


def empty(folder):
    for file in folder.glob("*.safetensors*"):
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        (empty, "no weights in it"),
        (lambda folder: (folder / "config.json").write_text("["), "config.json is not readable"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "there is no tokenizer"),
        (
            lambda folder: (folder / "tokenizer.json").write_text("["),
            "tokenizer.json is not readable",
        ),
        (
            lambda folder: (folder / "tokenizer_config.json").write_text("[]"),
            "tokenizer_config.json is not readable",
        ),
        (lambda folder: (folder / "model-1.safetensors").write_text(POINTER), "git-lfs pointer"),
    ],
)
def test_files_that_are_damaged_are_found_before_a_run(folder, damage, wrong):
    assert list(known_config.check_model("model", online=False)) == []
    damage(folder)
    found, _ = problems_of("--recipe", write(model="model"))
    assert set(found) == {"model"} and wrong in found["model"].wrong


REFUSALS = {
    "private": errors.RepositoryNotFoundError,
    "moved": errors.RevisionNotFoundError,
    "gated": errors.GatedRepoError,
    "busy": errors.HfHubHTTPError,
}


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Files that were asked of a hub, in place of which these two functions of its library answer."""
    files = []

    def metadata(url, timeout):
        _, name, _, revision, file = url.removeprefix(f"{constants.ENDPOINT}/").split("/")
        files.append((name, revision, file))
        if name in REFUSALS:
            raise REFUSALS[name](
                "no", response=SimpleNamespace(headers={}, request=None, status_code=503)
            )

    def download(repository, file, revision, etag_timeout):
        (tmp_path / file).write_text(json.dumps(LLAMA))
        return str(tmp_path / file)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", metadata)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    hub.config.cache_clear()
    yield files
    hub.config.cache_clear()


def plan_of(name):
    return dry_run.describe(loads.extension(["--recipe", write(model=name), "--dry_run"]))


def test_a_dry_run_reads_one_file_of_a_hub_id(asked):
    for name in ("owner/llama", "owner/llama@v1"):
        assert f"{name}, 8,192 -> 16,384 positions" in plan_of(name)
    assert asked == [("llama", "main", "config.json"), ("llama", "v1", "config.json")]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("private", "neither on the hub nor"),
        ("moved@v9", "no revision 'v9'"),
        ("a--b", "not a name"),
    ],
)
def test_a_name_that_the_hub_does_not_have_is_refused(asked, name, wrong):
    found, _ = problems_of("--recipe", write(model=f"owner/{name}"), "--dry_run")
    assert set(found) == {"model"} and wrong in found["model"].wrong


@pytest.mark.parametrize(
    ("name", "why"), [("gated", "accept its licence"), ("busy", "the hub answers 503")]
)
def test_a_hub_that_does_not_answer_is_no_mistake(asked, name, why):
    shown = plan_of(f"owner/{name}")
    assert (
        "its config.json was not read: " in shown
        and why in shown
        and "extended to 16,384 positions" in shown
    )
