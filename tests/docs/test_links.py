"""Every page can be reached, and its links lead to files and headings that exist."""

from urllib.parse import unquote

import pytest
import yaml

from tests.docs import pages


def broken(page, text):
    """Links of a page that lead nowhere."""
    for line, target in pages.links(text):
        path, _, anchor = unquote(target).partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or pages.ROOT not in (file, *file.parents):
            yield f"{pages.name(page)}:{line}: {target} does not exist"
        elif anchor and file.suffix == ".md":
            known = pages.anchors(text if file == page else file.read_text(encoding="utf-8"))
            if anchor not in known:
                yield f"{pages.name(page)}:{line}: {target}: no such heading"


@pytest.mark.parametrize("page", pages.pages(), ids=pages.name)
def test_every_link_leads_somewhere_and_no_table_is_broken(page):
    """A blank line within a table makes the rows after it a paragraph of bars."""
    text = page.read_text(encoding="utf-8")
    assert list(broken(page, text)) == []
    assert [each for each in pages.paragraphs(text) if each.startswith("|")] == []


@pytest.mark.parametrize(
    "link",
    [
        "[x](nowhere.md)",
        "[x](model.md#nothing-of-that-name)",
        "[x](#nothing)",
        "![x](figures/none.png)",
    ],
)
def test_a_broken_link_is_found(link):
    page = pages.ROOT / "docs" / "staying_alive.md"
    assert len(list(broken(page, f"# Title\n\n| a |\n|---|\n| {link} |\n"))) == 1


def named(entries):
    """The pages of the navigation."""
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from named(value) if isinstance(value, list) else [value]


def test_every_chapter_is_in_the_navigation_and_on_the_first_page():
    site = yaml.safe_load((pages.ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert site["theme"]["font"] is False, "the site loads nothing from the network"
    chapters = [page.name for page in (pages.ROOT / "docs").glob("*.md")] + ["results/README.md"]
    assert sorted(named(site["nav"])) == sorted(chapters)
    first = (pages.ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    linked = {target.partition("#")[0] for _, target in pages.links(first)}
    assert set(chapters) - {"index.md"} - linked == set()
