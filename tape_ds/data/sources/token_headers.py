"""How files of other formats begin, so that no header is read as token ids.

Token ids without a header have no mark of their own: every file of even size could be some. What is known to begin
otherwise is therefore refused by its name, and what merely looks like a header is refused as one.
"""

import struct
from pathlib import Path

import numpy as np

# bytes at the beginning that are looked at
HEAD = 4096
NUMPY = b"\x93NUMPY"
MEGATRON_INDEX = b"MMIDIDX\x00\x00"
# magic number of llm.c's token files -> the tokenizer it names
LLM_C = {20240520: "gpt-2", 20240801: "llama-3"}

_OTHER_LLM_C = {
    20240326: "a model of llm.c",
    20240327: "a debugging state of llm.c",
    20240328: "a tokenizer of llm.c",
    20240522: "evaluation data of llm.c",
}

_OF_LLM_C = "a token file of llm.c"
_SHARD = "a shard of MDS or litdata, which is read through the index.json of its folder"
_READABLE = {
    NUMPY: "numpy (numpy.save)",
    MEGATRON_INDEX: "the index of Megatron",
}
READABLE = frozenset(_READABLE.values()) | {_OF_LLM_C}
"""Names of formats that ``tokens:`` reads from the file itself."""

# where it is, what is there, what has it
_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"TNTIDX\x00\x00", "fairseq's index"),
    (0, b"PK\x03\x04", "a zip archive (also .npz and torch.save)"),
    (0, b"PK\x05\x06", "an empty zip archive"),
    (0, b"\x1f\x8b\x08", "gzip"),
    (0, b"BZh91AY&SY", "bzip2"),
    (0, b"\xfd7zXZ\x00", "xz"),
    (0, b"\x28\xb5\x2f\xfd", "zstd"),
    (0, b"\x04\x22\x4d\x18", "lz4"),
    (0, b"\xff\x06\x00\x00sNaPpY", "snappy"),
    (0, b"7z\xbc\xaf\x27\x1c", "7z"),
    (0, b"Rar!\x1a\x07", "rar"),
    (257, b"ustar", "a tar archive (also WebDataset)"),
    (0, b"PAR1", "Parquet"),
    (0, b"ARROW1", "an Arrow file"),
    (0, b"FEA1", "Feather"),
    (0, b"\xff\xff\xff\xff", "an Arrow stream"),
    (0, b"ORC", "ORC"),
    (0, b"Obj\x01", "Avro"),
    (0, b"SEQ\x06", "a Hadoop sequence file"),
    (0, b"\x89HDF\r\n\x1a\n", "HDF5"),
    (0, b"CDF\x01", "netCDF"),
    (0, b"CDF\x02", "netCDF"),
    (0, b"MATLAB 5.0", "MATLAB"),
    (0, b"SIMPLE  =", "FITS"),
    (0, b"SQLite format 3\x00", "SQLite"),
    (16, b"\xde\xc0\xef\xbe", "LMDB"),
    (0, b"\x0a\x23\xd7\xce", "RecordIO of MXNet"),
    (0, b"GGUF", "GGUF"),
    (0, b"lmgg", "GGML"),
    (0, b"fmgg", "GGML"),
    (0, b"tjgg", "GGML"),
    (0, b"\x80\x04\x95", "a pickle"),
    (0, b"\x80\x05\x95", "a pickle"),
    (0, b"\x80\x02\x8a\nl\xfc\x9cF\xf9", "a pickle of torch"),
    (0, b"\x7fELF", "a program"),
    (0, b"\x00asm", "WebAssembly"),
    (0, b"%PDF-", "PDF"),
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (0, b"\xff\xd8\xff", "JPEG"),
    (0, b"GIF8", "GIF"),
    (0, b"RIFF", "RIFF (WAV, WebP)"),
    (0, b"OggS", "Ogg"),
    (0, b"fLaC", "FLAC"),
    (0, b"version https://git-lfs.github.com/spec/", "a git-lfs pointer"),
    (0, b"\xef\xbb\xbf", "a text with a byte order mark"),
)
# bytes at the beginning in which a header's count is looked for
_COUNTED_IN = 32
# smaller counts are small numbers, as a file of few ids has them
_FEWEST = 64
# sizes that headers have
_HEADERS = (*range(4, 41), 64, 128, 256, 512, 1024, 2048, 4096)
_PICKLED = tuple(
    b"\x80" + bytes([version, operation]) for version in (2, 3) for operation in b"]}(cX"
)
# bytes of plain text
_PRINTED = frozenset(range(32, 127)) | {9, 10, 13}


def format_of(head: bytes, size: int) -> str | None:
    """Return the name of the format that a file of ``size`` bytes begins as, or None.

    Args:
        head: its first :data:`HEAD` bytes, or all.
    """
    for magic, name in _READABLE.items():
        if head.startswith(magic):
            return name
    if llm_c_header(head) is not None:
        return _OF_LLM_C
    for at, magic, name in _MAGIC:
        if head[at : at + len(magic)] == magic:
            return name
    if head.startswith(_PICKLED):
        return "a pickle"
    if _begins_with(head, "<I") in _OTHER_LLM_C:
        return _OTHER_LLM_C[_begins_with(head, "<I")]
    if _is_safetensors(head, size):
        return "safetensors"
    if _has_offsets(head, size):
        return _SHARD
    if _is_tfrecord(head, size):
        return "TFRecord"
    if len(head) and _PRINTED.issuperset(head[:512]):
        return "text"
    return None


