"""Messages that the page of symptoms quotes are messages of the code."""

import re

from tests.docs import pages

PAGE = pages.ROOT / "docs" / "troubleshooting.md"
OTHERS = {"no CUDA device", "CUDA_VISIBLE_DEVICES", "AutoModelForCausalLM", "tape", "trust_remote_code", "differs"}
"""Code in the first column that is no message of this project."""


def test_quoted_messages_are_those_of_the_code():
    folders = ("tape_ds", "launchers", "evaluation", "tools")
    files = [path for folder in folders for path in (pages.ROOT / folder).rglob("*.py")]
    code = re.sub(r'"\s*\n\s*f?"', "", "\n".join(path.read_text(encoding="utf-8") for path in files))
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    quoted = {text for row in rows for text in re.findall(r"`([^`]+)`", row.split(" | ")[0])} - OTHERS
    assert len(quoted) > 20
    assert [text for text in quoted for part in text.split(" ... ") if part not in code] == []
