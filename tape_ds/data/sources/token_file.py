"""``bin``: one long document that is token ids already, in a file of nothing else."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tape_ds import storage
from tape_ds.data import token_file
from tape_ds.data.sources.base import OTHER_TOKENIZER, TokenSource, file_identity
from tape_ds.errors import Problem, UserError

_LOOKED_AT = 65_536
"""Ids at the beginning of a file that are looked at before it is read."""
_HIGH = 16
"""Upper halves of 32-bit ids are below this: no vocabulary has 2^20 entries."""
_ENOUGH = 64
"""Ids of which not every one is below ``_HIGH`` by chance."""


class TokenFile(TokenSource):
    """``bin:FILE``: written by LongLoRA's authors, or by ``tools/prepare_test_set.py`` with a record beside it.

    Documents follow on one another in it without a separator, so that the whole is one document here.
    """

    kind = "bin"
    form = "bin:FILE"
    stream = True

    def __init__(self, spec: str, field: str = "data"):
        super().__init__(spec, field)
        self.path = Path(self.rest).expanduser()

    def check(self) -> list[Problem]:
        """The file is there, as long as its record says, and not of wider ids than it is read with."""
        if not self.rest or not self.path.is_file():
            return [self.problem("no such file", f"check the path; relative ones start at {Path.cwd()}")]
        try:
            record = token_file.read_record(self.path)
        except (OSError, ValueError) as error:
            return [self.problem(f"its record cannot be read: {error}", "write both anew, or remove the record")]
        width, size = token_file.WIDTHS[record.width if record else token_file.BARE], self.path.stat().st_size
        if record is not None and size != record.tokens * width.itemsize:
            wrong = f"{size:,} bytes, where its record has {record.tokens:,} ids of {width.itemsize} bytes"
            return [self.problem(wrong, "write it anew")]
        if size == 0:
            return [self.problem("the file is empty", "name data that hold text")]
        if size % width.itemsize:
            wrong = f"{size:,} bytes are no whole number of ids of {width.itemsize} bytes"
            return [self.problem(wrong, "bin: reads unsigned 16-bit token ids; write them so")]
        ids = np.fromfile(self.path, width, _LOOKED_AT)
        seconds = ids[1::2]
        if record is None and len(seconds) and seconds.max() < (_HIGH if len(seconds) >= _ENOUGH else 1):
            wrong = f"every second id is at most {seconds.max()}: these are ids of 32 or 64 bits, read as 16"
            return [self.problem(wrong, "write 16-bit ids, or use tools/prepare_test_set.py, which notes the width")]
        return []

    def token_rows(self) -> Iterator[tuple[str, np.ndarray]]:
        """The one document, named after the file.

        Raises:
            UserError: the bytes are not those of the record.
        """
        record = token_file.read_record(self.path)
        if record is not None and storage.digest(self.path) != record.sha256:
            raise UserError(self.problem("its contents are not those of its record", "write it anew"))
        width = token_file.WIDTHS[record.width if record else token_file.BARE]
        yield self.path.name, np.memmap(self.path, width, mode="r")

    def check_tokenizer(self, identity: str) -> list[Problem]:
        """Of a file with a record; another does not say whose ids it holds."""
        record = token_file.read_record(self.path)
        return [] if record is None or record.tokenizer == identity else [self.problem(*OTHER_TOKENIZER)]

    def fingerprint(self) -> str:
        """Of the ids: their width and the file's contents (:func:`file_identity` where there is no record)."""
        record = token_file.read_record(self.path)
        parts = (record.width, record.sha256) if record else (token_file.BARE, file_identity(self.path))
        return hashlib.sha256("\0".join([self.kind, *parts]).encode()).hexdigest()

    def identities(self, split: str) -> set[str]:
        """The file, links resolved."""
        return {self.path.resolve().as_posix()}
