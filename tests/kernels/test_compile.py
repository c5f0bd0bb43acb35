"""The compile gate: every kernel builds for the GPUs it is meant for, and spills and excess memory are found.

The gate runs in a process of its own, without the variable that makes the rest of these tests interpret their kernels.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tape_ds.kernels import jit
from tools.compile_gate import launches

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = "tests.kernels.gate_examples"
NEWEST, OLDEST = re.findall(
    r"^triton==(\S+)", (ROOT / "requirements-triton.txt").read_text(), re.MULTILINE
)

pytestmark = pytest.mark.skipif(
    jit.triton is None, reason="Triton is not published for this platform"
)


def gate(*arguments, folder=None, **variables):
    """Exit code and output of ``python -m tools.compile_kernels``, with the Triton in ``folder`` if there is one."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([*([str(folder)] if folder else []), str(ROOT)])
    command = [sys.executable, "-m", "tools.compile_kernels", *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment | variables,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_every_launch_for_hopper_compiles_with_the_newest_triton():
    """Each once and for one kind of GPU, to be quick; ``make compile-kernels`` compiles every specialisation."""
    code, output = gate(
        "--once", "--capability", "90", "--dtype", "bf16", folder=other_triton(NEWEST)
    )
    assert code == 0, output
    assert f"Triton {NEWEST}: " in output


@pytest.mark.slow
@pytest.mark.parametrize("version", [NEWEST, OLDEST, None])
def test_everything_compiles(version):
    code, output = gate(folder=None if version is None else other_triton(version))
    assert code == 0, output
    assert f"Triton {version or jit.triton.__version__}: " in output


def other_triton(version):
    """The folder of a Triton beside the installed one."""
    folder = ROOT / ".venv" / f"triton-{version}"
    if not folder.is_dir():
        pytest.skip(f"`make compile-kernels TRITON={version}` installs it")
    return folder


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """Exit code and output of the gate on one kernel for each verdict, with an empty cache."""
    cache = tmp_path_factory.mktemp("triton")
    return gate(
        "--kernels", EXAMPLES, "--capability", "90", "--dtype", "bf16", TRITON_CACHE_DIR=str(cache)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("held spills", r"spills \d+ times inside a loop"),
        ("product large", r"needs 557,056 bytes of shared memory, 232,448 is the most"),
        ("unknown_name unknown name", "does not compile: CompilationError.*missing is not defined"),
    ],
)
def test_the_gate_refuses(examples, kernel, words):
    code, output = examples
    assert code == 1
    failures = output.split("\nFAILED ")[1:]
    (reasons,) = [each for each in failures if each.startswith(f"{kernel}, sm_90, bf16, Launch(")]
    assert re.search(words, reasons, re.DOTALL), reasons


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["product good", "product one step", "held spills outside"])
def test_the_gate_passes(examples, kernel):
    _, output = examples
    assert f"FAILED {kernel}," not in output
    assert "6 kernels" in output and "3 failed" in output


def test_every_launch_belongs_to_a_launch():
    with pytest.raises(RuntimeError, match="stray is launched without the options of a Launch"):
        launches.Recorder(90, "bf16").note(fn=SimpleNamespace(name="stray"), compile={})


@pytest.mark.slow
def test_a_gate_with_nothing_to_guard_is_an_error():
    code, output = gate("--only", "no such kernel", "--capability", "90", "--dtype", "bf16")
    assert code == 2 and "nothing to compile" in output
