"""The formats of ``tokens:`` that are one file, or a file with an index: how each is recognised and read.

- Megatron (``NAME.bin`` and ``NAME.idx``), megatron/core/datasets/indexed_dataset.py: the index has the type of the
  ids, the length of every sequence, and which sequence begins each document.
- datatrove, nanotron (``NAME.ds``, ``NAME.ds.index``, ``NAME.ds.metadata``), datatrove/pipeline/tokens/tokenizer.py:
  the index has the end of every document, uint64; the metadata the tokenizer's name and the bytes of an id.
- llm.c, modded-nanogpt (``*.bin``), dev/data/data_common.py: 256 int32 in front, the first three a magic number, the
  version and the number of ids. Documents *begin* with the tokenizer's end of text (Llama 3: its begin of text).
- numpy (``*.npy`` of ``numpy.save``): the header has type and shape; of two axes, each row is a document.
- ids without a header: OLMo's ``*.npy``, nanoGPT's ``train.bin``. Nothing tells their width, and it must be given,
  unless OLMo's ``NAME.csv.gz`` has the borders of all documents.
"""

import gzip
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tape_ds.data.sources import token_headers
from tape_ds.data.sources.token_table import Border, TokenTable

WIDTHS = ("uint8", "uint16", "uint32", "uint64", "int32", "int64")
# bytes of a line of OLMo's metadata
_LINE = 2**16
# more entries than vocabularies have
_VOCABULARY = 2**18 + 2**10
# an id from here on is none: it is a sign of another width, or of a header
_LARGEST = 2**24


class RefusedError(ValueError):
    """A file that is whole and is not read as it is; ``remedy`` says what to do."""

    def __init__(self, wrong: str, remedy: str):
        super().__init__(wrong)
        self.remedy = remedy


@dataclass(frozen=True)
class TokenOptions:
    """The settings that a spec gives for its files."""

    # a name of `WIDTHS`
    width: str | None = None
    # of MDS
    column: str | None = None


class TokenFormat(ABC):
    """A way to store token ids; its functions raise ValueError for files that are damaged or of another kind."""

    name: ClassVar[str]
    takes: ClassVar[tuple[str, ...]] = ()
    """Names of the :class:`TokenOptions` that it takes."""

    @abstractmethod
    def files(self, path: Path) -> list[Path]:
        """Return all files that decide what is read."""

    @abstractmethod
    def table(self, path: Path, options: TokenOptions) -> TokenTable:
        """Return all rows; ids are mapped from the disk where they are stored plainly."""

    def check(self, path: Path, options: TokenOptions) -> None:
        """Look at headers and sizes."""
        self.table(path, options)

    def has_documents(self, path: Path) -> bool:
        """Return whether it records where documents end."""
        return True

    def parts(self, path: Path, options: TokenOptions) -> int:
        """Return how many parts of the file may be read separately."""
        return self.table(path, options).parts

    def border(self, path: Path) -> Border | None:
        """Return what divides documents where the format has it."""
        return None

    def tokenizer(self, path: Path) -> str | None:
        """Return the name of the tokenizer, where the format records it."""
        return None


