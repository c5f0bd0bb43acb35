"""The compile gate: every kernel builds for the GPUs it is meant for, and the gate sees what it is there to see.

The gate runs in a process of its own, without the variable that makes the rest of these tests interpret their kernels.
"""

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tape_ds.kernels
from tape_ds.kernels import jit
from tools import compile_kernels

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = "tests.kernels.gate_examples"
NEWEST, OLDEST = re.findall(r"^triton==(\S+)", (ROOT / "requirements-triton.txt").read_text(), re.MULTILINE)

pytestmark = pytest.mark.skipif(jit.triton is None, reason="Triton is not published for this platform")


def gate(*arguments, folder=None, **variables):
    """Exit code and output of ``python -m tools.compile_kernels``, with the Triton in ``folder`` if there is one."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([*([str(folder)] if folder else []), str(ROOT)])
    command = [sys.executable, "-m", "tools.compile_kernels", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment | variables, capture_output=True, text=True, errors="replace", check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("version", [NEWEST, pytest.param(OLDEST, marks=pytest.mark.slow)])
def test_every_kernel_compiles_with_another_triton(version):
    folder = ROOT / ".venv" / f"triton-{version}"
    if not folder.is_dir():
        pytest.skip(f"`make compile-kernels TRITON={version}` installs it")
    code, output = gate(folder=folder)
    assert code == 0, output
    assert f"Triton {version}: " in output


@pytest.mark.slow
def test_every_kernel_compiles_with_the_installed_triton():
    code, output = gate()
    assert code == 0, output
    assert f"Triton {jit.triton.__version__}: " in output


def entry_points():
    """Name of every kernel of ``tape_ds/kernels`` that no other kernel calls: those that are launched."""
    defined, called = set(), set()
    for path in Path(tape_ds.kernels.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and "jit" in map(ast.unparse, node.decorator_list):
                defined.add(node.name)
                called |= {ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)}
    return defined - called


@pytest.mark.parametrize("capability", sorted(jit.SHARED_MEMORY))
def test_every_kernel_that_is_launched_goes_through_the_gate(capability):
    files = compile_kernels.kernel_files().values()
    found = [each for name in files for each in importlib.import_module(name).specimens(capability, "bf16")]
    assert {each.kernel.fn.__name__ for each in found} == entry_points()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """An empty folder for what Triton compiles."""
    return tmp_path_factory.mktemp("triton")


@pytest.fixture(scope="module")
def examples(cache):
    """Exit code and output of the gate on one kernel for each verdict."""
    return gate("--kernels", EXAMPLES, "--capability", "90", "--dtype", "bf16", TRITON_CACHE_DIR=str(cache))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("spills", r"spills: [\d,]+ bytes of stack"),
        ("large", r"needs 557,056 bytes of shared memory, 232,448 is the most"),
        ("product expected", "has no tensor-core instruction"),
        ("off the cores", "leaves 1 matrix products off the tensor cores"),
        ("unknown name", "does not compile: CompilationError.*missing is not defined"),
        ("wrong argument", "ValueError: specimen and kernel do not agree on the arguments X, Y"),
        ("deadly", "the compiler crashed"),
    ],
)
def test_the_gate_refuses(examples, name, words):
    code, output = examples
    assert code == 1
    failures = output.split("\nFAILED ")[1:]
    (reasons,) = [each for each in failures if each.startswith(f"gate_examples: {name}, sm_90, bf16, Launch(")]
    assert re.search(words, reasons, re.DOTALL), reasons


@pytest.mark.parametrize("name", ["good", "no product"])
def test_the_gate_passes(examples, name):
    _, output = examples
    assert f"FAILED gate_examples: {name}" not in output
    assert "9 kernels" in output and "7 failed" in output


def test_figures_are_the_assembler_s(examples):
    """A 64 x 64 x 64 product on sm_90: four instructions 16 deep, and 8 KiB each for A and two stages of B."""
    cells = dict(zip(["kernel", *compile_kernels.COLUMNS], table(examples[1])["good"], strict=True))
    assert (cells["spill"], cells["shared"], cells["mma"], cells["wgmma"]) == ("0", "24,576", "0", "4")
    assert 32 < int(cells["registers"]) < 255


def table(output):
    """The rows of the gate's table by the kernel's name, each a list of cells."""
    lines = [line for line in output.splitlines() if line.startswith("gate_examples: ")]
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines]
    return {row[0].removeprefix("gate_examples: "): row for row in rows}


def test_a_warm_cache_gives_the_same_figures(examples, cache):
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*.cubin")}
    again = gate("--kernels", EXAMPLES, "--capability", "90", "--dtype", "bf16", TRITON_CACHE_DIR=str(cache))
    cold, warm = table(examples[1]), table(again[1])
    assert {name: row[:-1] for name, row in warm.items()} == {name: row[:-1] for name, row in cold.items()}
    assert before and before == {path: path.stat().st_mtime_ns for path in cache.rglob("*.cubin")}


def test_the_interpreter_compiles_nothing(monkeypatch, capsys):
    monkeypatch.setattr(compile_kernels, "INTERPRETED", True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert compile_kernels.main([]) == 2
    assert "env -u TRITON_INTERPRET" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kernels", "rotat"], "kernels = 'rotat': neither a kernel file nor a module"),
        (["--kernels", "no.such.module"], "neither a kernel file nor a module"),
        (["--kernels", "json"], "neither a kernel file nor a module"),
        (["--workers", "0"], "workers = 0: too few"),
    ],
)
def test_a_command_that_cannot_work_says_why(monkeypatch, capsys, arguments, words):
    monkeypatch.setattr(compile_kernels, "INTERPRETED", False)
    assert compile_kernels.main(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_gate_with_nothing_to_guard_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(compile_kernels, "INTERPRETED", False)
    monkeypatch.setattr(compile_kernels, "specimens", lambda *job: ())
    assert compile_kernels.main([]) == 2
    assert "nothing to compile" in capsys.readouterr().err
