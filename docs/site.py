"""What the site needs beside the pages: the files outside docs/ that they link to, so that no link leads out of it.

A page of the repository may link to anything in it, as ``memory.md`` does to ``../ds_configs/README.md``. mkdocs knows
the folder docs/ alone. So each file outside that a page names becomes part of the site, below ``repository/``, Markdown
as a page whose own links are followed in turn; a folder becomes a page with the names in it; and links are written anew
for where things lie there. Code within a text is told where a narrow column may break it. mkdocs calls the functions
that begin with ``on_``.
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
_MARKUP = re.compile(r"(<head>.*?</head>|<script.*?</script>|<pre.*?</pre>|<[^>]*>)", re.S)
_ENTITY = re.compile(r"(&[^;\s]+;)")
_WORD = re.compile(r"[^\s&;]+")
_JOINT = re.compile(
    r"(?<=\w[_/=:])(?=[\w*])|(?<=\w,)(?=[a-z])|(?<=\w\.)(?=[^\W\d]{6})|(?<=[a-z])(?=[A-Z][a-z])|(?<=[^\W_]{20})(?=\w)"
)
LINE = 28
"""Letters of code that a telephone shows in a line of a text."""
_WHOLE = re.compile(r"(?<![\w-])--[a-z]+")
_POWER = re.compile(r"(?<![\w.])\d[\d.]*e-\d+")


def on_files(files: Files, config: MkDocsConfig) -> Files:
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
    """Rewrite links for the places of files in the site."""
    if page.file.abs_src_path is None:  # a folder's names
        return markdown
    source, folder = Path(page.file.abs_src_path), posixpath.dirname(page.file.src_uri)

    def written(link: re.Match[str]) -> str:
        target = resolved(source, link[2])
        if target is None:
            return link[0]
        return f"{link[1]}{posixpath.relpath(place(target), folder)}{link[3] or ''}{link[4]}"

    return _LINK.sub(written, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Let code break behind its joints (``tape_ds/`` ``model.py``) in a cell, and where it is longer than a line of a
    telephone; and nothing within ``--`` or ``1e-3``."""
    parts, in_code, in_table = _MARKUP.split(output), False, False
    for at, part in enumerate(parts):
        if at % 2:
            in_code = part == "<code>" or (in_code and part != "</code>")
            in_table = part == "<table>" or (in_table and part != "</table>")
        else:
            parts[at] = _POWER.sub(whole, breakable(part, 0 if in_table else LINE) if in_code else part)
    return "".join(parts)


def breakable(code: str, shortest: int) -> str:
    """Code with places to break in its words of more letters."""

    def jointed(word: re.Match[str]) -> str:
        return _JOINT.sub("<wbr>", word[0]) if len(word[0]) > shortest else word[0]

    pieces = _ENTITY.split(code)
    pieces[::2] = [_WHOLE.sub(whole, _WORD.sub(jointed, piece)) for piece in pieces[::2]]
    return "".join(pieces)


def whole(found: re.Match[str]) -> str:
    return f'<span class="whole">{found[0]}</span>'


def targets(page: Path) -> list[Path]:
    found = (resolved(page, link[2]) for link in _LINK.finditer(page.read_text(encoding="utf-8")))
    return [target for target in found if target is not None]


def resolved(page: Path, target: str) -> Path | None:
    """Return the file of a link, a folder's README, or the folder; None for a URL or a missing file."""
    if _URL.match(target):
        return None
    path = (page.parent / target).resolve()
    path = path / "README.md" if (path / "README.md").is_file() else path
    return path if path.exists() and ROOT in path.parents else None


def listing(folder: Path) -> str:
    """Return a page with the names of the files in a folder."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    lines = [f"- [{name}]({name})" if DOCS in folder.parents else f"- `{name}`" for name in names]
    return "\n".join([f"# {folder.relative_to(ROOT).as_posix()}", "", *lines])


def place(file: Path) -> str:
    """Return a file's path among the site's sources; an HTML page would collide with that of its Markdown."""
    if file.is_dir():
        return f"{place(file / 'index')}.md"
    if DOCS in file.parents and file.suffix != ".html":
        return file.relative_to(DOCS).as_posix()
    return f"{OUTSIDE}/{file.relative_to(ROOT).as_posix()}"
