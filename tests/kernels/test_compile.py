"""The compile gate: every kernel builds for the GPUs it is meant for, and the gate sees what it is there to see.

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
from tools import compile_kernels
from tools.compile_gate import gate as work
from tools.compile_gate import launches, machine_code

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


@pytest.mark.slow
def test_every_launch_for_hopper_compiles_with_the_newest_triton():
    """Each once and for one kind of GPU, to be quick; ``make compile-kernels`` compiles every specialisation."""
    code, output = gate("--once", "--capability", "90", "--dtype", "bf16", folder=other_triton(NEWEST))
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
def cache(tmp_path_factory):
    """An empty folder for what Triton compiles."""
    return tmp_path_factory.mktemp("triton")


@pytest.fixture(scope="module")
def examples(cache):
    """Exit code and output of the gate on one kernel for each verdict."""
    return gate("--kernels", EXAMPLES, "--capability", "90", "--dtype", "bf16", TRITON_CACHE_DIR=str(cache))


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("held spills", r"spills \d+ times inside a loop"),
        ("serial serialised", "is serialised: 8 waits for 8 wgmma, 2 were asked for"),
        ("product large", r"needs 557,056 bytes of shared memory, 232,448 is the most"),
        ("product off the cores", "has no tensor-core instruction.*leaves 1 matrix products off the tensor cores"),
        ("unknown_name unknown name", "does not compile: CompilationError.*missing is not defined"),
        ("deadly deadly", "the compiler crashed"),
        ("forgotten", "no call reaches it"),
        (r"gate_examples.TABLE[90, 32]", "no call reaches it"),
    ],
)
def test_the_gate_refuses(examples, kernel, words):
    code, output = examples
    assert code == 1
    failures = output.split("\nFAILED ")[1:]
    (reasons,) = [each for each in failures if each.startswith((f"{kernel}, sm_90, bf16, Launch(", f"{kernel}: "))]
    assert re.search(words, reasons, re.DOTALL), reasons


@pytest.mark.parametrize("kernel", ["product good", "product one step", "held spills outside", "double no product"])
def test_the_gate_passes(examples, kernel):
    _, output = examples
    assert f"FAILED {kernel}," not in output
    assert "10 kernels" in output and "6 failed" in output


def test_a_specialisation_is_compiled_once_and_calls_that_differ_in_one_each(examples):
    """99 and 97 steps are the same code to Triton, one step is a constant."""
    rows = table(examples[1])
    assert "product good" in rows and "product good once more" not in rows
    assert "product one step" in rows


def test_figures_are_the_assembler_s(examples):
    """A 64 x 64 x 64 product on sm_90: four instructions 16 deep, and 8 KiB each for A and two stages of B."""
    cells = table(examples[1])["product good"]
    assert (cells["spills"], cells["shared"], cells["mma"], cells["wgmma"]) == ("0+0", "24,576", "0", "4")
    assert 32 < int(cells["registers"]) < 255


def test_spills_outside_loops_are_shown(examples):
    inside, outside = table(examples[1])["held spills outside"]["spills"].split("+")
    assert inside == "0" and int(outside) > 0


def table(output):
    """The figures of each compiled kernel, by kernel and call."""
    lines = re.findall(r"^(.+): (sm_.*);( registers .*); [\d.]+ s", output, re.MULTILINE)
    return {
        name: {"launch": launch} | dict(re.findall(r" (\w+) ([\d,+]*\d)", figures)) for name, launch, figures in lines
    }


@pytest.mark.slow
def test_a_warm_cache_gives_the_same_figures(examples, cache):
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*.cubin")}
    again = gate("--kernels", EXAMPLES, "--capability", "90", "--dtype", "bf16", TRITON_CACHE_DIR=str(cache))
    assert table(again[1]) == table(examples[1])
    assert before and before == {path: path.stat().st_mtime_ns for path in cache.rglob("*.cubin")}


def test_the_interpreter_compiles_nothing(monkeypatch, capsys):
    monkeypatch.setattr(work, "INTERPRETED", True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert compile_kernels.main([]) == 2
    assert "env -u TRITON_INTERPRET" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kernels", "rotat"], "kernels = 'rotat': neither an operator nor a module"),
        (["--kernels", "no.such.module"], "neither an operator nor a module"),
        (["--kernels", "json"], "neither an operator nor a module"),
        (["--kernels", "json.decoder.calls"], "neither an operator nor a module"),
        (["--workers", "0"], "workers = 0: is below 1"),
        (["--only", "forward("], "only = 'forward(': not a regular expression"),
    ],
)
def test_a_command_that_cannot_work_says_why(monkeypatch, capsys, arguments, words):
    monkeypatch.setattr(work, "INTERPRETED", False)
    assert compile_kernels.main(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_gate_with_nothing_to_guard_is_an_error():
    code, output = gate("--only", "no such kernel")
    assert code == 2 and "nothing to compile" in output


def test_every_launch_belongs_to_a_launch():
    with pytest.raises(RuntimeError, match="stray is launched without the options of a Launch"):
        launches.Recorder(90, "bf16").note(fn=SimpleNamespace(name="stray"), compile={})


def instructions(*lines):
    """A disassembled kernel: ``[@predicate] NAME operands``, at addresses of 16 bytes each."""
    parts = [re.fullmatch(r"(?:(@\S+) )?(\S+) ?(.*)", each).groups(default="") for each in lines]
    found = [machine_code.Instruction(*each) for each in parts]
    return machine_code.Code(200, found, machine_code.looped(found, {16 * place: place for place in range(len(found))}))


def test_a_loop_is_what_leads_back_to_its_start():
    """A loop within a loop; a block behind the end (10 to 12) that jumps backwards is in none."""
    code = instructions(
        "MOV", "@P3 BRA 0xa0", "STL", "HMMA.16816.F32", "@P0 BRA 0x30", "LDL", "@P1 BRA 0x20", "NOP", "EXIT", "NOP",
        "STL", "LDL", "BRA 0x20",
    )  # fmt: skip
    assert code.looped == {2, 3, 4, 5, 6}
    assert code.spills() == (2, 2)


RECORD = """
import sys
from pathlib import Path
import torch
from tests.kernels.gate_examples import calls
from tools.compile_gate import launches

