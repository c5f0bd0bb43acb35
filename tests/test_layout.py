"""The repository keeps its layout: which room may import which, what none of them may, what every file opens with."""

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

from tape_ds import encodings

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ("launchers", "evaluation", "tools", "benchmarks")

# The rooms and single files of tape_ds/, lowest first: each imports only what is before it.
ORDER = (
    *(
        "exit_codes",
        "storage",
        "numbers",
        "markdown_table",
        "installation",
        "registration",
        "errors",
        "paths",
        "results",
    ),
    *("run_folder", "building", "fields", "arguments"),
    *("kernels", "attention", "encodings", "models", "__init__", "methods", "data", "distributed", "checkpoint"),
    *("config", "planning", "resilience", "scoring", "export", "training", "cli", "__main__"),
)
# The model is told about parallelism, adapters and trackers from outside.
FORBIDDEN = ("deepspeed", "torch.distributed", "peft", "wandb")


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def sources(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def room_of(path):
    """The room a file of the package belongs to: its folder's name, or its own for a file beside the rooms."""
    parts = path.relative_to(ROOT / "tape_ds").with_suffix("").parts
    return parts[0]


def imported_names(tree, package):
    """Dotted name of everything a module imports, wherever in the file, and of every ``torch.distributed`` it uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def imports_of(path):
    package = ".".join(path.relative_to(ROOT).with_suffix("").parts[:-1])
    return set(imported_names(tree_of(path), package))


def against_the_order(path):
    """Names of ours that the file at ``path`` imports although they are not before its room."""
    before = ORDER[: ORDER.index(room_of(path)) + 1]
    wrong = []
    for name in imports_of(path):
        first, _, rest = name.partition(".")
        target = rest.split(".")[0]
        if first in (*SCRIPTS, "tests") or (first == "tape_ds" and target in ORDER and target not in before):
            wrong.append(name)
    return wrong


def test_every_room_has_its_place():
    assert {room_of(path) for path in sources("tape_ds")} == set(ORDER)


def test_imports_follow_the_order():
    assert [(path, wrong) for path in sources("tape_ds") if (wrong := against_the_order(path))] == []


def test_model_and_kernels_know_nothing_of_training():
    wrong = [
        (path, name)
        for path in sources("tape_ds/models", "tape_ds/kernels")
        for name in imports_of(path)
        if any(name == bad or name.startswith(f"{bad}.") for bad in FORBIDDEN)
    ]
    assert wrong == []


MOST_FILES = 20
"""In a room of these; who looks for the place to change reads the names of all."""
ROOMS = (
    "checkpoint",
    "config",
    "distributed",
    "methods",
    "planning",
    "resilience",
    "training",
    "training/runs",
)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_few_files(room):
    files = [path for path in (ROOT / "tape_ds" / room).glob("*.py") if path.stem != "__init__"]
    assert len(files) <= MOST_FILES, f"give {room} a room below it, or fold two files of one subject"


@pytest.mark.parametrize("room", ROOMS)
def test_no_file_of_a_room_imports_itself_by_way_of_others(room):
    """Wherever an import stands in a file, and even for types alone."""
    package = f"tape_ds.{room.replace('/', '.')}"
    graph = {
        f"{package}.{path.stem}": {name for name in imports_of(path) if name.startswith(package)}
        for path in (ROOT / "tape_ds" / room).glob("*.py")
    }
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("code", ["import deepspeed as d", "from torch import distributed", "torch.distributed.x"])
def test_the_search_for_forbidden_imports_finds_them(code):
    names = imported_names(ast.parse(f"def f():\n    {code}\n"), "tape_ds.models")
    assert set(names) & {"deepspeed", "torch.distributed"}


def test_the_search_follows_relative_imports():
    names = set(imported_names(ast.parse("from ..training import trainer\nfrom .llama import X"), "tape_ds.models"))
    assert {"tape_ds.training", "tape_ds.models.llama"} <= names


def called(node):
    """What an expression is called: ``x`` in ``a.x``, in ``a["x"]`` and in ``a.get("x")``."""
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
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def branches_on_an_encoding(tree, names):
    """Lines that compare something called an encoding (or a variant of one) with the name of one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            asked, answers = [node.left, *node.comparators], strings_in(node)
        elif isinstance(node, ast.Match):
            asked, answers = [node.subject], set().union(*(strings_in(case.pattern) for case in node.cases))
        else:
            continue
        words = {word for each in asked for word in str(called(each)).lower().split("_")}
        if words & {"encoding", "encodings", "variant", "variants"} and answers & names:
            yield node.lineno


def outside_positions():
    paths = sources("tape_ds", *SCRIPTS)
    return [path for path in paths if ROOT / "tape_ds" / "encodings" not in path.parents]


def test_nothing_outside_its_room_asks_for_an_encoding_by_name():
    """A new encoding is one file and one registration; code that compares names would need a line for each. Ask for its
    properties: ``learns``, ``remembers``, ``translation_invariant``."""
    names = set(encodings.available())
    assert [
        (path, line) for path in outside_positions() for line in branches_on_an_encoding(tree_of(path), names)
    ] == []


@pytest.mark.parametrize(
    "code",
    [
        "config.position_encoding == 'rope'",
        "if 'tape' != encoding: pass",
        "x = encoding in ('rope', 'yarn')",
        "while recipe['position_encoding'] not in {'alibi'}: pass",
        "f(options.get('variant') == 'fire')",
        "match model.config.position_encoding:\n        case 'tape' | 'rope': pass",
    ],
)
def test_the_search_for_branches_on_names_finds_them(code):
    tree = ast.parse(f"def f():\n    {code}\n")
    assert list(branches_on_an_encoding(tree, set(encodings.available()))) == [2]


@pytest.mark.parametrize(
    "code", ["encoding == other", "position_encoding: str = 'tape'", "name == 'rope'", "encoding == 'utf-8'"]
)
def test_the_search_for_branches_on_names_finds_nothing_else(code):
    assert list(branches_on_an_encoding(ast.parse(code), set(encodings.available()))) == []


def test_no_class_name_stands_twice():
    """Whoever searches for a class finds one."""
    classes = [
        node.name
        for path in sources("tape_ds", *SCRIPTS)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
    ]
    assert {name for name in classes if classes.count(name) > 1} == set()


def test_every_file_opens_with_a_docstring():
    silent = [path for path in sources("tape_ds", "tests", *SCRIPTS) if not ast.get_docstring(tree_of(path))]
    assert silent == [], "say in one line what each file is and why"


IMPORT_ALL = """
import importlib, pkgutil, socket, sys

def refuse(*arguments, **options):
    raise OSError("an import touched the network")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
for name in ("flash_attn", "liger_kernel", "triton"):
    sys.modules[name] = None

import tape_ds
for module in pkgutil.walk_packages(tape_ds.__path__, "tape_ds."):
    importlib.import_module(module.name)

import torch
from tape_ds.kernels import jit
print(jit.triton, jit.tl, jit.INTERPRETED, jit.why_not(torch.zeros(1)))
"""

IMPORT_MODEL = """
import sys
import tape_ds, tape_ds.models
print([name for name in ("deepspeed", "peft", "wandb", "tape_ds.training", "tape_ds.data") if name in sys.modules])
"""


def run(code):
    environment = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)


def test_everything_imports_without_gpu_network_or_optional_packages():
    done = run(IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "None None False Triton is not installed"


def test_importing_the_model_pulls_in_no_training_library():
    done = run(IMPORT_MODEL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
