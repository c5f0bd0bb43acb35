"""The page of other code's names gives names that exist here."""

import re

import pytest

from tape_ds.config import trainer
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


def test_flags_and_files_are_found():
    assert len(flags()) > 40
