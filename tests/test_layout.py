"""The layout of the repository, as far as the contracts of ``pyproject.toml`` cannot say it (``make check``)."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

from tape_ds import encodings
from tests import thinned

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ("launchers", "evaluation", "tools", "benchmarks")

# Parallelism comes to the model from outside.
OF_THE_MODEL = ("tape_ds/models", "tape_ds/encodings", "tape_ds/attention", "tape_ds/kernels")


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def sources(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imported_names(tree, package):
    """Dotted name of everything that a module imports, anywhere in the file, and of every ``torch.distributed``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (
                package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            )
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def imports_of(path):
    package = ".".join(path.relative_to(ROOT).with_suffix("").parts[:-1])
    return set(imported_names(tree_of(path), package))


def test_the_model_knows_nothing_of_torch_distributed():
    """import-linter (``pyproject.toml``) forbids other packages as a whole, and cannot tell this from torch."""
    users = []
    for path in sources(*OF_THE_MODEL):
        if any(f"{name}.".startswith("torch.distributed.") for name in imports_of(path)):
            users.append(path)
    assert users == []


def test_the_search_for_torch_distributed_finds_each_form():
    for line in (
        "import torch.distributed as dist",
        "from torch import distributed",
        "torch.distributed.barrier()",
    ):
        assert "torch.distributed" in set(imported_names(ast.parse(line), "tape_ds.models"))


def called(node):
    """The name of an expression: ``x`` in ``a.x``, in ``a["x"]`` and in ``a.get("x")``."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return node.slice.value if isinstance(node.slice, ast.Constant) else called(node.value)
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        return node.args[0].value
    return None


def strings_in(node):
    return {
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


def branches_on_an_encoding(tree, names):
    """Lines that compare something called an encoding or a variant with the name of one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            asked, answers = [node.left, *node.comparators], strings_in(node)
        elif isinstance(node, ast.Match):
            asked, answers = (
                [node.subject],
                set().union(*(strings_in(case.pattern) for case in node.cases)),
            )
        else:
            continue
        words = {word for each in asked for word in str(called(each)).lower().split("_")}
        if words & {"encoding", "encodings", "variant", "variants"} and answers & names:
            yield node.lineno


def test_nothing_outside_its_room_asks_for_an_encoding_by_name():
    """A new encoding is one file; code that compares names would need a line for each. Ask for its properties."""
    names = set(encodings.available())
    room = ROOT / "tape_ds" / "encodings"
    wrong = []
    for path in sources("tape_ds", *SCRIPTS):
        if room not in path.parents:
            wrong += [(path, line) for line in branches_on_an_encoding(tree_of(path), names)]
    assert wrong == []


BRANCHES = """
while recipe["position_encoding"] not in {"alibi"}: pass
f(options.get("variant") == "fire")
match model.config.position_encoding:
    case "tape" | "rope": pass
encoding == "utf-8" or name == "rope"
"""


def test_the_search_for_names_of_encodings_finds_them():
    assert sorted(branches_on_an_encoding(ast.parse(BRANCHES), set(encodings.available()))) == [
        2,
        3,
        4,
    ]


def test_no_class_name_is_defined_twice():
    classes = [
        node.name
        for path in sources("tape_ds", *SCRIPTS)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
    ]
    assert {name for name in classes if classes.count(name) > 1} == set()


IMPORT_ALL = """
import importlib, pkgutil, socket, sys

def refuse(*arguments, **options):
    raise OSError("an import touched the network")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
for name in ("flash_attn", "liger_kernel", "triton"):
    sys.modules[name] = None

import tape_ds
early = [name for name in ("torch", "transformers") if name in sys.modules]

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

tape_ds.register()
sizes = {"num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 9}
config = AutoConfig.for_model("tape", **sizes)
assert type(config) is tape_ds.TapeConfig
assert type(AutoModel.from_config(config)) is tape_ds.TapeModel
assert type(AutoModelForCausalLM.from_config(config)) is tape_ds.TapeForCausalLM
config = AutoConfig.for_model("tape_gptj", n_embd=16, n_head=2, n_layer=1, rotary_dim=4, vocab_size=9)
assert type(config) is tape_ds.ScaledGPTJConfig
assert type(AutoModel.from_config(config)) is tape_ds.ScaledGPTJModel
assert type(AutoModelForCausalLM.from_config(config)) is tape_ds.ScaledGPTJForCausalLM

import tape_ds.models
heavy = [name for name in ("deepspeed", "peft", "wandb", "tape_ds.training", "tape_ds.data") if name in sys.modules]
for module in pkgutil.walk_packages(tape_ds.__path__, "tape_ds."):
    importlib.import_module(module.name)

import torch
from tape_ds.kernels import jit
print(early, heavy, jit.triton, jit.tl, jit.INTERPRETED, jit.why_not(torch.zeros(1)))
"""


def test_everything_imports_without_gpu_network_or_optional_packages():
    """The package alone imports no library, and the model no training library; ``tape_ds.register()`` lets
    transformers' auto classes load our model types."""
    environment = {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": "/usr/bin:/bin",
    }
    code = [sys.executable, "-c", IMPORT_ALL]
    done = subprocess.run(code, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[] [] None None False Triton is not installed"


def test_thinned_tests_exist():
    names = [name.split("::") for name in thinned.ONE_IN]
    assert [name for name in names if f"def {name[1]}(" not in (ROOT / name[0]).read_text()] == []


def test_a_script_runs_after_all_that_it_needs_is_defined():
    """``python -m`` ended in a NameError where functions stood below the last line that runs; an import does not."""
    late = []
    for folder in ("tape_ds", "tools", "benchmarks", "launchers", "evaluation"):
        for path in (ROOT / folder).rglob("*.py"):
            others = ast.parse(path.read_text(encoding="utf-8")).body[:-1]
            if any(
                isinstance(node, ast.If) and "__main__" in ast.dump(node.test) for node in others
            ):
                late.append(path)
    assert late == []
