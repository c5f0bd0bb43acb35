"""Token files of other programs, written by their bytes: what each package writes is in the head of its function.

``test_token_packages.py`` compares them with what the packages themselves write.
"""

import gzip
import json
import struct

import numpy as np
import pyarrow as pa

MEGATRON_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
MDS_CODES = {"uint8": 8, "uint16": 16, "int32": 33, "uint32": 32, "int64": 65, "uint64": 64}
TORCH_CODES = {"int32": 16, "int64": 18, "uint16": 20}
LLM_C = {"uint16": (20240520, 1), "uint32": (20240801, 7)}


def joined(documents, dtype):
    return np.concatenate([np.asarray(ids, dtype) for ids in documents])


def megatron(prefix, documents, dtype="int32", sentences=1):
    """megatron-core's IndexedDatasetBuilder; each document in so many sequences."""
    lengths = []
    borders = [0]
    for ids in documents:
        lengths += [len(part) for part in np.array_split(np.asarray(ids), sentences)]
        borders.append(len(lengths))
    size = np.dtype(dtype).itemsize
    pointers = (np.cumsum([0, *lengths])[:-1] * size).astype("<i8")
    head = struct.pack(
        "<9sQBQQ", b"MMIDIDX\0\0", 1, MEGATRON_CODES[dtype], len(lengths), len(borders)
    )
    index = (
        head
        + np.array(lengths, "<i4").tobytes()
        + pointers.tobytes()
        + np.array(borders, "<i8").tobytes()
    )
    prefix.with_name(prefix.name + ".idx").write_bytes(index)
    prefix.with_name(prefix.name + ".bin").write_bytes(joined(documents, dtype).tobytes())
    return prefix


def datatrove(path, documents, dtype="uint16", tokenizer="gpt2"):
    """datatrove's TokenizedFile with index and metadata."""
    path.write_bytes(joined(documents, dtype).tobytes())
    ends = np.cumsum([len(ids) for ids in documents])
    path.with_name(path.name + ".index").write_bytes(ends.astype("<u8").tobytes())
    metadata = f"{tokenizer}|{np.dtype(dtype).itemsize}\n{ends[-1]}\n{ends[-1]}"
    path.with_name(path.name + ".metadata").write_text(metadata)
    return path


def llm_c(path, documents, dtype="uint16"):
    """llm.c's write_datafile, dev/data/data_common.py."""
    ids = joined(documents, dtype)
    header = np.zeros(256, "<i4")
    header[:3] = (*LLM_C[dtype], len(ids))
    path.write_bytes(header.tobytes() + ids.tobytes())
    return path


def numpy_file(path, documents, dtype="uint16"):
    np.save(path, joined(documents, dtype))
    return path


def bare(path, documents, dtype="uint16"):
    """OLMo's .npy and nanoGPT's .bin."""
    path.write_bytes(joined(documents, dtype).tobytes())
    return path


def olmo(path, documents, dtype="uint32"):
    """dolma's tokens with their metadata."""
    bare(path, documents, dtype)
    ends = np.cumsum([0, *map(len, documents)])
    lines = "".join(
        f"{ends[n]},{ends[n + 1]},id{n},a.jsonl.gz,{n}\n" for n in range(len(documents))
    )
    path.with_name(path.name.removesuffix(".npy") + ".csv.gz").write_bytes(
        gzip.compress(lines.encode())
    )
    return path


def mds_row(ids, dtype, encoding):
    data = np.asarray(ids, dtype).tobytes()
    if encoding == "bytes":
        return data
    kind = b"" if ":" in encoding else bytes([MDS_CODES[dtype]])
    if encoding.count(":") == 2:
        return kind + data
    code = 0 if len(ids) < 256 else 1
    return kind + bytes([(1 << 2) | code]) + np.array([len(ids)], f"<u{code + 1}").tobytes() + data


def mds(
    folder,
    documents,
    dtype="int32",
    encoding=None,
    compression=None,
    shard_rows=2,
    size_limit=2**26,
):
    """streaming's MDSWriter with a column of ids, and one of text before it."""
    encoding = f"ndarray:{dtype}" if encoding is None else encoding
    folder.mkdir()
    fixed = (
        int(encoding.split(":")[2]) * np.dtype(dtype).itemsize if encoding.count(":") == 2 else None
    )
    settings = {
        "version": 2,
        "format": "mds",
        "compression": compression,
        "hashes": [],
        "size_limit": size_limit,
        "column_names": ["source", "tokens"],
        "column_encodings": ["str", encoding],
        "column_sizes": [None, fixed],
    }
    shards = []
    for number, start in enumerate(range(0, len(documents), shard_rows)):
        rows = []
        for ids in documents[start : start + shard_rows]:
            row = mds_row(ids, dtype, encoding)
            sizes = [3] if fixed else [3, len(row)]
            rows.append(np.array(sizes, "<u4").tobytes() + b"web" + row)
        text = json.dumps(settings, sort_keys=True).encode()
        offsets = np.cumsum([0, *map(len, rows)]) + 4 + 4 * (len(rows) + 1) + len(text)
        data = (
            struct.pack("<I", len(rows)) + offsets.astype("<u4").tobytes() + text + b"".join(rows)
        )
        name = f"shard.{number:05d}.mds"
        entry = {**settings, "samples": len(rows), "zip_data": None}
        entry["raw_data"] = {"basename": name, "bytes": len(data), "hashes": {}}
        if compression is not None:
            data = pa.Codec(compression).compress(data, asbytes=True)
            name += f".{compression}"
            entry["zip_data"] = {"basename": name, "bytes": len(data), "hashes": {}}
        (folder / name).write_bytes(data)
        shards.append(entry)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}, sort_keys=True))
    return folder


def litdata(folder, documents, dtype="int32", compression=None, chunk_rows=2):
    """litdata's chunks of a TokensLoader, as litgpt prepares them."""
    folder.mkdir()
    chunks = []
    for number, start in enumerate(range(0, len(documents), chunk_rows)):
        rows = [np.asarray(ids, dtype).tobytes() for ids in documents[start : start + chunk_rows]]
        offsets = np.cumsum([0, *map(len, rows)]) + 4 * (len(rows) + 2)
        data = np.array([len(rows), *offsets], "<u4").tobytes() + b"".join(rows)
        name = f"chunk-0-{number}.zstd.bin" if compression else f"chunk-0-{number}.bin"
        tokens = sum(map(len, documents[start : start + chunk_rows]))
        chunks.append(
            {"chunk_bytes": len(data), "chunk_size": len(rows), "dim": tokens, "filename": name}
        )
        (folder / name).write_bytes(
            pa.Codec("zstd").compress(data, asbytes=True) if compression else data
        )
    config = {
        "compression": compression,
        "chunk_size": chunk_rows,
        "chunk_bytes": None,
        "encryption": None,
        "data_format": [f"no_header_tensor:{TORCH_CODES[dtype]}"],
        "item_loader": "TokensLoader",
    }
    (folder / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))
    return folder
