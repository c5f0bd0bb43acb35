"""Nothing that comes from outside is run, and no credential goes outside.

docs/staying_alive.md has the promises. Rules read every file of the package; archives and weights are tested in the
rooms that read them.
"""

import ast
import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from tape_ds import results
from tape_ds.checkpoint import source_model
from tape_ds.config import files as recipe_files
from tape_ds.data import tokenizer as tokenizers
from tape_ds.errors import UserError
from tape_ds.export import folder as export_folder
from tape_ds.models.loading import extendable
from tests.evaluation.test_models import adapter, found
from tests.export.conftest import base, run

__all__ = ["base", "run"]

ROOT = Path(__file__).resolve().parents[1]
CODE = sorted(
    path
    for room in ("tape_ds", "launchers", "evaluation", "tools", "benchmarks")
    for path in (ROOT / room).rglob("*.py")
)

NEVER_CALLED = {
    *(
        "pickle.load",
        "pickle.loads",
        "pickle.Unpickler",
        "marshal.load",
        "marshal.loads",
        "shelve.open",
    ),
    *("os.system", "os.popen", "pty.spawn", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *(
        "yaml.load",
        "yaml.load_all",
        "yaml.full_load",
        "yaml.unsafe_load",
        "yaml.full_load_all",
        "yaml.unsafe_load_all",
    ),
    *("eval", "exec", "__import__", "shutil.unpack_archive"),
}
"""Calls that run what they are given, or unpack an archive wherever its members say."""
NEVER_IMPORTED = {"joblib", "dill", "cloudpickle", "shelve", "marshal"}
NEVER_A_METHOD = {"extractall", "extract", "read_pickle"}
NEVER_AN_ARGUMENT = {
    "trust_remote_code": True,
    "shell": True,
    "allow_pickle": True,
    "weights_only": False,
}
SAFE_LOADERS = {"SafeLoader", "CSafeLoader"}


def dotted(node):
    """``a.b.c`` of such an expression; None of any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return None


def offences(tree):
    """(line, what is wrong with it) of everything that the rules forbid."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
            )
            yield from (
                (node.lineno, name) for name in names if name.split(".")[0] in NEVER_IMPORTED
            )
        elif (
            isinstance(node, ast.Attribute)
            and dotted(node.value) == "yaml"
            and node.attr.endswith("Loader")
        ):
            if node.attr not in SAFE_LOADERS:
                yield node.lineno, f"yaml.{node.attr}"
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, wrong) for wrong in wrong_calls(node))


def wrong_calls(node):
    """What is wrong with one call."""
    name = dotted(node.func)
    if name in NEVER_CALLED:
        yield name
    if isinstance(node.func, ast.Attribute) and node.func.attr in NEVER_A_METHOD:
        yield node.func.attr
    given = {
        word.arg: word.value.value for word in node.keywords if isinstance(word.value, ast.Constant)
    }
    yield from (word for word, value in NEVER_AN_ARGUMENT.items() if given.get(word) is value)
    if name == "torch.load" and "weights_only" not in given:
        yield "torch.load without weights_only=True"


def test_no_code_runs_what_it_is_given():
    assert [
        (path, *found) for path in CODE for found in offences(ast.parse(path.read_text()))
    ] == []


FORBIDDEN = """
torch.load(file)
torch.load(file, weights_only=given)
pickle.loads(x)
import joblib
from dill import load
AutoModel.from_pretrained(x, trust_remote_code=True)
loader = yaml.Loader
archive.extractall()
subprocess.run(x, shell=True)
"""
ALLOWED = "torch.load(f, weights_only=True)\nyaml.safe_load(x)\nmodel.eval()\nf(shell=False)"


def test_the_search_finds_every_call_that_runs_and_no_other():
    lines = [line for line, _ in offences(ast.parse(FORBIDDEN.strip()))]
    assert sorted(lines) == list(range(1, 10))
    assert list(offences(ast.parse(ALLOWED))) == []


