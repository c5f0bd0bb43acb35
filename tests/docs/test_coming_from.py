"""The page of other code's names gives names that exist here."""

import re

import pytest

from tape_ds.config import old_names, trainer
from tape_ds.config.kinds import KINDS
from tests.docs import pages

PAGE = pages.ROOT / "docs" / "coming_from.md"
FILE = re.compile(r"(?:launchers|tools|ds_configs|tape_ds)/[\w/]+\.(?:py|json)")


def ours():
    """The second column of every table: what things are called here."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            yield line.removesuffix(" |").split(" | ", 1)[1]


def flags():
    return {flag for cell in ours() for code in re.findall(r"`([^`]+)`", cell) for flag in re.findall(r"--(\w+)", code)}


@pytest.fixture(scope="module")
def known():
    """Fields of all recipes, and the options that the evaluation's and the tools' parsers are given."""
    fields = {field for kind in KINDS.values() for field in kind.fields()} | {"recipe", *trainer.ALIASES}
    files = [path for folder in ("tape_ds/cli", "tools") for path in (pages.ROOT / folder).rglob("*.py")]
    return fields | {each for path in files for each in re.findall(r'"--(\w+)"', path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("flag", sorted(flags()))
def test_the_flag_exists_here(flag, known):
    assert flag in known


@pytest.mark.parametrize("file", sorted({file for cell in ours() for file in FILE.findall(cell)}))
def test_the_file_exists_here(file):
    assert (pages.ROOT / file).is_file()


@pytest.mark.parametrize("old", sorted(old_names._NAMES))
def test_an_old_name_is_answered_with_one_that_is_a_field(old):
    answers = [old_names.today(old, kind.fields()) for kind in KINDS.values() if old not in kind.fields()]
    assert any(answers)
    for name in (re.split(r"[ .,:]", answer)[0] for answer in answers if answer):
        assert name == "nothing" or any(name in kind.fields() for kind in KINDS.values())


@pytest.mark.parametrize(
    ("kind", "old", "today"),
    [
        ("extend_llama", "model_max_length", "target_length"),
        ("pretrain_c4", "model_max_length", "window"),
        ("finetune", "model_max_length", "max_tokens"),
        ("finetune_scrolls", "block_size", "max_tokens"),
        ("pretrain_c4", "model_name_or_path", "nothing: the model is built new from its sizes"),
    ],
)
def test_an_old_name_means_what_its_launcher_has(kind, old, today):
    assert old_names.today(old, KINDS[kind].fields()) == today


def test_flags_and_files_are_found():
    assert len(flags()) > 40