class Megatron(TokenFormat):
    name = "Megatron's .bin and .idx"
    # code -> type; 6 and 7 are floats
    TYPES: ClassVar[dict[int, str]] = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}

    def files(self, path: Path) -> list[Path]:
        return [path.with_suffix(".bin"), path.with_suffix(".idx")]

    def table(self, path: Path, options: TokenOptions) -> TokenTable:
        dtype, ends = self._index(path)
        return TokenTable(_mapped(path.with_suffix(".bin"), dtype), ends)

    def _index(self, path: Path) -> tuple[np.dtype[Any], np.ndarray]:
        """Return the type of an id, and the end of each document, int64 [documents]."""
        data = path.with_suffix(".bin")
        index = path.with_suffix(".idx")
        for file in (data, index):
            if not file.is_file():
                raise ValueError(f"{file.name} is missing")
        head = _head(index)
        begin = 34
        if len(head) < begin or not head.startswith(token_headers.MEGATRON_INDEX):
            if head.startswith(token_headers.MEGATRON_INDEX):
                raise ValueError(f"{index.name} ends within its header")
            reason = f"{index.name} is no index of Megatron"
            other = token_headers.format_of(head, index.stat().st_size)
            if other:
                reason += f": it begins as {other}"
            raise ValueError(reason)
        version, code, sequences, documents = struct.unpack_from("<QBQQ", head, 9)
        if version != 1:
            raise ValueError(f"{index.name} is of version {version}, and 1 is read")
        if code not in self.TYPES:
            raise ValueError(f"{index.name} names type {code}, which is none of whole numbers")
        dtype = np.dtype(self.TYPES[code])
        size = begin + 12 * sequences + 8 * documents
        found = index.stat().st_size
        if found == size + sequences and sequences:
            reason = (
                f"{index.name} has a mode for every sequence: several media, and text alone is read"
            )
            raise RefusedError(reason, "write it without modes (multimodal=False)")
        if found != size:
            raise ValueError(
                f"{index.name} has {found:,} bytes, where its header asks for {size:,}"
            )
        if not sequences or documents < 2:
            raise ValueError(f"{index.name} has no document")
        lengths = np.memmap(index, "<i4", "r", begin, (sequences,))
        pointers = np.memmap(index, "<i8", "r", begin + 4 * sequences, (sequences,))
        borders = np.memmap(index, "<i8", "r", begin + 12 * sequences, (documents,))
        ends = np.cumsum(lengths, dtype=np.int64)
        if int(lengths.min()) < 0:
            raise ValueError(f"{index.name} has a sequence of {int(lengths.min()):,} ids")
        if not np.array_equal(pointers, (ends - lengths) * dtype.itemsize):
            raise ValueError(
                f"the sequences of {index.name} do not follow one another in {data.name}"
            )
        if borders[0] != 0 or borders[-1] != sequences or (np.diff(borders) < 0).any():
            raise ValueError(
                f"the documents of {index.name} are not those of its {sequences:,} sequences"
            )
        if data.stat().st_size != int(ends[-1]) * dtype.itemsize:
            reason = f"{data.name} has {data.stat().st_size:,} bytes, where its index has {int(ends[-1]):,} ids"
            raise ValueError(f"{reason} of {dtype.itemsize}")
        at = np.asarray(borders[1:])
        return dtype, np.where(at > 0, ends[at - 1], 0)


class Datatrove(TokenFormat):
    name = "datatrove's and nanotron's .ds"
    takes = ("width",)

    def files(self, path: Path) -> list[Path]:
        beside = [path, _beside(path, ".index"), _beside(path, ".metadata")]
        return [file for file in beside if file.is_file()]

    def table(self, path: Path, options: TokenOptions) -> TokenTable:
        dtype, ends = self._read(path, options)
        return TokenTable(_mapped(path, dtype), ends)

    def tokenizer(self, path: Path) -> str | None:
        name, _ = self._metadata(path)
        # datatrove's own word where none was given
        if name in ("", "Unknown Tokenizer"):
            return None
        return name

    def _read(self, path: Path, options: TokenOptions) -> tuple[np.dtype[Any], np.ndarray]:
        index = _beside(path, ".index")
        if _beside(path, ".loss").is_file():
            wrong = f"{path.name}.loss leaves tokens out of the loss, which is not done here"
            raise RefusedError(wrong, "to train on all tokens, take that file away")
        if not index.is_file():
            wrong = f"{index.name} is missing, which has the ends of its documents"
            raise RefusedError(
                wrong,
                "copy it too; or name the file otherwise than .ds, and write its width and end=eos",
            )
        if index.stat().st_size == 0 or index.stat().st_size % 8:
            raise ValueError(
                f"{index.name} has {index.stat().st_size:,} bytes, no whole 64-bit numbers"
            )
        ends = np.fromfile(index, "<u8").astype(np.int64)
        size = path.stat().st_size
        total = int(ends[-1])
        width = size // total if total > 0 else 0
        if width not in (2, 4) or width * total != size:
            raise ValueError(
                f"{path.name} has {size:,} bytes, where its index has {total:,} ids of 2 or 4"
            )
        recorded = self._metadata(path)[1]
        if recorded not in (None, width):
            raise ValueError(
                f"{path.name}.metadata has ids of {recorded} bytes, and the index of {width}"
            )
        dtype = np.dtype(f"<u{width}")
        if options.width not in (None, dtype.name):
            raise RefusedError(
                f"its ids are {dtype.name}, and {options.width} is given", f"remove {options.width}"
            )
        return dtype, ends

    def _metadata(self, path: Path) -> tuple[str, int | None]:
        """Return the tokenizer's name and the bytes of an id; "" and None without them."""
        file = _beside(path, ".metadata")
        if not file.is_file():
            return "", None
        with file.open("rb") as opened:
            line = opened.readline(_LINE).decode("utf-8", errors="replace").strip()
        name, _, width = line.rpartition("|")
        if width.isdecimal() and len(width) < 4:
            return name, int(width)
        return name, None