def test_a_recipe_is_data_and_never_code(tmp_path):
    (tmp_path / "trap.yaml").write_text(
        f"window: !!python/object/apply:os.mkdir ['{tmp_path}/ran']\n"
    )
    problems = []
    recipe_files.read_recipe(str(tmp_path / "trap.yaml"), "extend_llama", problems)
    assert problems
    assert not (tmp_path / "ran").exists()


TRAP = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nraise SystemExit\n"


@pytest.fixture
def trapped(base, tmp_path):
    """A model's folder with code that its configuration and tokenizer name."""
    folder = tmp_path / "trapped"
    shutil.copytree(base, folder)
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((folder / name).read_text())
        autos = ("AutoConfig", "AutoModel", "AutoModelForCausalLM")
        content["auto_map"] = dict.fromkeys(autos, "trap.Trap") | {
            "AutoTokenizer": ["trap.Trap", "trap.Trap"]
        }
        (folder / name).write_text(json.dumps(content))
    (folder / "trap.py").write_text(TRAP)
    return folder


DOORS = {
    "model": lambda folder: extendable.load(folder, extendable.configure(extendable.read(folder))),
    "tokenizer": lambda folder: tokenizers.load_tokenizer(str(folder)),
    "evaluation": lambda folder: found(folder).load(),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("model_type", ["llama", "unheard_of"])
def test_code_in_a_models_folder_never_runs(trapped, door, model_type):
    """The class is transformers' own where it has one; else the folder is refused."""
    config = json.loads((trapped / "config.json").read_text())
    (trapped / "config.json").write_text(json.dumps(config | {"model_type": model_type}))
    refused = None
    try:
        DOORS[door](trapped)
    except UserError as error:
        refused = error
    assert not (trapped / "ran").exists()
    assert model_type == "llama" or door == "tokenizer" or refused is not None


def test_an_adapter_imports_nothing_that_it_names(base, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "trap.py").write_text(TRAP)
    folder = adapter(base, tmp_path / "adapter")
    content = json.loads((folder / "adapter_config.json").read_text())
    mapping = {"base_model_class": "Trap", "parent_library": "trap"}
    (folder / "adapter_config.json").write_text(json.dumps(content | {"auto_mapping": mapping}))
    found(folder).load()
    assert not (tmp_path / "ran").exists()


SECRETS = {
    "HF_TOKEN": "hf_" + "Zz9" * 11,
    "WANDB_API_KEY": "0a1b2c3d4e" * 4,
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
}


def test_credentials_reach_no_stored_file(base, run, tmp_path, monkeypatch):
    """From the environment, the command line, the configuration and data specs."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    said = list(SECRETS.values())
    spec = f"jsonl:https://me:canary-1@host/x.jsonl?X-Amz-Signature=canary-2#{said[0]}"
    collected = results.collect(
        command=[
            "extend.py",
            "--hub_token",
            "canary-3",
            "--hub_token=canary-5",
            f"--data={spec}",
            *said,
        ],
        config={"train_data": [spec], "hub_token": "canary-4", "note": said, spec: 1},
        data={spec: "fingerprint"},
        model={"address": spec},
    )
    results.save(collected.finish({"note": said, spec: said}), tmp_path / "out" / "run.json")
    folder = run()
    stored = results.load(folder / "results" / "run.json")
    results.save(
        dataclasses.replace(
            stored, command=["x", *said], config=stored.config | {"train_data": [spec]}
        ),
        folder / "results" / "run.json",
    )
    source = source_model.find(str(folder))
    export_folder.write(source, tmp_path / "out" / "model", "tiny")
    assert "<redacted>" in (tmp_path / "out" / "model" / "README.md").read_text()
    for path in [path for path in (tmp_path / "out").rglob("*") if path.is_file()]:
        text = path.read_bytes().decode("utf-8", "replace")
        assert [each for each in (*said, "canary", "//me") if each in text] == [], path
