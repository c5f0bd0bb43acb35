"""Cached folders of data, each named after a hash of everything that decides its contents, with the rows left out.

A cache that is not writable serves what it has.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_ds import building
from tape_ds.data.bad_rows import SourceBadRows
from tape_ds.errors import Problem, UserError

if TYPE_CHECKING:
    from datasets import Dataset, Features


def key(kind: str, **parts: Any) -> str:
    """Return ``kind-HASH``: equal for equal ``parts`` (anything that JSON can hold), in every process."""
    described = json.dumps(parts, sort_keys=True)
    return f"{kind}-{hashlib.sha256(described.encode()).hexdigest()[:32]}"


def folder_with_record(
    bad_rows: SourceBadRows, cache_dir: str | Path, name: str, build: Callable[[Path], None]
) -> Path:
    """As :func:`tape_ds.building.folder`, with a record of the rows that ``build`` leaves out, which count for every
    run that reads the folder.
    """

    def build_with_record(folder: Path) -> None:
        build(folder)
        bad_rows.write(folder / bad_rows.FILE)

    folder = building.folder(cache_dir, name, build_with_record)
    bad_rows.count(folder / bad_rows.FILE)
    return folder


def rows(
    cache_dir: str | Path,
    key: str,
    features: "Features",
    make: Callable[[], Iterator[dict[str, Any]]],
    bad_rows: SourceBadRows | None = None,
) -> "Dataset":
    """Return the rows of ``make()``, memory-mapped from their folder; ``bad_rows`` counts those left out."""
    from datasets import load_from_disk

    folder = building.folder if bad_rows is None else partial(folder_with_record, bad_rows)
    return load_from_disk(str(folder(cache_dir, key, partial(write, key, features, make))))


def write(key: str, features: "Features", make: Callable[[], Iterator[dict[str, Any]]], folder: Path) -> None:
    """Write the rows of ``make()`` into a new folder, ``key`` as their fingerprint."""
    from datasets import Dataset
    from datasets.exceptions import DatasetGenerationError

    try:
        work = str(folder.with_name("work"))
        built = Dataset.from_generator(make, features=features, cache_dir=work, fingerprint=key)
    except DatasetGenerationError as error:  # the library hides what the generator raised
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise
    built.save_to_disk(str(folder))


def some(rows: Iterator[dict[str, Any]], none: Problem) -> Iterator[dict[str, Any]]:
    """Yield ``rows``; raise ``none`` if there are none, since an empty folder must not be cached."""
    first = next(rows, None)
    if first is None:
        raise UserError(none)
    yield first
    yield from rows
