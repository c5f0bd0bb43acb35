"""The formats of ``tokens:`` that are a folder with an ``index.json``: MDS of ``streaming``, and litdata's chunks.

Neither package is needed. Both put the number of rows and the offsets of all rows, uint32, in front of a shard.

- MDS (streaming/base/format/mds): the index names every shard and its columns. A row begins with the sizes, uint32, of
  its columns without a fixed one. A column of ids is ``ndarray``, ``ndarray:TYPE`` or ``ndarray:TYPE:SHAPE``, or
  ``bytes`` (older versions of llm-foundry), whose type only its writer knows.
- litdata (streaming/writer.py, ``TokensLoader``): a row is the ids of an item alone, whose type the index has.
"""

import json
from abc import abstractmethod
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tape_ds.data.sources.token_formats import RefusedError, TokenFormat, TokenOptions
from tape_ds.data.sources.token_table import TokenTable

INDEX = "index.json"
# bytes of a shard: its offsets have 32 bits
_LARGEST = 2**32
# MDS's names, and those of Arrow
_CODECS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli"}


class _Shards(TokenFormat):
    """Shards named by an index; a path of these functions is that of one shard."""

    def shards(self, folder: Path) -> list[Path]:
        """Return the shards of a folder, in its index's order, each once."""
        found: dict[int, Path] = {}
        for name, entry in _entries(folder, self).items():
            path = _inside(folder, name)
            if path.is_file():
                found.setdefault(int(entry["number"]), path)
            elif entry["names"][-1] == name and int(entry["number"]) not in found:
                raise ValueError(f"the shard {name} is missing")
        return [found[number] for number in sorted(found)]

    def files(self, path: Path) -> list[Path]:
        return [path]

    def parts(self, path: Path, options: TokenOptions) -> int:
        return 1

    @abstractmethod
    def entries(self, index: dict[str, Any]) -> list[tuple[list[str], dict[str, Any]]]:
        """Return (names that it may have, entry) of every shard of an index."""


class Mds(_Shards):
    name = "MDS"
    takes = ("width", "column")
    # names of a column of ids, where there are several columns
    USUAL = ("tokens", "input_ids")
    # codes of a type that stands in front of every row
    TYPES: ClassVar[dict[int, str]] = {
        8: "u1",
        9: "i1",
        16: "<u2",
        17: "<i2",
        32: "<u4",
        33: "<i4",
        64: "<u8",
        65: "<i8",
    }

    def entries(self, index: dict[str, Any]) -> list[tuple[list[str], dict[str, Any]]]:
        """A shard that is stored compressed may have been decompressed in its place."""
        found = []
        for shard in index["shards"]:
            stored = [shard["raw_data"], *([shard["zip_data"]] if shard["zip_data"] else [])]
            found.append(([str(each["basename"]) for each in stored], shard))
        return found

    def check(self, path: Path, options: TokenOptions) -> None:
        shard = _entry(path, self)
        self._column(shard, options)
        self._codec(path, shard)
        stored = shard["zip_data"] if _is_compressed(path, shard) else shard["raw_data"]
        if path.stat().st_size != stored["bytes"]:
            raise ValueError(
                f"{path.name} has {path.stat().st_size:,} bytes, where {INDEX} has {stored['bytes']:,}"
            )

    def table(self, path: Path, options: TokenOptions) -> TokenTable:
        shard = _entry(path, self)
        number = self._column(shard, options)
        data = _contents(path, self._codec(path, shard), int(shard["raw_data"]["bytes"]))
        offsets = _offsets(data, path, shard["samples"])
        sizes = shard["column_sizes"]
        rows = []
        for row in range(len(offsets) - 1):
            at = int(offsets[row])
            end = int(offsets[row + 1])
            begin = at + 4 * sizes.count(None)
            length = 0
            for column in range(number + 1):
                begin += length
                length = sizes[column]
                if length is None:
                    length = int(np.frombuffer(data, "<u4", 1, at)[0])
                    at += 4
            if begin + length > end:
                raise ValueError(f"row {row} of {path.name} is longer than its place")
            rows.append(
                self._ids(data[begin : begin + length], shard["column_encodings"][number], options)
            )
        return TokenTable.of_rows(rows)

    def _codec(self, path: Path, shard: dict[str, Any]) -> str | None:
        if not _is_compressed(path, shard):
            return None
        codec = str(shard["compression"]).partition(":")[0]
        if codec not in _CODECS:
            raise RefusedError(
                f"{path.name} is compressed with {codec}", "decompress it, or write it with zstd"
            )
        return _CODECS[codec]

    def _column(self, shard: dict[str, Any], options: TokenOptions) -> int:
        """Return the number of the column of ids."""
        if shard["format"] != "mds" or shard["version"] != 2:
            raise ValueError(
                f"its shards are {shard['format']!r} of version {shard['version']}, not MDS of version 2"
            )
        names = shard["column_names"]
        encodings = shard["column_encodings"]
        known = [
            name
            for name, kind in zip(names, encodings, strict=True)
            if kind.split(":")[0] in ("ndarray", "bytes")
        ]
        wanted = options.column
        if wanted is None and known:
            usual = [name for name in self.USUAL if name in known]
            wanted = (usual or known)[0]
            if len(usual) > 1 or (not usual and len(known) != 1):
                raise RefusedError(
                    f"its columns are {', '.join(names)}",
                    "say which has the ids: column=NAME after #",
                )
        if wanted not in known:
            sought = f"no column {wanted!r}" if wanted else "no column"
            reason = f"{sought} of arrays or bytes (columns: {', '.join(names)})"
            raise RefusedError(
                reason,
                "name a column of token ids; a column of texts is tokenised from jsonl: or parquet:",
            )
        number: int = names.index(wanted)
        if encodings[number] == "bytes" and options.width is None:
            reason = f"its column {wanted!r} is bytes, and nothing says how wide an id is in them"
            raise RefusedError(
                reason, "write the width after #: int64 where llm-foundry wrote them"
            )
        if encodings[number] != "bytes" and options.width is not None:
            reason = f"its column {wanted!r} has a type, {encodings[number]}, and {options.width} is given"
            raise RefusedError(reason, f"remove {options.width}")
        kind = encodings[number].split(":")
        if len(kind) > 1 and not kind[1].startswith(("int", "uint")):
            raise ValueError(f"its column {wanted!r} holds {kind[1]}, not whole numbers")
        return number

    def _ids(self, data: memoryview, encoding: str, options: TokenOptions) -> np.ndarray:
        """Return the ids [n] of a row."""
        _, kind, shape = (*encoding.split(":"), "", "")[:3]
        if encoding == "bytes":
            kind = str(options.width)
        elif not kind:
            if data[0] not in self.TYPES:
                raise ValueError(f"a row holds type {data[0]}, which is none of whole numbers")
            kind = self.TYPES[data[0]]
            data = data[1:]
        if encoding != "bytes" and not shape:
            axes = data[0] >> 2
            if axes != 1:
                raise ValueError(f"a row has {axes} axes, not one")
            data = data[1 + 2 ** (data[0] % 4) :]
        return np.frombuffer(data, np.dtype(kind).newbyteorder("<")).astype(np.int64)


