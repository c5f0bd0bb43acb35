"""What the site needs beside the pages: the files outside docs/ that they link to, so that no link leads out of it.

A page of the repository may link to anything in it, as ``memory.md`` does to ``../ds_configs/README.md``. mkdocs knows
the folder docs/ alone. So each file outside that a page names becomes part of the site, below ``repository/``, Markdown
as a page whose own links are followed in turn; a folder becomes a page with the names in it; and links are written anew
for where things lie there. mkdocs calls the two functions that begin with ``on_``.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OUTSIDE = "repository"

_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_URL = re.compile(r"^[a-z][a-z0-9+.-]*:", re.I)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take in what the pages link to."""
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    taken = set(waiting)
    while waiting:
        page = waiting.pop()
        for target in targets(page):
            if target in taken or files.get_file_from_path(place(target)) is not None:
                continue
            taken.add(target)
            if target.is_dir():
                files.append(File.generated(config, place(target), content=listing(target)))
                continue
            files.append(File.generated(config, place(target), abs_src_path=str(target)))
            if target.suffix == ".md":
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write links for where things lie in the site."""
    if page.file.abs_src_path is None:  # a folder's names
        return markdown
    source, folder = Path(page.file.abs_src_path), posixpath.dirname(page.file.src_uri)

    def written(link: re.Match[str]) -> str:
        target = resolved(source, link[2])
        if target is None:
            return link[0]
        return f"{link[1]}{posixpath.relpath(place(target), folder)}{link[3] or ''}{link[4]}"

    return _LINK.sub(written, markdown)


def targets(page: Path) -> list[Path]:
    """The files that a page links to."""
    found = (resolved(page, link[2]) for link in _LINK.finditer(page.read_text(encoding="utf-8")))
    return [target for target in found if target is not None]


def resolved(page: Path, target: str) -> Path | None:
    """The file that a link means, of a folder its README, or the folder; None for a URL, and for what is not
    there."""
    if _URL.match(target):
        return None
    path = (page.parent / target).resolve()
    path = path / "README.md" if (path / "README.md").is_file() else path
    return path if path.exists() and ROOT in path.parents else None


def listing(folder: Path) -> str:
    """A page with the names in a folder; those of the book's own lie beside it in the site."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    lines = [f"- [{name}]({name})" if DOCS in folder.parents else f"- `{name}`" for name in names]
    return "\n".join([f"# {folder.relative_to(ROOT).as_posix()}", "", *lines])


def place(file: Path) -> str:
    """Where a file of the repository lies among the site's sources; a page of a report, which would have the name of
    the page that its Markdown becomes, lies outside."""
    if file.is_dir():
        return f"{place(file / 'index')}.md"
    if DOCS in file.parents and file.suffix != ".html":
        return file.relative_to(DOCS).as_posix()
    return f"{OUTSIDE}/{file.relative_to(ROOT).as_posix()}"
