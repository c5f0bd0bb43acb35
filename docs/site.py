"""The files outside docs/ that pages link to, added to the site, so that no link leads out of it.

A page may link to any file of the repository, as ``memory.md`` does to ``../ds_configs/README.md``, but mkdocs knows
docs/ alone. Each linked file outside becomes part of the site, below ``repository/``: Markdown as a page, whose links
are followed in turn, and a folder as a page with its file names. mkdocs calls the functions that begin with ``on_``.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_URL = re.compile(r"^[a-z][a-z0-9+.-]*:", re.I)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    taken = set(waiting)
    while waiting:
        page = waiting.pop()
        for link in _LINK.finditer(page.read_text(encoding="utf-8")):
            target = resolved(page, link[2])
            if (
                target is None
                or target in taken
                or files.get_file_from_path(place(target)) is not None
            ):
                continue
            taken.add(target)
            if target.is_dir():
                names = sorted(path.name for path in target.iterdir() if path.is_file())
                lines = [
                    f"- [{name}]({name})" if DOCS in target.parents else f"- `{name}`"
                    for name in names
                ]
                text = "\n".join([f"# {target.relative_to(ROOT).as_posix()}", "", *lines])
                files.append(File.generated(config, place(target), content=text))
                continue
            files.append(File.generated(config, place(target), abs_src_path=str(target)))
            if target.suffix == ".md":
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links for the places of files in the site."""
    if page.file.abs_src_path is None:  # the page of a folder
        return markdown
    source, folder = Path(page.file.abs_src_path), posixpath.dirname(page.file.src_uri)

    def rewritten(link: re.Match[str]) -> str:
        target = resolved(source, link[2])
        if target is None:
            return link[0]
        return f"{link[1]}{posixpath.relpath(place(target), folder)}{link[3] or ''}{link[4]}"

    return _LINK.sub(rewritten, markdown)


def resolved(page: Path, target: str) -> Path | None:
    """Return the file of a link, a folder's README, or the folder; None for a URL or a missing file."""
    if _URL.match(target):
        return None
    path = (page.parent / target).resolve()
    path = path / "README.md" if (path / "README.md").is_file() else path
    return path if path.exists() and ROOT in path.parents else None


def place(file: Path) -> str:
    """Return a file's path among the site's sources; an HTML page would collide with that of its Markdown."""
    if file.is_dir():
        return f"{place(file / 'index')}.md"
    if DOCS in file.parents and file.suffix != ".html":
        return file.relative_to(DOCS).as_posix()
    return f"repository/{file.relative_to(ROOT).as_posix()}"
