"""The pages of the book taken apart: links, anchors, code blocks and commands, by a CommonMark parser with tables."""

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
NO_PROSE = ("CHANGELOG.md",)
"""Its lines tell of what once was."""

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
    """Whether the page promises that it runs: ``<!-- runs -->`` stands before it."""

    @property
    def place(self) -> str:
        """Where it stands."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """All that a reader of the repository is sent to."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "ds_configs" / "README.md"]
    return found + sorted((ROOT / "docs").rglob("*.md"))


def chapters() -> list[Path]:
    """Pages that are read by themselves; what lies deeper was written by a tool, for a page that includes it."""
    return [page for folder in ("docs", "docs/results") for page in sorted((ROOT / folder).glob("*.md"))]


def name(page: Path) -> str:
    """As pytest shows it."""
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
    """What links into a page may name: its headings, as GitHub and the built site write them."""
    found: Counter[str] = Counter()
    names = set()
    tokens = _MARKDOWN.parse(text)
    for heading, content in itertools.pairwise(tokens):
        if heading.type == "heading_open":
            slug = slug_of(plain(content))
            names.add(f"{slug}-{found[slug]}" if found[slug] else slug)
            found[slug] += 1
    return names


def plain(inline: Token) -> str:
    """A heading without its marks."""
    return "".join(child.content for child in inline.children or [] if child.type in ("text", "code_inline"))


def slug_of(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    kept = (each for each in heading.lower() if each in "-_ " or unicodedata.category(each)[0] in "LN")
    return "".join(kept).strip().replace(" ", "-")


def paragraphs(text: str) -> Iterator[str]:
    """The texts of a page that are no heading, no cell and no code."""
    for opened, content in itertools.pairwise(_MARKDOWN.parse(text)):
        if opened.type == "paragraph_open":
            yield content.content


def blocks(page: Path) -> Iterator[Block]:
    """Every piece of code of a page."""
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
    """Of all pages that say how things are."""
    return [block for page in pages() if page.name not in NO_PROSE for block in blocks(page)]