def indexes(path: Path) -> list[Path]:
    """Return where formats have the ends of a file's documents: Megatron, datatrove, OLMo."""
    if path.suffix == ".npy":
        return [path.with_name(path.name.removesuffix(".npy") + ".csv.gz")]
    return [path.with_suffix(".idx"), path.with_name(path.name + ".index")]


def header_like(head: bytes, size: int) -> str | None:
    """Return what in the first bytes of a file of ``size`` bytes is a header's and not that of 16-bit ids, or None.

    Small whole numbers of 32 or 64 bits, as headers have them, leave many ids 0; a text has few of them. Names of
    formats are letters.
    """
    ids = np.frombuffer(head[: len(head) // 2 * 2], "<u2")
    if (sign := many_zeros(ids)) is not None:
        return sign
    if 0 < _begins_with(head, "<Q") <= size:
        return "it begins with a number of 64 bits"
    if (counted := count_of_rest(head, size)) is not None:
        return counted
    letters = 0
    while letters < len(head) and 32 <= head[letters] < 127:
        letters += 1
    if letters >= 12 or (letters >= 4 and head[letters : letters + 1] in (b"\x00", b"\n", b"\x1a")):
        return f"it begins with the text {head[: min(letters, 16)].decode('ascii')!r}"
    return None


def count_of_rest(head: bytes, size: int) -> str | None:
    """Return the number of 32 bits near the beginning, of either byte order, that counts the bytes or the ids of all
    that follows a header, or None. Ids agree with one by chance in some files of a million."""
    counts = set()
    for header in _HEADERS:
        for width in (1, 2, 4, 8):
            if size - header >= _FEWEST * width and (size - header) % width == 0:
                counts.add((size - header) // width)
    for at in range(min(_COUNTED_IN, len(head) - 3)):
        word = head[at : at + 4]
        for order in ("little", "big"):
            number = int.from_bytes(word, order)
            if number in counts:
                return f"bytes {at} to {at + 3} are {number:,}, a count of what follows"
    return None


def counts_its_rest(ids: np.ndarray) -> str | None:
    """Return the one of a file's first ids [n], of 32 bits or more, that is the number of ids after it, or None."""
    for at, number in enumerate(ids[:4]):
        rest = len(ids) - at - 1
        if number == rest >= _FEWEST:
            return f"number {at + 1} is {rest:,}, the count of what follows"
    return None


def many_zeros(ids: np.ndarray) -> str | None:
    """Return how many of a file's first ids [n] are 0, if they are as many as in a header."""
    zeros = ids == 0
    for first, most in ((8, 3), (16, 4)):
        count = int(zeros[:first].sum())
        if len(ids) >= first and count >= most:
            return f"{count} of its first {first} ids are 0"
    run = _longest_run(zeros)
    return f"{run} of its first ids are 0 in a row" if run >= 16 else None


def llm_c_header(head: bytes) -> tuple[str, int, int] | None:
    """Return (tokenizer, version, tokens) of a token file of llm.c, or None."""
    if len(head) < 12:
        return None
    magic, version, tokens = struct.unpack_from("<3i", head)
    if magic not in LLM_C:
        return None
    return LLM_C[magic], version, tokens


def _begins_with(head: bytes, form: str) -> int:
    """Return the whole number at the beginning, 0 if the file is shorter."""
    return int(struct.unpack_from(form, head)[0]) if len(head) >= struct.calcsize(form) else 0


def _is_safetensors(head: bytes, size: int) -> bool:
    length = _begins_with(head, "<Q")
    return head[8:9] == b"{" and 0 < length <= size - 8


def _has_offsets(head: bytes, size: int) -> bool:
    """Return whether a number of rows and the offsets of all rows are in front, the last one the file's size."""
    rows = _begins_with(head, "<I")
    begin = 4 * (rows + 2)
    if not rows > 0 or begin > size:
        return False
    known = np.frombuffer(head[4 : min(begin, len(head) // 4 * 4)], "<u4").astype(np.int64)
    if len(known) == 0 or known[0] < begin or known[-1] > size or (np.diff(known) < 0).any():
        return False
    return len(known) < rows + 1 or int(known[-1]) == size


def _is_tfrecord(head: bytes, size: int) -> bool:
    """Return whether a length of 64 bits and its check sum are in front (TensorFlow's masked CRC-32C)."""
    length = _begins_with(head, "<Q")
    if len(head) < 12 or not 0 < length <= size - 16:
        return False
    crc = 0xFFFFFFFF
    for byte in head[:8]:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return _begins_with(head[8:], "<I") == masked


def _longest_run(flags: np.ndarray) -> int:
    """Return the most neighbours that are all True in ``flags``, bool [n]."""
    borders = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    return int((borders[1::2] - borders[::2]).max(initial=0))
