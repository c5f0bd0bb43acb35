"""``bin``: the token ids of a text in ``FILE.bin`` without a header, as in LongLoRA's test sets.

Ids are unsigned and little-endian: 16 bits wide if the vocabulary allows, otherwise 32. A file that is written here
also has a record ``FILE.bin.json`` of the width and the tokenizer. A file without one is taken for LongLoRA's: 16 bits,
of any tokenizer.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tape_ds import storage
from tape_ds.data.sources import token_headers
from tape_ds.data.sources.base import TokenSource
from tape_ds.data.sources.file_identity import file_identity
from tape_ds.errors import Problem, UserError, redacted

FORMAT = 1
WIDTHS: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
# the width of a file without a record
BARE = "uint16"
# ids at the beginning of a file that are checked before it is read
_CHECKED = 65_536
# upper halves of 32-bit ids are below this: no vocabulary has 2^20 entries
_HIGH = 16
# ids that are not mostly below ``_HIGH`` by chance
_ENOUGH = 64
# a header of some other format may precede them
_MOSTLY = 0.9


@dataclass(frozen=True)
class TokenFileRecord:
    # a name of `WIDTHS`
    width: str
    tokens: int
    documents: int
    # fingerprint, see `tokenizer_fingerprint`
    tokenizer: str
    # entries of the tokenizer
    vocabulary: int
    sha256: str
    # fingerprints of the documents' sources by spec
    sources: dict[str, str]
    # the rule by which documents were chosen from the sources
    choice: dict[str, Any]
    format: int = FORMAT


def record_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def read_record(path: Path) -> TokenFileRecord | None:
    """Return the record of a file, if it exists; raise ValueError if it is invalid."""
    record = record_path(path)
    if not record.exists():
        return None
    try:
        found = TokenFileRecord(**json.loads(record.read_text(encoding="utf-8")))
    except TypeError as error:
        # other fields
        raise ValueError(f"{record.name} is of another format than {FORMAT}") from error
    if found.format != FORMAT or found.width not in WIDTHS or not isinstance(found.tokens, int):
        raise ValueError(f"{record.name} is of another format than {FORMAT}")
    return found


def write(
    path: Path,
    documents: Iterable[np.ndarray],
    *,
    tokenizer: str,
    vocabulary: int,
    sources: Mapping[str, str],
    choice: Mapping[str, Any],
) -> TokenFileRecord:
    """Concatenate ``documents``, token ids int [n] each, into a file, and write its record.

    Both files are complete before they get their names, the record first: after a crash in between, readers refuse the
    file that does not fit its record.
    """
    width = next(name for name, width in WIDTHS.items() if vocabulary - 1 <= np.iinfo(width).max)
    counts = {"tokens": 0, "documents": 0}

    def fill(aside: Path) -> None:
        with open(aside, "wb") as file:
            for ids in documents:
                file.write(ids.astype(WIDTHS[width]).tobytes())
                counts["tokens"] += len(ids)
                counts["documents"] += 1
        if counts["tokens"] == 0:
            wrong, remedy = (
                "no document has a token, or none enough",
                "name data that hold text, or lower --min_tokens",
            )
            raise UserError(Problem("--data", list(sources), wrong, remedy))
        storage.sync(aside)
        record = TokenFileRecord(
            width=width,
            **counts,
            tokenizer=tokenizer,
            vocabulary=vocabulary,
            sha256=storage.digest(aside),
            sources={redacted(spec): fingerprint for spec, fingerprint in sources.items()},
            choice=dict(choice),
        )
        storage.write_json(record_path(path), dataclasses.asdict(record))

    storage.write_file(path, fill)
    written = read_record(path)
    assert written is not None
    return written


class TokenFile(TokenSource):
    """``bin:FILE``: written by LongLoRA's authors, or by ``tape-ds prepare-test-set`` with a record.

    Its documents have no separator, so that the file is one document here.
    """

    kind = "bin"
    form = "bin:FILE"
    stream = True
    other_ids = (
        "give the model of the tokenizer that made them, or tokenise the text again with this model's; "
        "ids of 32 bits are tokens:FILE#uint32&end=file"
    )

    def check(self) -> list[Problem]:
        """Also look for other formats, and for ids wider than 16 bits, in a file without a record."""
        # unlike Path.is_file, False for a name that is too long
        if not self.rest or not os.path.isfile(self.path):
            reason = (
                "a folder, not a file" if self.rest and os.path.isdir(self.path) else "no such file"
            )
            return [self.problem(reason, f"check the path; relative ones start at {Path.cwd()}")]
        try:
            record = read_record(self.path)
        except (OSError, ValueError) as error:
            return [
                self.problem(
                    f"its record cannot be read: {error}", "write both again, or remove the record"
                )
            ]
        width, size = WIDTHS[record.width if record else BARE], self.path.stat().st_size
        if record is not None and size != record.tokens * width.itemsize:
            reason = f"{size:,} bytes, where its record has {record.tokens:,} ids of {width.itemsize} bytes"
            return [self.problem(reason, "write it again")]
        if record is None and (others := list(self._other_contents(size))):
            return others
        if size == 0:
            return [self.problem("the file is empty", "write it again, or leave it out")]
        if size % width.itemsize != 0:
            reason = f"{size:,} bytes are not a multiple of {width.itemsize}, the bytes of an id"
            return [self.problem(reason, "bin: reads unsigned 16-bit token ids; write them so")]
        return []

    def _other_contents(self, size: int) -> Iterator[Problem]:
        """Yield a problem if a file without a record does not begin as 16-bit ids do: read so, other contents would be
        in many a vocabulary."""
        ids = np.fromfile(self.path, WIDTHS[BARE], _CHECKED)
        head = ids[: token_headers.HEAD // 2].tobytes()
        wanted = "not unsigned 16-bit token ids without a header"
        other = token_headers.format_of(head, size)
        if other in token_headers.READABLE:
            whole = "#end=file" if head.startswith(token_headers.NUMPY) else ""
            remedy = f"read it with its header: tokens:{self.path}{whole}"
            yield self.problem(f"it begins as {other}, {wanted}", remedy)
        elif beside := [file.name for file in token_headers.indexes(self.path) if file.is_file()]:
            wrong = f"{', '.join(beside)} has the ends of its documents, which bin: does not read"
            yield self.problem(wrong, f"name it tokens:{self.path}")
        elif other is not None:
            yield self.problem(
                f"it begins as {other}, {wanted}", "name a file of token ids, or its text"
            )
        elif _are_wide(ids):
            remedy = f"read them as tokens:{self.path}#uint32&end=file (or uint64), or write them with numpy.save"
            yield self.problem(f"ids of 32 or 64 bits, {wanted}", remedy)
        elif header := token_headers.header_like(head, size):
            remedy = "write the ids alone, or with numpy.save and name them tokens:FILE.npy"
            yield self.problem(f"it has a header that is not known ({header}), {wanted}", remedy)

    def token_rows(self) -> Iterator[tuple[str, np.ndarray]]:
        record = read_record(self.path)
        if record is not None and storage.digest(self.path) != record.sha256:
            raise UserError(
                self.problem("its contents are not those of its record", "write it again")
            )
        width = WIDTHS[record.width if record else BARE]
        yield self.path.name, np.memmap(self.path, width, mode="r")

    def recorded_tokenizer(self) -> str | None:
        record = read_record(self.path)
        return None if record is None else record.tokenizer

    def fingerprint(self) -> str:
        """Hash the width and the contents (:func:`file_identity` without a record)."""
        record = read_record(self.path)
        parts = (record.width, record.sha256) if record else (BARE, file_identity(self.path))
        return hashlib.sha256("\0".join([self.kind, *parts]).encode()).hexdigest()


def _are_wide(ids: np.ndarray) -> bool:
    """Return whether every second of ``ids``, uint16 [n], is the upper half of a wider id."""
    seconds = ids[1::2]
    if len(seconds) < _ENOUGH:
        return len(seconds) > 0 and int(seconds.max()) == 0
    return bool((seconds < _HIGH).mean() >= _MOSTLY)
