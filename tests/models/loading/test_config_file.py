"""The model of a recipe, looked at before anything is loaded: its family, its files, and what the hub says of it."""

import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from tape_ds.cli import train
from tape_ds.config import extension, finetuning
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


def shard(path, *names, size=8):
    """A safetensors file of some bytes a tensor, made by hand."""
    places = {
        name: {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]}
        for i, name in enumerate(names)
    }
    header = json.dumps(places).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size * len(names)))


@pytest.fixture
def folder():
    """A model's folder of two shards, whole."""
    made = Path("model")
    made.mkdir()
    (made / "config.json").write_text(json.dumps(LLAMA))
    (made / "tokenizer.json").write_text("{}")
    shard(made / "model-1.safetensors", "a", "b")
    shard(made / "model-2.safetensors", "c")
    places = {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}
    (made / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return made


def test_a_whole_folder_is_fine(folder):
    assert extension.load(["--recipe", write(model="model")]).native_config() == LLAMA
    assert not list(config_file.check("model", online=False))


@pytest.mark.parametrize("length", ["1024", "512", "100"])
def test_another_family_is_all_that_is_said(folder, length):
    (folder / "config.json").write_text(json.dumps(BERT))
    found, text = problems_of("--recipe", write(model="model"), "--target_length", length)
    assert set(found) == {"model"} and "no rotary positions" in found["model"].wrong
    assert "1 problem" in text


def test_what_has_nothing_to_do_with_the_model_is_said_all_the_same(folder):
    (folder / "config.json").write_text(json.dumps(BERT))
    found, _ = problems_of("--recipe", write(model="model", passkey_lengths=[64, 64], wnidow=2))
    assert set(found) == {"model", "passkey_lengths", "wnidow"}


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model-1.safetensors"])
def test_a_clone_without_git_lfs_is_told_how_to_fetch_its_files(folder, file):
    """Each reader said of its own file that it was damaged."""
    (folder / file).write_text(POINTER)
    (problem,) = config_file.check("model", online=False)
    assert file in problem.wrong and "git-lfs pointer" in problem.wrong and "git lfs pull" in problem.remedy


@pytest.mark.parametrize("name", ["runs/x", "runs/x/"])
def test_a_run_s_folder_is_told_from_a_model_s(folder, name):
    (Path("runs/x/trained")).mkdir(parents=True)
    Path("runs/x/trained/trained.json").write_text("{}")
    (problem,) = config_file.check(name, online=False)
    assert problem.remedy.endswith("tape-ds merge runs/x/trained OUT")
    shard(Path("runs/x/trained/model.safetensors"), "a")
    (problem,) = config_file.check(name, online=False)
    assert problem.remedy == "give what it trained: runs/x/trained"
    (problem,) = config_file.check_name("tokenizer", name, ("tokenizer.json",))
    assert problem.remedy == "give what it trained: runs/x/trained"


def test_where_a_model_may_be_instead(folder):
    Path("cache/snapshots").mkdir(parents=True)
    folder.rename("cache/snapshots/abc")
    (problem,) = config_file.check("cache", online=False)
    assert problem.remedy == "did you mean cache/snapshots/abc?"
    (problem,) = config_file.check("cache/snapshots/abc/config.json", online=False)
    assert problem.remedy == "give its folder: cache/snapshots/abc"
    Path("adapter").mkdir()
    Path("adapter/adapter_config.json").write_text("{}")
    (problem,) = config_file.check("adapter", online=False)
    assert problem.wrong == "an adapter, not a whole model"


def test_a_reason_is_told_where_it_is_known(folder):
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    found, _ = problems_of("--model", "model", load=finetuning.load)
    assert set(found) == {"model"} and "no rotary positions" in found["model"].wrong


def cut(folder):
    file = folder / "model-2.safetensors"
    file.write_bytes(file.read_bytes()[:-3])


def lose(folder):
    (folder / "model-2.safetensors").unlink()


def empty(folder):
    for file in folder.glob("*.safetensors*"):
        file.unlink()


def leave_trained(folder):
    """Leave what a run leaves that trained a part of a model."""
    empty(folder)
    (folder / "trained.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "value", "wrong"),
    [
        (cut, "model/model-2.safetensors", "could not be read as safetensors"),
        (lose, "model/model.safetensors.index.json", "weights are missing: model-2.safetensors"),
        (empty, "model", "no weights in it"),
        (lambda folder: (folder / "config.json").write_text("["), "model", "config.json is not readable"),
        (lambda folder: (folder / "config.json").write_text("[1]"), "model", "config.json is not readable (it is no m"),
        (leave_trained, "model", "it holds only what a run trained"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "model", "there is no tokenizer"),
    ],
)
def test_files_that_are_damaged_are_found_before_a_run(folder, damage, value, wrong):
    damage(folder)
    found, text = problems_of("--recipe", write(model="model"))
    assert set(found) == {"model"} and found["model"].value == value and wrong in found["model"].wrong, text


def test_a_look_imports_nothing_heavy():
    """Typing errors are answered at once: torch and transformers would be seconds."""
    script = (
        "import sys\nfrom unittest import mock\n"
        "for name in ('torch', 'transformers', 'deepspeed', 'huggingface_hub'): sys.modules[name] = None\n"
        "import types; package = types.ModuleType('tape_ds'); package.__path__ = [sys.argv[1]]\n"
        "sys.modules['tape_ds'] = package\n"
        "from tape_ds.models.loading import config_file\n"
        "print([each.wrong for each in config_file.check('nowhere', online=False)])\n"
        "print(list(config_file.check('owner/name', online=False)))\n"
    )
    command = [sys.executable, "-c", script, str(Path(extension.__file__).parents[1])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "['no such folder']\n[]\n", done.stderr


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as one small file needs."""

    protocol_version = "HTTP/1.1"
    asked: list[str] = []
    refusals = {
        "gated": (403, "GatedRepo"),
        "private": (401, "RepoNotFound"),
        "bare": (404, "EntryNotFound"),
        "moved": (404, "RevisionNotFound"),
    }

    def do_GET(self):
        self.asked.append(f"{self.command} {self.path}")
        name = self.path.split("/")[2]
        if name == "slow":
            time.sleep(3)
        content = json.dumps(BERT if name == "bert" else LLAMA).encode()
        status, code = self.refusals.get(name, (503, "") if name == "busy" else (200, ""))
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


def look(name, *words):
    return extension.load(["--recipe", write(model=name), *words])


def test_a_dry_run_reads_one_file_of_a_hub_id(hub):
    shown = train.describe(look("owner/llama", "--dry_run"))
    assert "owner/llama, 8,192 -> 16,384 positions, x2\n" in shown and "GiB a process" in shown
    files = {line.split()[1] for line in Hub.asked if "/api/" not in line}
    assert files == {"/owner/llama/resolve/main/config.json"}
    Hub.asked.clear()
    hub_module.config.cache_clear()
    assert "8,192 -> 16,384" in train.describe(look("owner/llama", "--dry_run"))
    assert not Hub.asked, "what is in the hub's cache is not asked for again"


def test_a_revision_is_asked_for(hub):
    assert "8,192 -> 16,384" in train.describe(look("owner/llama@v1", "--dry_run"))
    assert {line.split()[1] for line in Hub.asked if "/api/" not in line} == {"/owner/llama/resolve/v1/config.json"}
    found, _ = problems_of("--recipe", write(model="owner/moved@v9"), "--dry_run")
    assert set(found) == {"model"} and "no revision 'v9'" in found["model"].wrong


def test_a_run_itself_asks_the_hub_later(hub):
    assert look("owner/bert").native_config() is None and not Hub.asked


def test_lengths_and_families_of_a_hub_id_are_checked(hub):
    found, _ = problems_of("--recipe", write(model="owner/llama", target_length=32768), "--dry_run")
    assert set(found) == {"rope_parameters.factor"}
    found, _ = problems_of("--recipe", write(model="owner/bert"), "--dry_run")
    assert set(found) == {"model"} and "no rotary positions" in found["model"].wrong


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("private", "neither on the hub nor"), ("bare", "no config.json in it"), ("a--b", "not a name that the hub")],
)
def test_what_the_hub_has_not_is_a_mistake(hub, name, wrong):
    found, _ = problems_of("--recipe", write(model=f"owner/{name}"), "--dry_run")
    assert set(found) == {"model"} and wrong in found["model"].wrong


@pytest.mark.parametrize(
    ("name", "why"),
    [("slow", "timed out"), ("busy", "the hub answers 503"), ("gated", "hf auth login")],
)
def test_what_the_hub_does_not_say_is_no_mistake(hub, name, why, monkeypatch):
    monkeypatch.setattr(hub_module, "SECONDS", 0.5 if name == "slow" else 5.0)
    began = time.monotonic()
    shown = train.describe(look(f"owner/{name}", "--dry_run"))
    assert "its config.json was not read: " in shown and why in shown and "extended to 16,384 positions" in shown
    assert "not known before" in shown  # what it needs
    assert time.monotonic() - began < 20, "the hub client alone tries a busy hub for longer"


@pytest.mark.parametrize("forbidden", [True, False])
def test_without_a_network_the_plan_says_so(hub, forbidden, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", forbidden)
    hub.shutdown()
    hub.server_close()
    shown = train.describe(look("owner/llama", "--dry_run"))
    assert "(its config.json was not read: offline" in shown and ("HF_HUB_OFFLINE" in shown) is forbidden


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("a/b", True), ("a/b@v1", True), ("a/b.gguf", False), (config_file.SMOLLM2, False), ("a", False)],
)
def test_what_can_only_be_a_hub_id(name, is_one):
    assert config_file.is_on_hub(name) is is_one
    Path("a/b").mkdir(parents=True)
    assert not config_file.is_on_hub("a/b")
