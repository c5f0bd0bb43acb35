"""A message names an option of its command as it is typed, with its dashes."""

import ast
from pathlib import Path

import pytest

from tape_ds.cli import convert, plan, prepare_data, train_tokenizer
from tape_ds.installation import ROOT
from tools.experiment import __main__ as experiment

WITH_A_FIELD = ("Problem", "check_folder", "check_new")
"""Functions whose first argument is what a message names."""


def modules_with_options():
    for folder in ("tape_ds/cli", "tape_ds/scoring", "tools", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "add_argument(" in path.read_text():
                yield path.relative_to(ROOT).as_posix()


def texts_given_to(tree, functions):
    """The first argument of each call of these functions, where it is a plain text."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", None))
        if name in functions and isinstance(node.args[0], ast.Constant):
            yield node.args[0].value


@pytest.mark.parametrize("path", list(modules_with_options()))
def test_a_command_s_own_messages_have_dashes(path):
    tree = ast.parse(Path(ROOT, path).read_text())
    options = set(texts_given_to(tree, ["add_argument"]))
    named = set(texts_given_to(tree, WITH_A_FIELD))
    assert [field for field in named if f"--{field}" in options and field not in options] == []


PLAN = (plan.main, ["llama2_7b_8k"])
PREPARE = (prepare_data.main, ["--data", "stdlib", "--tokenizer", "smollm2", "--output", "new"])
TRAIN = (train_tokenizer.main, ["--data", "text:t", "--output", "new", "--vocab_size", "300"])
CONVERT = (convert.main, ["llama-to-tape", "smollm2", "new"])
EXPERIMENT = (experiment.main, ["encodings", "--plan"])


@pytest.mark.parametrize(
    ("command", "mistake", "named"),
    [
        (PLAN, "--price -1", "--price = -1.0"),
        (PLAN, "--gpu a1000", "--gpu = 'a1000'"),
        (PREPARE, "--check new", "--output = 'new'"),
        (PREPARE, "--shard_tokens 0", "--shard_tokens = 0"),
        (PREPARE, "--data jsonl:none.jsonl#text", "--data = 'jsonl:none.jsonl#text'"),
        (PREPARE, "--tokenizer none/at/all", "--tokenizer = 'none/at/all'"),
        (TRAIN, "", "--data = ['text:t']"),
        (CONVERT, "--position_encoding tap", "--position_encoding = 'tap'"),
        (CONVERT, "--rows 9", "--rows = 9"),
        (EXPERIMENT, "--seeds 0 0", "--seeds = 0"),
        (EXPERIMENT, "--reference none", "--reference = 'none'"),
        (EXPERIMENT, "--arms none", "--arms = 'none'"),
        (EXPERIMENT, "--launcher none/at/all", "--launcher = 'none/at/all'"),
    ],
)
def test_a_message_of_another_room_has_dashes_too(
    command, mistake, named, tmp_path, monkeypatch, capsys
):
    """Functions that several commands call know the option as a plain name: ``output``, ``rows``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t").write_text("")
    main, words = command
    assert main([*words, *mistake.split()]) == 2
    assert f". {named}" in capsys.readouterr().err
