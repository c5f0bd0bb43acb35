"""Messages, flags and files that pages name exist in the code."""

import re

from tape_ds.config import trainer
from tape_ds.config.kinds import KINDS
from tests.docs import pages

NO_MESSAGES = {
    "no CUDA device",
    "CUDA_VISIBLE_DEVICES",
    "AutoModelForCausalLM",
    "tape",
    "trust_remote_code",
    "differs",
}
"""Code in the first column of the page of symptoms that is no message of this project."""


def code_of(*folders):
    files = [path for folder in folders for path in (pages.ROOT / folder).rglob("*.py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def rows(page):
    """The rows of a page's tables."""
    lines = (pages.ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("| ") and not line.startswith("| ---")]


def test_quoted_messages_are_those_of_the_code():
    code = re.sub(r'"\s*\n\s*f?"', "", code_of("tape_ds", "launchers", "evaluation", "tools"))
    cells = [row.split(" | ")[0] for row in rows("troubleshooting.md")]
    quoted = {text for cell in cells for text in re.findall(r"`([^`]+)`", cell)} - NO_MESSAGES
    assert len(quoted) > 20
    assert [text for text in quoted for part in text.split(" ... ") if part not in code] == []


def test_flags_and_files_in_place_of_other_code_s_exist():
    fields = {field for kind in KINDS.values() for field in kind.fields()} | {
        "recipe",
        *trainer.ALIASES,
    }
    fields |= set(re.findall(r'"--(\w+)"', code_of("tape_ds/cli", "tools")))
    ours = "\n".join(row.split(" | ", 1)[1] for row in rows("coming_from.md"))
    flags = {
        flag for code in re.findall(r"`([^`]+)`", ours) for flag in re.findall(r"--(\w+)", code)
    }
    files = re.findall(r"(?:launchers|tools|ds_configs|tape_ds)/[\w/]+\.(?:py|json)", ours)
    assert len(flags) > 40 and flags - fields == set()
    assert [file for file in files if not (pages.ROOT / file).is_file()] == []
