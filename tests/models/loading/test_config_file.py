"""The model of a recipe, looked at before anything is loaded: its family, its files, and what the hub says of it."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save_file

from tape_ds.cli import train
from tape_ds.config import extension
from tape_ds.models.loading import config_file
from tape_ds.models.loading import hub as hub_module
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


def test_what_is_a_folder_but_no_model_is_refused(folder):
    Path("runs/x/trained").mkdir(parents=True)
    Path("runs/x/trained/trained.json").write_text("{}")
    Path("cache/snapshots").mkdir(parents=True)
    folder.rename("cache/snapshots/abc")
    Path("adapter").mkdir()
    Path("adapter/adapter_config.json").write_text("{}")
    remedies = {
        "runs/x": "tape-ds merge runs/x/trained OUT",
        "cache": "did you mean cache/snapshots/abc?",
        "cache/snapshots/abc/config.json": "give its folder: cache/snapshots/abc",
        "adapter": "",
    }
    for name, remedy in remedies.items():
        (problem,) = config_file.check(name, online=False)
        assert problem.value == name and problem.remedy.endswith(remedy)


def empty(folder):
    for file in folder.glob("*.safetensors*"):
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        (empty, "no weights in it"),
        (lambda folder: (folder / "config.json").write_text("["), "config.json is not readable"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "there is no tokenizer"),
        (lambda folder: (folder / "model-1.safetensors").write_text(POINTER), "git-lfs pointer"),
    ],
)
def test_files_that_are_damaged_are_found_before_a_run(folder, damage, wrong):
    assert list(config_file.check("model", online=False)) == []
    damage(folder)
    found, _ = problems_of("--recipe", write(model="model"))
    assert set(found) == {"model"} and wrong in found["model"].wrong


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as one small file needs."""

    protocol_version = "HTTP/1.1"
    asked: list[str] = []
    refusals = {"private": (401, "RepoNotFound"), "moved": (404, "RevisionNotFound"), "busy": (503, "")}

    def do_GET(self):
        self.asked.append(f"{self.command} {self.path}")
        name = self.path.split("/")[2]
        content = json.dumps(LLAMA).encode()
        status, code = self.refusals.get(name, (200, ""))
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("ETag", '"1234"')
        self.send_header("Content-Length", str(len(content) if status == 200 else 0))
        self.end_headers()
        if self.command == "GET" and status == 200:
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *words):
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub on this machine, which the libraries may ask."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = f"http://127.0.0.1:{server.server_port}"
    for name, value in {
        "ENDPOINT": place,
        "HUGGINGFACE_CO_URL_TEMPLATE": place + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_OFFLINE": False,
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "AGENT_HARNESSES_PATH": str(tmp_path / "harnesses"),  # of the library's own, asked for once a day
    }.items():
        monkeypatch.setattr(constants, name, value)
    hub_module.config.cache_clear()
    Hub.asked.clear()
    yield server
    hub_module.config.cache_clear()
    server.shutdown()
    server.server_close()


def plan_of(name):
    return train.describe(extension.load(["--recipe", write(model=name), "--dry_run"]))


def test_a_dry_run_reads_one_file_of_a_hub_id(hub):
    for name, revision in (("owner/llama", "main"), ("owner/llama@v1", "v1")):
        Hub.asked.clear()
        assert f"{name}, 8,192 -> 16,384 positions" in plan_of(name)
        files = {line.split()[1] for line in Hub.asked if "/api/" not in line}
        assert files == {f"/owner/llama/resolve/{revision}/config.json"}
    Hub.asked.clear()
    hub_module.config.cache_clear()
    assert "8,192 -> 16,384" in plan_of("owner/llama")
    assert not Hub.asked, "what is in the hub's cache is not asked for again"


@pytest.mark.parametrize(
    ("name", "wrong"), [("private", "neither on the hub nor"), ("moved@v9", "no revision 'v9'"), ("a--b", "not a name")]
)
def test_a_name_that_the_hub_does_not_have_is_refused(hub, name, wrong):
    found, _ = problems_of("--recipe", write(model=f"owner/{name}"), "--dry_run")
    assert set(found) == {"model"} and wrong in found["model"].wrong


@pytest.mark.parametrize(("online", "why"), [(True, "the hub answers 503"), (False, "offline")])
def test_a_hub_that_is_busy_or_out_of_reach_is_no_mistake(hub, online, why):
    if not online:
        hub.shutdown()
        hub.server_close()
    shown = plan_of("owner/busy")
    assert f"its config.json was not read: {why}" in shown and "extended to 16,384 positions" in shown


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("a/b", True), ("a/b@v1", True), ("a/b.gguf", False), (config_file.SMOLLM2, False), ("a", False)],
)
def test_what_can_only_be_a_hub_id(name, is_one):
    assert config_file.is_on_hub(name) is is_one
    Path("a/b").mkdir(parents=True)
    assert not config_file.is_on_hub("a/b")