class Litdata(_Shards):
    name = "litdata"
    # the number that the index has -> type, in litdata's lists of torch's and of numpy's types
    TENSORS: ClassVar[dict[int, str]] = {
        11: "u1",
        12: "i1",
        13: "<i2",
        14: "<i2",
        15: "<i4",
        16: "<i4",
        17: "<i8",
        18: "<i8",
        20: "<u2",
    }
    ARRAYS: ClassVar[dict[int, str]] = {
        0: "i1",
        1: "<i2",
        2: "<i4",
        3: "<i8",
        4: "u1",
        5: "<u2",
        6: "<u4",
        7: "<u8",
    }

    def entries(self, index: dict[str, Any]) -> list[tuple[list[str], dict[str, Any]]]:
        config = index["config"]
        return [
            ([str(chunk["filename"])], {**chunk, "config": config}) for chunk in index["chunks"]
        ]

    def check(self, path: Path, options: TokenOptions) -> None:
        chunk = _entry(path, self)
        self._type(chunk)
        if self._codec(chunk) is None and path.stat().st_size != chunk["chunk_bytes"]:
            wrong = f"{path.name} has {path.stat().st_size:,} bytes, where {INDEX} has {chunk['chunk_bytes']:,}"
            raise ValueError(wrong)

    def table(self, path: Path, options: TokenOptions) -> TokenTable:
        chunk = _entry(path, self)
        dtype = self._type(chunk)
        data = _contents(path, self._codec(chunk), int(chunk["chunk_bytes"]))
        offsets = _offsets(data, path, chunk["chunk_size"])
        begin = int(offsets[0])
        ends = (offsets[1:] - begin) // dtype.itemsize
        if ((offsets - begin) % dtype.itemsize).any():
            raise ValueError(f"the rows of {path.name} are no whole ids of {dtype.itemsize} bytes")
        return TokenTable(np.frombuffer(data[begin : int(offsets[-1])], dtype), ends)

    def _type(self, chunk: dict[str, Any]) -> np.dtype[Any]:
        config = chunk["config"]
        if config.get("encryption"):
            raise RefusedError("its chunks are encrypted", "write them without encryption")
        if config.get("compression_level") not in (None, "chunk"):
            wrong = f"its chunks are compressed by {config['compression_level']}"
            raise RefusedError(
                wrong, "write them with compression_level='chunk', or without compression"
            )
        formats = config["data_format"]
        kind, _, number = str(formats[0]).partition(":")
        types = {"no_header_tensor": self.TENSORS, "no_header_numpy": self.ARRAYS}.get(kind)
        if len(formats) != 1 or types is None or chunk.get("dim") is None:
            wrong = f"its items are {', '.join(map(str, formats))}, not one array of ids each"
            raise RefusedError(wrong, "write them with item_loader=TokensLoader()")
        if not number.isdecimal() or int(number) not in types:
            raise ValueError(f"its items are of type {formats[0]}, which is none of whole numbers")
        return np.dtype(types[int(number)])

    def _codec(self, chunk: dict[str, Any]) -> str | None:
        compression = chunk["config"].get("compression")
        codec = str(compression).partition(":")[0] if compression else None
        if codec not in (None, "zstd"):
            raise ValueError(f"its chunks are compressed with {codec}, and zstd is read")
        return codec


