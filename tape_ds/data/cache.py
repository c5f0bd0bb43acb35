"""Names of cached folders of data, and the rows that were left out of one.

A cache that may only be read serves what it holds.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tape_ds import building
from tape_ds.data.bad_rows import SourceBadRows
from tape_ds.data.sources.base import dated_identities


def key(kind: str, **parts: Any) -> str:
    """Return a folder's name, ``kind-HASH``: equal for equal ``parts`` (anything JSON can hold), in every process."""
    described = json.dumps(parts, sort_keys=True)
    return f"{kind}-{hashlib.sha256(described.encode()).hexdigest()[:32]}"


def known(cache_dir: str | Path, name: Callable[[], str]) -> str:
    """Return ``name()``, of :func:`key`; the one that an older version gave the folder, where only that is there."""
    now = name()
    if (Path(cache_dir) / now).exists():
        return now
    with dated_identities():
        before = name()
    return before if (Path(cache_dir) / before).exists() else now


def folder_with_record(
    bad_rows: SourceBadRows, cache_dir: str | Path, name: str, build: Callable[[Path], None]
) -> Path:
    """As :func:`tape_ds.building.folder`, with a record of the rows that ``build`` leaves out, which count for every
    run that reads it.

    Raises:
        UserError: with these there are more than the run's limit.
    """

    def build_with_record(folder: Path) -> None:
        build(folder)
        bad_rows.write(folder / bad_rows.FILE)

    found = building.folder(cache_dir, name, build_with_record)
    bad_rows.count(found / bad_rows.FILE)
    return found
