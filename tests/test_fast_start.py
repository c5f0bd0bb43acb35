"""A check, ``--help`` and a mistyped option do not import torch or any other heavy library."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EVALUATION = ("", "generate", "perplexity", "passkey", "ruler", "generated", "harness", "report")
TOOLS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tools").glob("*.py"))
LAUNCHERS = tuple(
    f"launchers/{name}.py"
    for name in ("extend_llama", "pretrain_c4", "finetune", "finetune_scrolls", "train_generated")
)
HEAVY = (
    "torch",
    "transformers",
    "datasets",
    "deepspeed",
    "matplotlib",
    "peft",
    "accelerate",
    "scipy",
    "triton",
)
# One process for all: each program starts where nothing heavy has been imported, or the one before it is named.
STARTED = """
import contextlib, io, runpy, sys

def start(words):
    sys.argv = words[1:] if words[0] == "-m" else list(words)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            if words[0] == "-m":
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(words[0], run_name="__main__")
        except SystemExit as ended:
            return ended.code

for words, code in {commands!r}:
    ended = start(words)
    loaded = [name for name in {heavy!r} if name in sys.modules]
    if loaded or ended != code:
        sys.exit(f"{{' '.join(words)}}: exit code {{ended}}, imported {{loaded}}")
"""


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("word, code", [("--help", 0), ("--halp", 2)])
def test_commands_read_their_line_before_anything_heavy(word, code):
    started = [
        ["-m", "tape_ds"],
        *(["-m", "evaluation", *command.split()] for command in EVALUATION),
    ]
    started += [[script] for script in (*LAUNCHERS, *TOOLS)]
    run(STARTED.format(commands=[([*words, word], code) for words in started], heavy=HEAVY))


def test_recipes_are_listed_shown_and_checked_before_anything_heavy():
    started = [([script, word], 0) for script in LAUNCHERS for word in ("--list", "--print_config")]
    started += [
        (["launchers/pretrain_c4.py", "--recipe", "c4_155m_bipe_rope", "--print_config"], 0)
    ]
    started += [(["launchers/train_generated.py", "--recipe", "look_back", "--print_config"], 0)]
    started += [(["launchers/extend_llama.py", "--recipe", "dmeo"], 2)]
    run(STARTED.format(commands=started, heavy=HEAVY))
