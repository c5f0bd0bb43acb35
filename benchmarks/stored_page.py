"""The result of a benchmark as two files of one name: the figures as JSON, and the page that shows them."""

from pathlib import Path

from tape_ds import results, storage


def write_page(stored: results.Result, file: Path, text: str) -> None:
    """Write ``file``, a ``.json``, and ``text`` as its ``.md``; print the text."""
    results.save(stored, file)
    storage.write_text(file.with_suffix(".md"), text)
    print(text)


def versions_of(stored: results.Result, *packages: str) -> str:
    return ", ".join(f"{name} {stored.versions[name]}" for name in packages)
