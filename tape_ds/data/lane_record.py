"""What a lane has tokenised so far: two numbers a document, so that a resumed run need not tokenise it again.

To go on at row ``k`` a lane must know which document holds token ``k * window``, and only tokenising tells how many
tokens a document has. So each document's characters and tokens are kept, 8 bytes a document, in the order in which the
lane reads them, with a mark at the end of every shard: whole shards are then left out unread, and the documents of the
one in question are read but not tokenised.

The record saves work and decides nothing: without it, or with an earlier state of it, the same rows come out later. So
a disk that is full or read-only is no reason to stop: it is told once, and training goes on without the record. A
lane's documents are a pure function of what names the record's folder, so whoever writes entry ``n`` writes the same
bytes at the same place, and any number of processes may do so at once. Characters are compared on the way, which tells
data that changed since.
"""

import logging
import os
from pathlib import Path

import numpy as np

from tape_ds import storage
from tape_ds.data.sources import Document
from tape_ds.errors import Problem, UserError

logger = logging.getLogger(__name__)

# An entry is (characters + 1, tokens), so that a hole in the file, all 0, is none.
_ENTRY = np.dtype(("<i4", 2))
_END_OF_SHARD = (-1, 0)
_WRITTEN_AT_ONCE = 256


class LaneRecord:
    """The record of one lane, read and written from its beginning on; ``path`` None keeps nothing."""

    def __init__(self, path: Path | None):
        self.path = path
        self._known = _read(path) if path is not None and path.exists() else np.empty((0, 2), np.int32)
        self._ends = np.flatnonzero(self._known[:, 0] == _END_OF_SHARD[0])
        self._at = 0
        self._kept = path is not None
        self._new: list[tuple[int, int]] = []

    def ahead(self) -> tuple[list[int], bool]:
        """Tokens of each document of the shard that begins here, as far as known, and whether that is all of them."""
        after = np.searchsorted(self._ends, self._at)
        whole = bool(after < len(self._ends))
        end = int(self._ends[after]) if whole else len(self._known)
        return self._known[self._at : end, 1].tolist(), whole

    def leave_out(self, documents: int) -> None:
        """Go past a shard of so many documents, all known, that is not read at all."""
        self._at += documents + 1

    def replay(self, document: Document | None) -> None:
        """Go past a known document that is read and not tokenised.

        Raises:
            UserError: it is not the one that was recorded (None: there is none).
        """
        if document is None or len(document.text) + 1 != self._known[self._at, 0]:
            raise UserError(self._changed(document))
        self._at += 1

    def add(self, document: Document, tokens: int) -> None:
        """Go past a document that was tokenised.

        Raises:
            UserError: the record has another one here.
        """
        self._write((len(document.text) + 1, tokens), document)
        if len(self._new) >= _WRITTEN_AT_ONCE:
            self._flush()

    def end(self) -> None:
        """The shard ends here.

        Raises:
            UserError: the record has more of it.
        """
        self._write(_END_OF_SHARD, None)
        self._flush()

    def _write(self, entry: tuple[int, int], document: Document | None) -> None:
        if self._at < len(self._known) and entry != tuple(self._known[self._at].tolist()):
            raise UserError(self._changed(document))
        self._new.append(entry)
        self._at += 1

    def _flush(self) -> None:
        if self.path is not None and self._kept:
            try:
                _write_at(self.path, self._new, self._at - len(self._new))
            except OSError as error:
                self._kept = False  # nothing may follow behind what could not be written
                _tell(self.path.parent, error)
        self._new.clear()

    def _changed(self, document: Document | None) -> Problem:
        met = "the shard ends earlier" if document is None else f"{document.name} is not the document it was"
        return Problem(
            "data_cache",
            str(self.path),
            f"the training data are not those this record was made of: {met}",
            "bring the data back (for the hub name a commit, @REV), or delete this folder and start the run anew",
        )


def _write_at(path: Path, entries: list[tuple[int, int]], place: int) -> None:
    """Write ``entries`` as the ones from ``place`` on; a full disk may take a part of them before it refuses."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw, offset = memoryview(np.array(entries, "<i4").tobytes()), place * _ENTRY.itemsize
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        while raw:
            written = os.pwrite(file, raw, offset)
            raw, offset = raw[written:], offset + written
    finally:
        os.close(file)


_told: set[Path] = set()
"""Folders of which :func:`_tell` has spoken."""


def _tell(folder: Path, error: OSError) -> None:
    """Say it once in a process, however many lanes have a record in the folder."""
    if folder not in _told:
        _told.add(folder)
        lost = "the lengths of documents are no longer kept, so a resumed run tokenises them again"
        logger.warning("%s; %s", storage.explain(error, folder), lost)


def _read(path: Path) -> np.ndarray:
    """Entries [n, 2] up to the first hole; a last entry cut short (a killed run) is left out."""
    raw = path.read_bytes()
    entries = np.frombuffer(raw[: len(raw) // _ENTRY.itemsize * _ENTRY.itemsize], "<i4").reshape(-1, 2)
    holes = np.flatnonzero(entries[:, 0] == 0)
    return entries[: holes[0]] if len(holes) else entries
