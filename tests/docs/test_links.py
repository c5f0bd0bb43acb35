"""Every link of the book leads somewhere: the file exists, and so does the heading."""

from urllib.parse import unquote

import pytest

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
def test_every_link_leads_somewhere(page):
    assert list(broken(page, page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "link", ["[x](nowhere.md)", "[x](model.md#nothing-of-that-name)", "[x](#nothing)", "![x](figures/none.png)"]
)
def test_a_broken_link_is_found(link):
    page = pages.ROOT / "docs" / "staying_alive.md"
    assert len(list(broken(page, f"# Title\n\n| a |\n|---|\n| {link} |\n"))) == 1


def test_anchors_are_those_of_github():
    text = "# A `b` & c: d\n\n[1](#a-b--c-d) [2](model.md#which-models) [3](https://example.org/x) [4](../LICENSE)\n"
    assert list(broken(pages.ROOT / "docs" / "staying_alive.md", text)) == []
    assert pages.anchors("# One\n\n## Two\n\n## Two\n") == {"one", "two", "two-1"}
