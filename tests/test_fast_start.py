"""What needs neither torch nor a model does not wait for their import: a check, ``--help``, a mistyped option."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EVALUATION = (
    *("", "generate", "perplexity", "passkey", "arithmetic", "harness", "report"),
    *("scrolls", "scrolls generate", "scrolls score", "scrolls compare"),
)
TOOLS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tools").glob("*.py"))
HANDS_ON = ("tools/pose_coverage.py",)
"""What it does not know is taken for a recipe's field, and the whole recipe is read."""
HEAVY = ("torch", "transformers", "datasets", "deepspeed", "matplotlib", "peft", "accelerate", "scipy", "triton")
CHECKED_WITH = (
    "tape_ds",
    "tape_ds.arguments",
    "tape_ds.data.addressing.tasks",
    "tape_ds.data.arithmetic.vocabulary",
    "tape_ds.data.pose",
    "tape_ds.data.rows",
    "tape_ds.data.scrolls.examples",
    "tape_ds.data.scrolls.prompts",
    "tape_ds.data.sources",
    "tape_ds.model.attention",
    "tape_ds.model.families",
    "tape_ds.model.liger",
    "tape_ds.model.positions",
    "tape_ds.model.positions.scaling",
    "tape_ds.model.sizes",
    "tape_ds.parallel.layout",
    "tape_ds.planning.hardware",
    "tape_ds.results",
    "tape_ds.training.checkpoint",
    "tape_ds.training.cluster.roll_call",
    "tape_ds.training.cluster.starting",
    "tape_ds.training.comparison.options",
    "tape_ds.training.forecast",
    "tape_ds.training.methods",
    "tape_ds.training.supervision",
)
"""What recipes are checked with, and what every command imports."""

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
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("word, code", [("--help", 0), ("--halp", 2)])
def test_commands_read_their_line_before_anything_heavy(word, code):
    tools = [tool for tool in TOOLS if code == 0 or tool not in HANDS_ON]
    started = [["-m", "evaluation", *command.split()] for command in EVALUATION]
    started += [[tool] for tool in tools] + [["-m", "tools.reproduce"]]
    run(STARTED.format(commands=[([*words, word], code) for words in started], heavy=HEAVY))


def test_what_a_recipe_is_checked_with_imports_nothing_heavy():
    code = "\n".join(f"import {name}" for name in ("sys", *CHECKED_WITH))
    run(f"{code}\nloaded = [name for name in {HEAVY!r} if name in sys.modules]\nassert not loaded, loaded")


def test_encodings_and_sizes_are_checked_without_torch():
    run(
        "import sys\n"
        "from tape_ds.model import attention, positions, sizes\n"
        "for name in positions.available():\n"
        "    assert not positions.check_options(name, {}), name\n"
        "    positions.learns(name, {}), positions.reads_tokens(name), positions.biases_scores(name)\n"
        "    positions.default_rope_parameters(name, 64)\n"
        "assert attention.missing('flex', 'cpu') and not attention.missing('auto', 'cpu')\n"
        "fields = dict(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)\n"
        "fields |= dict(num_key_value_heads=1, head_dim=7, max_position_embeddings=8)\n"
        "assert [each.field for each in sizes.problems(sizes.Fields(**fields))] == ['head_dim']\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
