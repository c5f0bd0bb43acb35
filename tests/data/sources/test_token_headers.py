"""Headers are never read as token ids, neither by ``bin:`` nor by ``tokens:``, known ones and others."""

import gzip
import io
import pickle
import sqlite3
import struct
import tarfile
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import save
from tokenizers import Tokenizer, models

from tape_ds.data.sources import parse_all, token_headers
from tape_ds.errors import UserError
from tests.data.sources import token_writers as write

RNG = np.random.default_rng(0)
IDS = RNG.integers(300, 60_000, 4096).astype("<u2")


def numpy_header():
    stream = io.BytesIO()
    np.save(stream, IDS)
    return stream.getvalue()


def zipped():
    stream = io.BytesIO()
    np.savez(stream, ids=IDS)
    return stream.getvalue()


def tarred():
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("000.ids"), io.BytesIO())
    return stream.getvalue() + IDS.tobytes()


def torch_saved(**options):
    stream = io.BytesIO()
    torch.save(torch.tensor(IDS.astype(np.int32)), stream, **options)
    return stream.getvalue()


def arrow(write_table):
    stream = io.BytesIO()
    write_table(pa.table({"ids": IDS.astype(np.int32)}), stream)
    return stream.getvalue()


def arrow_ipc(new):
    stream = io.BytesIO()
    table = pa.table({"ids": IDS})
    with new(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue()


def database(folder):
    with sqlite3.connect(folder / "x.db") as connection:
        connection.execute("create table ids (id integer)")
    connection.close()
    return (folder / "x.db").read_bytes()


def llm_c(magic, version, width):
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(IDS)
    return header.tobytes() + IDS.astype(f"<u{width}").tobytes()


def tfrecord():
    """A record with the check sum of its length, 8,192: CRC-32C, masked as TensorFlow does it."""
    return struct.pack("<QI", 8192, 0x04F24DBE) + IDS.tobytes() + b"\0\0\0\0"


# what writes it, and the name that its refusal has
WRITTEN = {
    "numpy": (numpy_header, "numpy"),
    "llm.c": (lambda: llm_c(20240520, 1, 2), "a token file of llm.c"),
    "llm.c wide": (lambda: llm_c(20240801, 7, 4), "a token file of llm.c"),
    "llm.c model": (lambda: llm_c(20240326, 3, 2), "a model of llm.c"),
    "llm.c evaluation": (lambda: llm_c(20240522, 1, 2), "evaluation data of llm.c"),
    "npz": (zipped, "a zip archive"),
    "torch": (torch_saved, "a zip archive"),
    "old torch": (lambda: torch_saved(_use_new_zipfile_serialization=False), "a pickle of torch"),
    "pickle 5": (lambda: pickle.dumps(IDS, 5), "a pickle"),
    "pickle 2": (lambda: pickle.dumps([1, 2, 3] * 9, 2), "a pickle"),
    "gzip": (lambda: gzip.compress(IDS.tobytes()), "gzip"),
    "zstd": (lambda: pa.Codec("zstd").compress(IDS.tobytes(), asbytes=True), "zstd"),
    "lz4": (lambda: pa.Codec("lz4").compress(IDS.tobytes(), asbytes=True), "lz4"),
    "tar": (tarred, "a tar archive"),
    "parquet": (lambda: arrow(pyarrow.parquet.write_table), "Parquet"),
    "orc": (lambda: arrow(pyarrow.orc.write_table), "ORC"),
    "feather": (lambda: b"FEA1\0\0\0\0" + IDS.tobytes() + b"FEA1", "Feather"),
    "arrow file": (lambda: arrow_ipc(pa.ipc.new_file), "an Arrow file"),
    "arrow stream": (lambda: arrow_ipc(pa.ipc.new_stream), "an Arrow stream"),
    "safetensors": (lambda: save({"ids": torch.tensor(IDS.astype(np.int32))}), "safetensors"),
    "tokenizer": (lambda: Tokenizer(models.BPE()).to_str().encode(), "text"),
    "fairseq": (lambda: struct.pack("<8s4Q", b"TNTIDX\0\0", 1, 8, 2, 9) + IDS.tobytes(), "fairseq"),
    "lmdb": (lambda: struct.pack("<QQI", 0, 8, 0xBEEFC0DE) + IDS.tobytes(), "LMDB"),
    "tfrecord": (tfrecord, "TFRecord"),
    "hdf5": (lambda: b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0" + IDS.tobytes(), "HDF5"),
    "gguf": (lambda: struct.pack("<4sIQQ", b"GGUF", 3, 1, 2) + IDS.tobytes(), "GGUF"),
    "avro": (lambda: b"Obj\x01\x04\x14avro.codec\x08null\x16" + IDS.tobytes(), "Avro"),
    "wav": (
        lambda: struct.pack("<4sI4s4sI", b"RIFF", 8228, b"WAVE", b"fmt ", 16) + IDS.tobytes(),
        "RIFF",
    ),
}


def refusals(path):
    """What each spec says of a file, read in every way that it might be."""
    found = []
    for spec in (
        f"bin:{path}",
        f"tokens:{path}",
        *(f"tokens:{path}#uint{width}&end=5" for width in (16, 32)),
    ):
        with pytest.raises(UserError) as caught:
            parse_all([spec])
        found.append(str(caught.value))
    return found


@pytest.mark.parametrize("name", WRITTEN)
def test_other_formats_are_refused_by_name(name, tmp_path):
    """numpy's and llm.c's headers were read as ids, from vocabularies of 30,000 and 55,433 entries on."""
    content, known = WRITTEN[name]
    (tmp_path / "x.bin").write_bytes(content())
    size = (tmp_path / "x.bin").stat().st_size
    assert known in token_headers.format_of(content()[: token_headers.HEAD], size)
    if name in ("numpy", "llm.c", "llm.c wide"):  # which `tokens:` reads
        with pytest.raises(
            UserError, match=rf"it begins as .*{known}.*\n.*tokens:{tmp_path}/x.bin"
        ):
            parse_all([f"bin:{tmp_path}/x.bin"])
        return
    assert all(known in said for said in refusals(tmp_path / "x.bin"))


def test_a_database_is_refused(tmp_path):
    (tmp_path / "x.bin").write_bytes(database(tmp_path))
    assert all("SQLite" in said for said in refusals(tmp_path / "x.bin"))


def test_an_archive_that_is_empty_is_refused(tmp_path):
    zipfile.ZipFile(tmp_path / "x.bin", "w").close()
    assert all("zip archive" in said for said in refusals(tmp_path / "x.bin"))


@pytest.mark.parametrize("kind", ["mds", "litdata"])
def test_a_shard_is_known_by_its_offsets(kind, tmp_path):
    """An MDS shard of even size was read as ids from a vocabulary of 64,000 on."""
    documents = [RNG.integers(3, 60_000, 40).tolist() for _ in range(9)]
    folder = getattr(write, kind)(tmp_path / kind, documents)
    (shard,) = list(folder.glob("*0000*.mds" if kind == "mds" else "*-0.bin"))[:1]
    shard.rename(tmp_path / "x.bin")
    assert all("a shard of MDS or litdata" in said for said in refusals(tmp_path / "x.bin"))


FORMS = ("<4I", "<8I", "<3Q", "<IQI", "<2IQQ", ">4I", ">3Q", "<8sIQ", "<4s3I", "<16s", "<12s2I")


@pytest.mark.parametrize("seed", range(40))
def test_headers_of_no_known_format_are_refused(seed, tmp_path):
    """Drawn ones: a few numbers of 32 or 64 bits, or letters, in front of 16-bit ids."""
    rng = np.random.default_rng(seed)
    form = FORMS[seed % len(FORMS)]
    count = len(struct.unpack(form, bytes(struct.calcsize(form))))
    letters = rng.integers(65, 91, 16).astype(np.uint8).tobytes()
    values = [int(value) for value in rng.integers(1, 2000, count)]
    if "s" in form:
        values[0] = letters
    header = struct.pack(form, *values)
    (tmp_path / "x.bin").write_bytes(header + IDS.tobytes()[: 8000 + len(header) % 4])
    for spec in (f"bin:{tmp_path}/x.bin", f"tokens:{tmp_path}/x.bin#uint16&end=5"):
        with pytest.raises(UserError, match=r"a header that is not known|ids of 32 or 64 bits"):
            parse_all([spec])


@pytest.mark.parametrize("number", [len(IDS), 2 * len(IDS)])
@pytest.mark.parametrize(
    ("form", "before", "after"),
    [
        ("<I", b"", b""),
        (">I", b"", b""),
        ("<I", b"\x07\x01", b""),
        ("<I", b"\xca\xfe\xba\xbe", b""),
        ("<I", b"\x91tok", b"\x01" * 56),
        (">I", b"", b"\xff\x01" * 126),
    ],
)
def test_a_count_in_front_is_a_header(form, before, after, number, tmp_path):
    """How many ids or bytes follow was read as two more ids."""
    header = before + struct.pack(form, number) + after
    (tmp_path / "x.bin").write_bytes(header + IDS.tobytes())
    for spec in (f"bin:{tmp_path}/x.bin", f"tokens:{tmp_path}/x.bin#uint16&end=5"):
        with pytest.raises(UserError, match="a header that is not known"):
            parse_all([spec])
    (tmp_path / "wide.bin").write_bytes(
        struct.pack("<2I", 1, len(IDS)) + IDS.astype("<u4").tobytes()
    )
    with pytest.raises(UserError, match="number 2 is 4,096, the count of what follows"):
        parse_all([f"tokens:{tmp_path}/wide.bin#uint32&end=5"])


def test_ids_of_a_text_are_no_header(tmp_path):
    """Also where punctuation has small numbers, as GPT-2's, and where a text begins with spaces and names."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        ids = (rng.pareto(0.5, 5000) * 99).astype(np.int64) % 50_000
        (tmp_path / "x.bin").write_bytes(ids.astype("<u2").tobytes())
        parse_all([f"bin:{tmp_path}/x.bin"])
        ids.astype("<u4").tofile(tmp_path / "wide.bin")
        parse_all([f"tokens:{tmp_path}/wide.bin#uint32&end=5"])