class LlmC(TokenFormat):
    name = "llm.c's token file"
    # tokenizer -> version, type, the token that documents begin with
    KINDS: ClassVar[dict[str, tuple[int, str, int]]] = {
        "gpt-2": (1, "<u2", 50256),
        "llama-3": (7, "<u4", 128000),
    }
    BEGIN = 1024

    def files(self, path: Path) -> list[Path]:
        return [path]

    def has_documents(self, path: Path) -> bool:
        return False

    def table(self, path: Path, options: TokenOptions) -> TokenTable:
        dtype, tokens = self._header(path)
        return TokenTable.of_one_row(np.memmap(path, dtype, "r", self.BEGIN, (tokens,)))

    def border(self, path: Path) -> Border | None:
        """Return the token that documents begin with, if one does near the file's beginning: others use this header for
        their tokenizers too."""
        tokenizer = self.tokenizer(path)
        if tokenizer is None:
            return None
        token = self.KINDS[tokenizer][2]
        dtype, tokens = self._header(path)
        looked = np.fromfile(path, dtype, min(tokens, 2**20), offset=self.BEGIN)
        if (looked == token).any():
            return Border(token, begins=True)
        return None

    def tokenizer(self, path: Path) -> str | None:
        header = token_headers.llm_c_header(_head(path))
        if header is None:
            return None
        return header[0]

    def _header(self, path: Path) -> tuple[np.dtype[Any], int]:
        found = token_headers.llm_c_header(_head(path))
        if found is None:
            raise ValueError(f"{path.name} does not begin as llm.c's token files do")
        tokenizer, version, tokens = found
        wanted, kind, _ = self.KINDS[tokenizer]
        if version != wanted:
            raise ValueError(f"{path.name} is of version {version}, and {wanted} is read")
        dtype = np.dtype(kind)
        size = path.stat().st_size
        if tokens < 1 or size != self.BEGIN + tokens * dtype.itemsize:
            wrong = f"{path.name} has {size:,} bytes, where its header has {tokens:,} ids of {dtype.itemsize}"
            raise ValueError(f"{wrong} after {self.BEGIN:,} bytes")
        return dtype, tokens


class Numpy(TokenFormat):
    name = "numpy's .npy"

    def files(self, path: Path) -> list[Path]:
        return [path]

    def table(self, path: Path, options: TokenOptions) -> TokenTable:
        array = self._array(path)
        rows = array.shape[0] if array.ndim == 2 else 1
        columns = array.size // rows
        return TokenTable(array.reshape(-1), np.arange(1, rows + 1, dtype=np.int64) * columns)

    def has_documents(self, path: Path) -> bool:
        return self._array(path).ndim == 2

    def _array(self, path: Path) -> np.ndarray:
        """Return the array, mapped; without pickles, so that no code in it runs."""
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.dtype.kind not in "iu" or array.ndim not in (1, 2) or array.size == 0:
            shape = " x ".join(map(str, array.shape)) or "no axis"
            raise ValueError(
                f"{path.name} holds {array.dtype} ({shape}), not whole numbers of one or two axes"
            )
        rest = 0
        if isinstance(array, np.memmap):
            rest = path.stat().st_size - array.offset - array.nbytes
        if rest:
            wrong = f"{rest:,} bytes follow its array, such as another one that was saved into the same file"
            raise RefusedError(wrong, "save each array into a file of its own")
        if not array.flags.c_contiguous:
            raise RefusedError(
                "it is stored in Fortran's order", "save numpy.ascontiguousarray of it"
            )
        return array