with launches.gpu(found := launches.Recorder(90, "bf16")):
    dict(calls(torch.bfloat16))["good"]()
(build,) = found.builds.values()
(Path(sys.argv[1]) / "data").write_text(build.data)
"""
FILL = f"""
import sys
from pathlib import Path
from tape_ds.kernels.jit import triton
from tests.kernels.gate_examples import product
from tools.compile_gate import cache, launches

if __name__ == "__main__":
    cache.WORK, folder, there = (Path(sys.argv[1]) / name for name in ("work", "carried", "there"))
    cache.fill(folder, ["{EXAMPLES}"], 90)
    print("kernels:", cache.unpack(folder, there))
    triton.knobs.cache.dir, hits = str(there), []
    triton.knobs.compilation.listener = lambda **told: hits.append(told["cache_hit"])
    triton.runtime.driver.set_active(launches.driver(90))
    product.preload((Path(sys.argv[1]) / "data").read_text())
    print("hits:", hits)
"""


@pytest.mark.slow
def test_a_machine_with_the_carried_cache_compiles_nothing(tmp_path):
    """A process of its own finds the kernel by its specialisation, in another folder than it was written to."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    for name, script in (("record.py", RECORD), ("fill.py", FILL)):
        (tmp_path / name).write_text(script)
        done = subprocess.run(
            [sys.executable, tmp_path / name, tmp_path],
            env=environment | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    assert "kernels: 8" in done.stdout
    assert "hits: [True]" in done.stdout
