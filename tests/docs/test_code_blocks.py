"""What the book tells a reader to type is right: programs are there, take these options, and know these recipes."""

import ast
import subprocess
import sys

import pytest

from tests.docs import commands, pages
from tests.docs.pages import Block

BLOCKS = pages.all_blocks()
COMMANDS = list({each.words: each for block in reversed(BLOCKS) for each in commands.commands(block)}.values())
"""Each once, where it stands first."""
PYTHON = [block for block in BLOCKS if block.info == "python"]
RESULTS = pages.ROOT / "docs" / "results"
"""Its commands are those that were typed."""
GENERATED = (pages.ROOT / "docs" / "fields.md", RESULTS / "README.md")
"""What a program writes is as long as there is to say."""
WIDTH, LINES = 90, 250


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_the_program_takes_the_command(command, capsys):
    commands.check(command.words, command.is_partial)


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.place)
def test_python_blocks_are_python(block):
    ast.parse(block.text)


@pytest.mark.parametrize("page", sorted({block.page for block in PYTHON if block.runs}), ids=pages.name)
def test_python_blocks_that_promise_it_run(page, tmp_path):
    """In order, in one process of their own, as a reader would paste them."""
    script = tmp_path / "page.py"
    script.write_text("".join(block.text for block in PYTHON if block.page == page and block.runs), encoding="utf-8")
    done = subprocess.run([sys.executable, script], cwd=pages.ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("page", [page for page in pages.pages() if not page.is_relative_to(RESULTS)], ids=pages.name)
def test_code_fits_its_block(page):
    """A block of the site shows so many characters; what is longer is cut off until a reader scrolls."""
    shown = [
        (block.line, line) for block in pages.blocks(page) if block.info is not None for line in block.text.splitlines()
    ]
    assert [(start, line) for start, line in shown if len(line) > WIDTH] == []


@pytest.mark.parametrize("page", [page for page in pages.chapters() if page not in GENERATED], ids=pages.name)
def test_chapters_are_short(page):
    assert len(page.read_text(encoding="utf-8").splitlines()) <= LINES


def test_commands_are_found():
    """The search does not pass everything by: as many as there are pages, at the very least."""
    assert len(COMMANDS) > 100
    assert any(block.runs for block in PYTHON)


def found(text, info=""):
    return [each.words for each in commands.commands(Block(pages.ROOT / "README.md", 1, info, text))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("X=1 deepspeed launchers/extend_llama.py  # why", ["deepspeed", "launchers/extend_llama.py"]),
        ("cat a | python -m evaluation x --prompt 'a # b'", ["python", "-m", "evaluation", "x", "--prompt", "a # b"]),
        ("python -m tools.experiments.flops \\\n    --table3", ["python", "-m", "tools.experiments.flops", "--table3"]),
        ("python tools/export_hf.py A B [--name NAME]", ["python", "tools/export_hf.py", "A", "B", "--name", "NAME"]),
        ("deepspeed launchers/extend_llama.py ... --dry_run", ["deepspeed", "launchers/extend_llama.py", "--dry_run"]),
    ],
)  # fmt: skip
def test_a_line_is_read_as_a_shell_would(text, words):
    assert found(text) == [tuple(words)]


@pytest.mark.parametrize("text", ["tools/  verbs", "echo hello", "tools/plan.py", "the launchers/recipes folder"])
def test_what_starts_nothing_is_no_command(text):
    assert found(text) == []


def test_a_sentence_may_leave_arguments_out_but_not_make_options_up():
    (words,) = found("python -m evaluation passkey --form pose", info=None)
    commands.check(words, is_partial=True)
    with pytest.raises(commands.WrongCommandError, match="--shape"):
        commands.check([*words, "--shape", "pose"], is_partial=True)


@pytest.mark.parametrize(
    "text",
    [
        "make dinner",
        "python tools/no_such_tool.py",
        "python tools/plan.py demo --no_such_field 3",
        "python -m evaluation passkey MODEL --no_such_flag",
        "deepspeed --no_such_flag launchers/extend_llama.py",
        "deepspeed launchers/extend_llama.py --recipe no_such_recipe",
        "deepspeed --num_gpus 4 launchers/extend_llama.py --recipe llama2_7b_8k --sequence_parallel_size 3",
        "torchrun --nproc_per_node 2 -m evaluation passkey --no_such_flag",
        "tape-ds extend --num_gpus 4 --no_such_field 3",
        "sbatch launchers/slurm.sbatch launchers/pretrain_c4.py --recipe no_such_recipe",
    ],
)
def test_a_wrong_command_is_refused(text, capsys):
    (words,) = found(text)
    with pytest.raises(commands.WrongCommandError):
        commands.check(words)
