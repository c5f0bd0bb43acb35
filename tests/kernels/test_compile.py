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
    assert rows["product good"]["loop"] != "0" and rows["product one step"]["loop"] == "0"


def test_figures_are_the_assembler_s(examples):
    """A 64 x 64 x 64 product on sm_90: four instructions 16 deep, and 8 KiB each for A and two stages of B."""
    cells = table(examples[1])["product good"]
    assert (cells["spills"], cells["shared"], cells["mma"], cells["wgmma"]) == ("0+0", "24,576", "0", "4")
    assert 32 < int(cells["registers"]) < 255 and 4 < int(cells["loop"]) < 100


def test_spills_outside_loops_are_shown(examples):
    inside, outside = table(examples[1])["held spills outside"]["spills"].split("+")
    assert inside == "0" and int(outside) > 0


def table(output):
    """The cells by column of each row of the gate's table, by kernel and call."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in output.splitlines()]
    names = ["kernel", *work.COLUMNS]
    return {cells[0]: dict(zip(names, cells, strict=True)) for cells in lines if len(cells) == len(names)}


@pytest.mark.slow
def test_a_warm_cache_gives_the_same_figures(examples, cache):
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*.cubin")}
    again = gate("--kernels", EXAMPLES, "--capability", "90", "--dtype", "bf16", TRITON_CACHE_DIR=str(cache))
    cold, warm = table(examples[1]), table(again[1])
    for row in (*cold.values(), *warm.values()):
        row.pop("seconds")
    assert warm == cold
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
        (["--workers", "0"], "workers = 0: is below 1"),
        (["--launch", "FORWARD=128x64"], "launch = 'FORWARD=128x64': not TABLE=ROWSxCOLUMNSxWARPSxSTAGES"),
    ],
)
def test_a_command_that_cannot_work_says_why(monkeypatch, capsys, arguments, words):
    monkeypatch.setattr(work, "INTERPRETED", False)
    assert compile_kernels.main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "no such kernel"], "nothing to compile"),
        (["--launch", "FORWARD=128x64x8x3"], "launch = 'FORWARD': no such table"),
    ],
)
def test_a_gate_with_nothing_to_guard_is_an_error(arguments, words):
    code, output = gate(*arguments)
    assert code == 2 and words in output


@pytest.mark.slow
def test_a_launch_that_no_table_has_can_be_tried():
    """128 x 64 tiles of a 64-wide kernel, one call of a kernel, in Markdown."""
    code, output = gate(
        "--kernels", "tape_attention", "--only", "delta_kernel H=12 G=12 K=64 T=8192$", "--table",
        "--capability", "90", "--dtype", "bf16", "--launch", "tape_attention_backward.DELTA=16x0x2x2",
    )  # fmt: skip
    assert code == 0, output
    assert re.search(r"\| delta_kernel H=12 G=12 K=64 T=8192 \| 90 \| +bf16 \| +16x0x2x2 \|", output), output


def test_every_launch_belongs_to_a_launch():
    with pytest.raises(RuntimeError, match="stray is launched without the options of a Launch"):
        launches.Recorder(90, "bf16").note(fn=SimpleNamespace(name="stray"), compile={})


def instructions(*lines):
    """A disassembled kernel: ``[@predicate] NAME operands``, at addresses of 16 bytes each."""
    parts = [re.fullmatch(r"(?:(@\S+) )?(\S+) ?(.*)", each).groups(default="") for each in lines]
    found = [machine_code.Instruction(*each) for each in parts]
    return machine_code.Code(200, found, machine_code.loops(found, {16 * place: place for place in range(len(found))}))


def test_a_loop_is_what_leads_back_to_its_start():
    """A loop within a loop; a block behind the end (10 to 12) that jumps backwards is in none."""
    code = instructions(
        "MOV", "@P3 BRA 0xa0", "STL", "HMMA.16816.F32", "@P0 BRA 0x30", "LDL", "@P1 BRA 0x20", "NOP", "EXIT", "NOP",
        "STL", "LDL", "BRA 0x20",
    )  # fmt: skip
    assert sorted(map(sorted, code.loops)) == [[2, 3, 4, 5, 6], [3, 4]]
    assert code.spills() == (2, 2)
    assert [each.name for each in code.hottest()] == ["HMMA.16816.F32", "BRA"]


def test_the_model_counts_issue_slots_against_the_tensor_cores():
    """One program of eight warps fits (200 registers): each of a scheduler's two warps issues 512 instructions, and
    96 of them are 64 x 128 x 16 wgmma, 64 cycles each."""
    products = ["HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24"] * 96
    code = instructions("MOV", *products, *["FADD"] * 415, "@P0 BRA 0x10", "EXIT")
    assert len(code.hottest()) == 512
    share = 96 * 64 / (512 + 96 * 64)
    assert machine_code.tflops(code, 90, warps=8, shared=100 * 1024) == pytest.approx(0.8 * 989 * share)
    assert machine_code.tflops(instructions("FADD", "EXIT"), 90, warps=8, shared=0) is None


def test_several_programs_fill_each_other_s_gaps_and_narrow_wgmma_waits_for_shared_memory():
    """Two programs of four warps: one alone would need 10 + 8 x 24 cycles, both keep the tensor cores busy for 2 x 8 x
    24. A 64 x 32 x 16 wgmma multiplies for 16 cycles, but reads 96 rows of 32 bytes: 24."""
    products = ["HGMMA.64x32x16.F32.BF16 R24, gdesc[UR4], R24"] * 8
    code = instructions("MOV", *products, "FADD", "@P0 BRA 0x10", "EXIT")
    rate = machine_code.tflops(code, 90, warps=4, shared=100 * 1024)
    assert rate == pytest.approx(0.8 * 989 * 16 / 24)
