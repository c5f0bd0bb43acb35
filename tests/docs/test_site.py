"""The book as a site: every chapter can be reached, it builds without a warning and loads nothing from elsewhere."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from tests.docs import pages

INTERPRETER = pages.ROOT / ".venv" / "docs" / "bin" / "python"
"""Which `make docs` makes, with mkdocs."""
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
LOADED = re.compile(r'<(?:img|script|link|iframe|source)\b[^>]*?\b(?:src|href)="((?:\w+:)?//[^"]*)"')
"""Addresses elsewhere that a browser loads by itself."""


def named(entries):
    """The pages of the navigation."""
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from named(value) if isinstance(value, list) else [value]


def test_every_chapter_is_in_the_navigation_and_on_the_first_page():
    found = list(named(yaml.safe_load((pages.ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    chapters = [page.name for page in (pages.ROOT / "docs").glob("*.md")] + ["results/README.md"]
    assert sorted(found) == sorted(chapters)
    first = (pages.ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    linked = {target.partition("#")[0] for _, target in pages.links(first)}
    assert set(found) - {"index.md"} - linked == set()


@pytest.mark.parametrize("page", pages.pages(), ids=pages.name)
def test_no_table_is_broken(page):
    """A blank line within a table makes the rows after it a paragraph of bars."""
    assert [text for text in pages.paragraphs(page.read_text(encoding="utf-8")) if text.startswith("|")] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built by the interpreter of `make docs`, or by this one where that has mkdocs."""
    interpreter = INTERPRETER if INTERPRETER.exists() else sys.executable
    if subprocess.run([interpreter, "-c", "import mkdocs, material"], capture_output=True).returncode:
        pytest.skip("mkdocs is not installed: make docs")
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [interpreter, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(command, cwd=pages.ROOT, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site):
    """A broken link or anchor is an error of the build."""
    built = list(site.rglob("*.html"))
    assert len(built) > 30
    assert [(page.name, LOADED.findall(page.read_text(encoding="utf-8"))) for page in built] == [
        (page.name, []) for page in built
    ]


MEASURE = """
let left = document.querySelectorAll("iframe").length;
const wide = [];
function look(frame) {
  const page = frame.contentDocument;
  if (page.documentElement.scrollWidth > frame.width) wide.push(frame.dataset.page);
  for (const box of page.querySelectorAll(".md-typeset__scrollwrap"))
    if (box.scrollWidth > box.clientWidth + 1) wide.push(frame.dataset.page + ": " + box.innerText.slice(0, 60));
  if (!--left) document.querySelector("pre").textContent = "wide: " + JSON.stringify(wide) + ".";
}
for (const frame of document.querySelectorAll("iframe")) frame.onload = () => setTimeout(() => look(frame), 500);
for (const frame of document.querySelectorAll("iframe")) frame.src = frame.dataset.page;
"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine")
@pytest.mark.parametrize("width", [390, 1280])
def test_chapters_and_their_tables_fit_a_window(site, tmp_path, width):
    """Another page has all of them in frames and measures them."""
    chapters = sorted(page.name for page in site.glob("*.html") if page.name != "404.html")
    found = [*chapters, *(f"repository/{page}.html" for page in ("index", "CONTRIBUTING", "ds_configs/index"))]
    assert len(found) > 20
    style = f"width={width} height=900 style='border:0'"
    frames = "".join(f"<iframe data-page='{page}' {style}></iframe>" for page in found)
    outer = site / "outer.html"
    outer.write_text(f"<!doctype html><body>{frames}<pre></pre><script>{MEASURE}</script></body>", encoding="utf-8")
    command = [
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *(f"--user-data-dir={tmp_path}", "--allow-file-access-from-files", "--window-size=1400,1000"),
        *("--virtual-time-budget=60000", "--dump-dom", outer.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    outer.unlink()
    assert "<pre>wide: [].</pre>" in done.stdout, done.stdout[-2000:]