KINDS = (Mds(), Litdata())


def folder_format(folder: Path) -> _Shards:
    """Return the format of a folder with an index; raise ValueError if it is of neither."""
    index = _read(folder / INDEX, (folder / INDEX).stat().st_mtime_ns)
    for kind, needed in zip(KINDS, ("shards", "chunks"), strict=True):
        if isinstance(index.get(needed), list):
            return kind
    raise ValueError(f"{INDEX} is neither that of MDS nor that of litdata")


@lru_cache(maxsize=8)
def _read(file: Path, changed: int) -> dict[str, Any]:
    """Return an index; ``changed``, its date, is only the cache's."""
    try:
        index = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{INDEX} cannot be read: {error}") from error
    if not isinstance(index, dict):
        raise ValueError(f"{INDEX} holds no object")
    return index


def _entries(folder: Path, kind: _Shards) -> dict[str, dict[str, Any]]:
    """Return name -> entry of every shard, with all its names and its number."""
    return _listed(folder / INDEX, (folder / INDEX).stat().st_mtime_ns, kind.name)


# every shard asks for its entry
@lru_cache(maxsize=8)
def _listed(file: Path, changed: int, name: str) -> dict[str, dict[str, Any]]:
    (kind,) = (each for each in KINDS if each.name == name)
    try:
        entries = kind.entries(_read(file, changed))
        found = {}
        for number, (names, entry) in enumerate(entries):
            for name in names:
                found[name] = {**entry, "names": names, "number": number}
        return found
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{INDEX} is not that of {kind.name}: {error!r}") from error


def _entry(path: Path, kind: _Shards) -> dict[str, Any]:
    # a merged index names shards of folders below it
    for folder in path.parents:
        if (folder / INDEX).is_file():
            entries = _entries(folder, kind)
            name = path.relative_to(folder).as_posix()
            if name in entries:
                return entries[name]
    raise ValueError(f"{path.name} is in no {INDEX}")


def _inside(folder: Path, name: str) -> Path:
    """Return the path of a shard; an index names files of its own folder alone."""
    path = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"{INDEX} names {name!r}, which is outside its folder")
    return path


def _is_compressed(path: Path, shard: dict[str, Any]) -> bool:
    return bool(shard["zip_data"]) and path.name == Path(shard["zip_data"]["basename"]).name


def _contents(path: Path, codec: str | None, size: int) -> memoryview:
    """Return the bytes of a shard, mapped or decompressed; never more than ``size``, which its index has."""
    if codec is None:
        return np.memmap(path, np.uint8, "r").data.cast("B")
    if not 0 < size < _LARGEST:
        raise ValueError(f"{path.name} would have {size:,} bytes")
    with path.open("rb") as file, pa.CompressedInputStream(file, codec) as stream:
        data = stream.read(size + 1)
    if len(data) != size:
        raise ValueError(f"{path.name} has other than {size:,} bytes when decompressed")
    return memoryview(data)


def _offsets(data: memoryview, path: Path, rows: int) -> np.ndarray:
    """Return where the rows begin and the last one ends, int64 [rows + 1]."""
    begin = 4 * (rows + 2)
    if rows < 0 or len(data) < begin or int(np.frombuffer(data, "<u4", 1)[0]) != rows:
        raise ValueError(f"{path.name} does not begin with its {rows:,} rows")
    offsets = np.frombuffer(data, "<u4", rows + 1, 4).astype(np.int64)
    if offsets[0] < begin or offsets[-1] != len(data) or (np.diff(offsets) < 0).any():
        raise ValueError(f"the offsets of {path.name} are not those of its rows")
    return offsets
