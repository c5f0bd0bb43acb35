"""Commands and Python blocks of the book: programs exist, take these options, and know these recipes."""

import ast
import shlex
import subprocess
import sys

import pytest

from tests.docs import commands, pages
from tests.docs.pages import Block

BLOCKS = pages.all_blocks()
COMMANDS = list(
    {each.words: each for block in reversed(BLOCKS) for each in commands.commands(block)}.values()
)
"""Each once, where it comes first."""
LONG = [pages.ROOT / "CHANGELOG.md", pages.ROOT / "docs" / "fields.md"]
PYTHON = [block for block in BLOCKS if block.info == "python"]


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command_is_parsed_by_its_program(command, capsys):
    commands.check(command.words, command.is_partial)


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.place)
def test_python_blocks_are_python(block):
    ast.parse(block.text)


@pytest.mark.parametrize(
    "page", sorted({block.page for block in PYTHON if block.runs}), ids=pages.name
)
def test_python_blocks_marked_as_running_run(page, tmp_path):
    script = tmp_path / "page.py"
    script.write_text(
        "".join(block.text for block in PYTHON if block.page == page and block.runs),
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, script], cwd=pages.ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("page", pages.pages(), ids=pages.name)
def test_a_page_is_short_and_its_code_fits(page):
    if page in LONG or page.is_relative_to(pages.ROOT / "docs" / "results"):
        return
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 250
    code = "\n".join(block.text for block in pages.blocks(page) if block.info is not None)
    assert [line for line in code.splitlines() if len(line) > 90] == []


def test_commands_are_found():
    assert len(COMMANDS) > 100
    assert any(block.runs for block in PYTHON)
    text = "X=1 deepspeed launchers/extend_llama.py ... \\\n    --dry_run  # why\necho hello\ntools/plan.py"
    (found,) = commands.commands(Block(pages.ROOT / "README.md", 1, "", text))
    assert found.words == ("deepspeed", "launchers/extend_llama.py", "--dry_run")


@pytest.mark.parametrize(
    "text",
    [
        "make dinner",
        "python tools/no_such_tool.py",
        "python -m evaluation passkey MODEL --no_such_flag",
        "deepspeed --no_such_flag launchers/extend_llama.py",
        "deepspeed --num_gpus 4 launchers/extend_llama.py --recipe llama2_7b_8k --sequence_parallel_size 3",
        "tape-ds extend --num_gpus 4 --no_such_field 3",
    ],
)
def test_a_wrong_command_is_found(text, capsys):
    with pytest.raises(commands.WrongCommandError):
        commands.check(shlex.split(text))
