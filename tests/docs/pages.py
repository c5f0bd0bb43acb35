"""Links, anchors, code blocks and commands of the book's pages, by a CommonMark parser with tables."""

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
_MARKDOWN = MarkdownIt("commonmark").enable("table")
_OUTSIDE = re.compile(r"^[a-z][a-z0-9+.-]*:|^//")


@dataclass(frozen=True)
class Block:
    """A code block, or code within a line (``info`` None)."""

    page: Path
    line: int
    info: str | None
    text: str
    runs: bool = False
    """Whether ``<!-- runs -->`` comes before it."""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    found = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        ROOT / "ds_configs" / "README.md",
    ]
    return found + sorted((ROOT / "docs").rglob("*.md"))


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def links(text: str) -> Iterator[tuple[int, str]]:
    """(line, target) of every link and picture that does not lead out of the repository."""
    for token in _MARKDOWN.parse(text):
        line = (token.map or [0])[0] + 1
        for child in token.children or []:
            target = child.attrGet("href") or child.attrGet("src")
            if target and not _OUTSIDE.match(str(target)):
                yield line, str(target)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the built site write them."""
    found: Counter[str] = Counter()
    names = set()
    tokens = _MARKDOWN.parse(text)
    for heading, content in itertools.pairwise(tokens):
        if heading.type == "heading_open":
            text = "".join(
                child.content
                for child in content.children or []
                if child.type in ("text", "code_inline")
            )
            slug = slug_of(text)
            names.add(f"{slug}-{found[slug]}" if found[slug] else slug)
            found[slug] += 1
    return names


def slug_of(heading: str) -> str:
    kept = (
        each for each in heading.lower() if each in "-_ " or unicodedata.category(each)[0] in "LN"
    )
    return "".join(kept).strip().replace(" ", "-")


def paragraphs(text: str) -> Iterator[str]:
    """The texts of a page that are no heading, no cell and no code."""
    for opened, content in itertools.pairwise(_MARKDOWN.parse(text)):
        if opened.type == "paragraph_open":
            yield content.content


def blocks(page: Path) -> Iterator[Block]:
    promised = False
    for token in _MARKDOWN.parse(page.read_text(encoding="utf-8")):
        line = (token.map or [0])[0] + 1
        if token.type in ("code_block", "fence"):
            yield Block(page, line, token.info.strip(), token.content, promised)
        for child in token.children or []:
            if child.type == "code_inline":
                yield Block(page, line, None, child.content)
        promised = token.type == "html_block" and token.content.strip() == "<!-- runs -->"


def all_blocks() -> list[Block]:
    """Return the code of all pages but the changelog, which has commands of the past."""
    return [block for page in pages() if page.name != "CHANGELOG.md" for block in blocks(page)]
