"""Token files written by the field's own packages: one program for each, run in an environment of its own.

Each gets a folder and the documents as JSON, and writes them in two widths.
"""

MEGATRON = """
import numpy, torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
for dtype in ("uint16", "int32"):
    builder = IndexedDatasetBuilder(f"{folder}/megatron_{dtype}.bin", dtype=getattr(numpy, dtype))
    for ids in documents:
        for part in numpy.array_split(numpy.array(ids), 2):
            builder.add_item(torch.tensor(part))
        builder.end_document()
    builder.finalize(f"{folder}/megatron_{dtype}.idx")
"""

DATATROVE = """
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
for width in (2, 4):
    file = TokenizedFile(folder, f"datatrove_{width}.ds", tokenizer_name_or_path="gpt2", save_final_metadata=True,
                         token_size=width)
    for ids in documents:
        file.write(ids, None)
    file.close()
"""

MDS = """
import numpy
from streaming import MDSWriter
for name, encoding, dtype in (("mds_fixed", "ndarray:int32", "int32"), ("mds_free", "ndarray", "uint16"),
                              ("mds_bytes", "bytes", "int64")):
    for compression in (None, "zstd"):
        columns = {"tokens": encoding, "source": "str"}
        out = f"{folder}/{name}_{compression}"
        with MDSWriter(out=out, columns=columns, compression=compression, size_limit=100) as writer:
            for ids in documents:
                ids = numpy.array(ids, dtype)
                writer.write({"tokens": ids.tobytes() if encoding == "bytes" else ids, "source": "web"})
"""

LITDATA = """
import torch
from litdata.streaming.item_loader import TokensLoader
from litdata.streaming.writer import BinaryWriter
for dtype in ("int32", "uint16"):
    for compression in (None, "zstd"):
        level = {"compression_level": "chunk"} if compression else {}
        writer = BinaryWriter(f"{folder}/litdata_{dtype}_{compression}", chunk_size=3, compression=compression,
                              item_loader=TokensLoader(), **level)
        for number, ids in enumerate(documents):
            writer[number] = torch.tensor(ids, dtype=getattr(torch, dtype))
        writer.done()
        writer.merge()
"""

OLMO = """
import pathlib, numpy
from olmo_core.data.utils import write_array_to_disk, iter_document_indices
for dtype in ("uint16", "uint32"):
    path = pathlib.Path(folder, f"olmo_{dtype}.npy")
    ids = numpy.concatenate([numpy.array(ids, dtype) for ids in documents])
    write_array_to_disk(ids, path)
    found = list(iter_document_indices(path, eos_token_id=EOS, dtype=getattr(numpy, dtype)))
    assert [ids[begin:end].tolist() for begin, end in found] == documents
"""

NUMPY = """
import numpy
for dtype in ("uint16", "int64"):
    numpy.save(f"{folder}/numpy_{dtype}.npy", numpy.concatenate([numpy.array(ids, dtype) for ids in documents]))
"""

# program, package and version, what is written -> what a spec adds to its path
PACKAGES = {
    "megatron": (
        MEGATRON,
        "megatron-core==0.16.1",
        {"megatron_uint16": "", "megatron_int32.bin": ""},
    ),
    "datatrove": (DATATROVE, "datatrove==0.10.1", {"datatrove_2.ds": "", "datatrove_4.ds": ""}),
    "mds": (
        MDS,
        "mosaicml-streaming==0.13.0",
        {
            **{f"mds_{kind}_{codec}": "" for kind in ("fixed", "free") for codec in (None, "zstd")},
            **{f"mds_bytes_{codec}": "#int64" for codec in (None, "zstd")},
        },
    ),
    "litdata": (
        LITDATA,
        "litdata==0.2.76 zstd==1.5.7.2",
        {
            f"litdata_{dtype}_{codec}": ""
            for dtype in ("int32", "uint16")
            for codec in (None, "zstd")
        },
    ),
    "olmo": (
        OLMO,
        "ai2-olmo-core==3.0.0",
        {f"olmo_{dtype}.npy": f"#{dtype}&end=2" for dtype in ("uint16", "uint32")},
    ),
    "numpy": (NUMPY, None, {f"numpy_{dtype}.npy": "#end=2" for dtype in ("uint16", "int64")}),
}
