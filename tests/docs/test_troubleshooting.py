"""The page of symptoms quotes messages: each is one that the code says."""

import re

import pytest

from tests.docs import pages

PAGE = pages.ROOT / "docs" / "troubleshooting.md"
OURS = ("tape_ds", "launchers", "evaluation", "tools")
OTHERS = {"no CUDA device", "CUDA_VISIBLE_DEVICES", "AutoModelForCausalLM", "tape", "trust_remote_code", "differs"}
"""Code in the first column that is no message of this project: others' words, and names."""


def quoted():
    """What the first column of the page's tables shows as messages."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            yield from (message for message in re.findall(r"`([^`]+)`", line.split(" | ")[0]) if message not in OTHERS)


@pytest.fixture(scope="module")
def sources():
    """Every string of the code, adjacent literals joined as Python joins them."""
    texts = (path.read_text(encoding="utf-8") for folder in OURS for path in (pages.ROOT / folder).rglob("*.py"))
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(texts))


@pytest.mark.parametrize("message", sorted(set(quoted())))
def test_the_message_is_one_that_the_code_says(message, sources):
    for part in message.split(" ... "):
        assert part in sources, f"nothing says {part!r}"


def test_messages_are_found():
    assert len(set(quoted())) > 20
