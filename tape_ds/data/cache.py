"""Cached folders of data, each named after a hash of everything that decides its contents, with the rows left out.

A cache that is not writable serves what it has.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import chain
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


def rows(
    cache_dir: str | Path,
    key: str,
    features: "Features",
    make: Callable[[], Iterator[dict[str, Any]]],
    bad_rows: SourceBadRows | None = None,
    *,
    none: Problem,
) -> "Dataset":
    """Return the rows of ``make()``, memory-mapped from their folder.

    Args:
        key: of :func:`key`.
        bad_rows: counts the rows that ``make`` leaves out, also where the folder is there already.
        none: raised if there are no rows, since an empty folder must not be cached.
    """
    from datasets import load_from_disk

    def build(folder: Path) -> None:
        if not write(key, features, make(), folder):
            raise UserError(none)
        if bad_rows is not None:
            bad_rows.write(folder / bad_rows.FILE)

    folder = building.folder(cache_dir, key, build)
    if bad_rows is not None:
        bad_rows.count(folder / bad_rows.FILE)
    return load_from_disk(str(folder))


def write(key: str, features: "Features", rows: Iterator[dict[str, Any]], folder: Path) -> bool:
    """Write ``rows`` into a new folder, ``key`` as their fingerprint; return False and write nothing if there are
    none."""
    from datasets import Dataset
    from datasets.exceptions import DatasetGenerationError

    first = next(rows, None)
    if first is None:
        return False
    try:
        work = str(folder.with_name("work"))
        built = Dataset.from_generator(
            lambda: chain([first], rows), features=features, cache_dir=work, fingerprint=key
        )
    except DatasetGenerationError as error:
        # the library hides what the generator raised
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise
    built.save_to_disk(str(folder))
    return True
