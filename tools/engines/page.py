"""Write the tables of engines into the pages of the book that show them, between their marks."""

from collections.abc import Callable, Mapping

from tape_ds import storage
from tape_ds.engines import pages
from tape_ds.installation import ROOT

TABLES: Mapping[str, Callable[[], str]] = {
    "exported-llama": pages.of_exported,
    "exported-others": lambda: pages.of_exported(("qwen2", "qwen3", "olmo2")),
    "traits": pages.of_traits,
}
"""Name in a page's mark -> what makes the table."""
PAGES = ("docs/export.md", "docs/results/export_readers.md")


def filled(text: str) -> str:
    """Return a page with each table of its marks, as it is now."""
    for name, make in TABLES.items():
        begin = f"<!-- engines: {name} -->\n"
        end = "<!-- end -->"
        before, found, rest = text.partition(begin)
        if found:
            _, _, after = rest.partition(end)
            text = f"{before}{begin}\n{make()}\n\n{end}{after}"
    return text


def write() -> None:
    for page in PAGES:
        path = ROOT / page
        storage.write_text(path, filled(path.read_text(encoding="utf-8")))