class Bare(TokenFormat):
    """Ids without a header; OLMo's ``NAME.csv.gz`` beside ``NAME.npy`` has the borders of documents."""

    name = "ids without a header"
    takes = ("width",)

    def has_documents(self, path: Path) -> bool:
        return _olmo_listing(path) is not None

    def files(self, path: Path) -> list[Path]:
        listing = _olmo_listing(path)
        return [path] if listing is None else [path, listing]

    def check(self, path: Path, options: TokenOptions) -> None:
        dtype, _ = self._read(path, options)
        size = path.stat().st_size
        if size % dtype.itemsize:
            reason = f"its ids are not {dtype.name}: {size:,} bytes are not a multiple of {dtype.itemsize}"
            raise RefusedError(reason, "give the width that it was written with")
        ids = np.fromfile(path, dtype, token_headers.HEAD // dtype.itemsize)
        sign = _other_width(ids) or token_headers.many_zeros(ids)
        if sign is None and dtype.itemsize <= 2:
            sign = token_headers.header_like(_head(path), size)
        elif sign is None:
            sign = token_headers.counts_its_rest(_mapped(path, dtype))
        if sign is not None:
            reason = f"its ids are not {dtype.name}, or it has a header that is not known ({sign})"
            raise RefusedError(
                reason,
                "give the width that it was written with; or save the ids alone with numpy.save",
            )
        if int(ids.min()) < 0:
            raise ValueError(f"{path.name} has the id {int(ids.min()):,}")

    def table(self, path: Path, options: TokenOptions) -> TokenTable:
        dtype, ends = self._read(path, options)
        ids = _mapped(path, dtype)
        if ends is None:
            return TokenTable.of_one_row(ids)
        return TokenTable(ids, ends)

    def _read(self, path: Path, options: TokenOptions) -> tuple[np.dtype[Any], np.ndarray | None]:
        listing = _olmo_listing(path)
        size = path.stat().st_size
        if listing is None and options.width is None:
            raise ValueError(
                f"{path.name} has no header that is known, and nothing says how wide its ids are"
            )
        if size == 0:
            raise ValueError(f"{path.name} is empty")
        if listing is None:
            return np.dtype(options.width).newbyteorder("<"), None
        ends = _olmo_ends(listing, size)
        width = size // int(ends[-1])
        if width not in (1, 2, 4, 8) or width * int(ends[-1]) != size:
            raise ValueError(
                f"{path.name} has {size:,} bytes, where {listing.name} has {int(ends[-1]):,} ids"
            )
        dtype = np.dtype(options.width or f"<u{width}").newbyteorder("<")
        if dtype.itemsize != width:
            raise RefusedError(
                f"its ids have {width} bytes by {listing.name}", f"remove {options.width}"
            )
        return dtype, ends


def _olmo_listing(path: Path) -> Path | None:
    listing = path.with_name(path.name.removesuffix(".npy") + ".csv.gz")
    if path.suffix == ".npy" and listing.is_file():
        return listing
    return None


def _olmo_ends(listing: Path, most: int) -> np.ndarray:
    """Return the end of each document, int64 [documents]; there are at most ``most`` tokens."""
    ends = [0]
    with gzip.open(listing, "rb") as lines:
        while line := lines.readline(_LINE):
            start, end, *_ = (*line.split(b","), b"")
            try:
                begins = int(start)
                last = int(end)
            except ValueError as error:
                raise ValueError(
                    f"line {len(ends)} of {listing.name} has no start and end"
                ) from error
            if begins != ends[-1] or not begins < last <= most:
                raise ValueError(
                    f"line {len(ends)} of {listing.name} does not follow the one before it"
                )
            ends.append(last)
    if len(ends) == 1:
        raise ValueError(f"{listing.name} is empty")
    return np.array(ends[1:], np.int64)


def _other_width(ids: np.ndarray) -> str | None:
    """Return what in the first ids [n] shows that they have another width, or that a header is among them."""
    if int(ids.max()) >= _LARGEST:
        return f"{int(ids.max()):,} is among its first ids, more than any vocabulary has"
    if (ids >= _VOCABULARY).mean() > 0.5:
        return "most of its first ids are pairs of smaller ones"
    seconds = ids[1::2]
    if len(seconds) > 2 and (seconds == 0).mean() > 0.9:
        return "every second of its first ids is 0"
    return None


def _mapped(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    return np.memmap(path, dtype, "r")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(token_headers.HEAD)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
