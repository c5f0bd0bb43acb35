"""``tokens:``: every format to the id and the document end, in two widths; what must be said, and what is refused."""

import itertools
import json
import os
import shutil

import numpy as np
import pytest

from tape_ds.data.pack import pack
from tape_ds.data.selection import select
from tape_ds.data.sources import check_lists, parse, parse_all, token_file, token_table
from tape_ds.errors import UserError
from tests.data.conftest import build_tokenizer, tokenize
from tests.data.sources import token_writers as write

END = 2
GPT_2 = 50256  # llm.c's documents begin with it
LLAMA_3 = 128000
SIZES = [5, 1, 300, 2, 40, 17, 1]


def ending(first=3, highest=60_000):
    """Seven documents that end with EOS."""
    rng = np.random.default_rng(0)
    return [[*rng.integers(first, highest, size).tolist(), END] for size in SIZES]


def beginning(token):
    return [[token, *ids[:-1]] for ids in ending(highest=50_000)]


def read(spec, eos=END):
    (source,) = parse_all([spec])
    source.eos = eos
    return [ids.tolist() for _, ids in source.token_rows()]


def wrong(spec):
    with pytest.raises(UserError) as caught:
        parse_all([spec])
    return str(caught.value)


# name -> (writer of a path, its documents, what the spec adds to the path)
FORMATS = {
    **{f"megatron {dtype}": (write.megatron, dtype, "") for dtype in ("uint16", "int32", "int64")},
    **{f"datatrove {dtype}.ds": (write.datatrove, dtype, "") for dtype in ("uint16", "uint32")},
    **{
        f"numpy {dtype}.npy": (write.numpy_file, dtype, "#end=eos")
        for dtype in ("uint16", "uint32", "int64")
    },
    **{f"olmo {dtype}.npy": (write.olmo, dtype, "") for dtype in ("uint16", "uint32")},
    **{
        f"bare {dtype}.npy": (write.bare, dtype, f"#{dtype}&end={END}")
        for dtype in ("uint16", "uint32", "uint64")
    },
    **{f"mds {dtype}": (write.mds, dtype, "") for dtype in ("uint16", "int32")},
    **{f"litdata {dtype}": (write.litdata, dtype, "") for dtype in ("uint16", "int32", "int64")},
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_to_the_id_and_the_document_end(name, tmp_path):
    writer, dtype, options = FORMATS[name]
    path = writer(tmp_path / name, ending(), dtype)
    assert read(f"tokens:{path}{options}") == ending()


@pytest.mark.parametrize(("dtype", "token"), [("uint16", GPT_2), ("uint32", LLAMA_3)])
def test_documents_of_llm_c_begin_with_their_token(dtype, token, tmp_path):
    spec = f"tokens:{write.llm_c(tmp_path / 'train_000001.bin', beginning(token), dtype)}"
    assert read(spec) == beginning(token)
    others = write.llm_c(tmp_path / "own.bin", beginning(7), dtype)
    assert "its first documents do not begin with its token" in wrong(f"tokens:{others}")
    assert read(f"tokens:{others}#begin=7") == beginning(7)


def test_a_shard_that_begins_within_a_document_keeps_its_rest(tmp_path):
    ids = [8, 9, GPT_2, 10, GPT_2, 11]
    spec = f"tokens:{write.llm_c(tmp_path / 'b.bin', [ids])}"
    assert read(spec) == [[8, 9], [GPT_2, 10], [GPT_2, 11]]


@pytest.mark.parametrize(
    ("encoding", "dtype", "compression", "options"),
    [
        ("ndarray", "uint16", None, ""),
        ("ndarray", "uint32", "zstd", ""),
        ("ndarray:int32:8", "int32", None, ""),
        ("bytes", "int64", "gzip", "#int64"),
        ("bytes", "int64", None, "#int64&column=tokens"),
    ],
)
def test_columns_of_mds(encoding, dtype, compression, options, tmp_path):
    documents = [[*range(20, 27), END]] * 3 if encoding.endswith(":8") else ending()
    folder = write.mds(tmp_path / "mds", documents, dtype, encoding, compression)
    if compression == "gzip":  # MDS's name of it
        text = (
            (folder / "index.json")
            .read_text()
            .replace('"compression": "gzip"', '"compression": "gz:9"')
        )
        (folder / "index.json").write_text(text)
    assert read(f"tokens:{folder}{options}") == documents


def test_a_shard_of_no_row_is_passed_over(tmp_path):
    """streaming writes one where the first row is larger than a shard may be."""
    folder = write.mds(tmp_path / "mds", ending())
    index = json.loads((folder / "index.json").read_text())
    empty = json.loads(json.dumps(index["shards"][0]))
    empty["samples"] = 0
    empty["raw_data"] = {"basename": "empty.mds", "bytes": 8, "hashes": {}}
    (folder / "empty.mds").write_bytes(np.array([0, 8], "<u4").tobytes())
    index["shards"].insert(0, empty)
    (folder / "index.json").write_text(json.dumps(index))
    assert read(f"tokens:{folder}") == ending()


def test_a_compressed_chunk_of_litdata(tmp_path):
    assert read(f"tokens:{write.litdata(tmp_path / 'z', ending(), 'int32', 'zstd')}") == ending()


def test_a_document_of_several_sequences_is_one(tmp_path):
    write.megatron(tmp_path / "m", ending(), "int32", sentences=2)
    for path in ("m", "m.bin", "m.idx", "m*"):
        assert read(f"tokens:{tmp_path}/{path}") == ending()


def test_rows_of_an_array_of_two_axes_are_documents(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.int32).reshape(3, 4))
    assert read(f"tokens:{tmp_path}/x.npy") == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert read(f"tokens:{tmp_path}/x.npy#end=5") == [[0, 1, 2, 3], [4, 5], [6, 7], [8, 9, 10, 11]]


def test_a_file_is_one_document_where_that_is_said(tmp_path):
    """end=file was passed over where a format records documents."""
    write.megatron(tmp_path / "a", [[5, END], [6, END]])
    np.save(tmp_path / "b.npy", np.array([[5, 6], [7, 8]], np.uint16))
    assert read(f"tokens:{tmp_path}/a#end=file") == [[5, END, 6, END]]
    assert read(f"tokens:{tmp_path}/b.npy#end=file") == [[5, 6, 7, 8]]


def test_files_of_a_glob_or_folder_are_read_in_the_order_of_their_names(tmp_path):
    parts = {"b": [[5, 6, END]], "a": [[7, END], [8, END]], "c": [[9, END]]}
    for name, documents in parts.items():
        write.datatrove(tmp_path / f"{name}.ds", documents)
    expected = [*parts["a"], *parts["b"], *parts["c"]]
    for place in ("", "/", "/*.ds", "/*", "/?.ds*"):
        assert read(f"tokens:{tmp_path}{place}") == expected, place
    (source,) = parse_all([f"tokens:{tmp_path}"])
    names = [name for name, _ in source.token_rows()]
    assert names == ["a.ds@0", "a.ds@2", "b.ds@0", "c.ds@0"]
    write.numpy_file(tmp_path / "d.npy", [[5]])
    assert "token files of 2 kinds" in wrong(f"tokens:{tmp_path}")


def test_a_folder_with_files_of_several_programs_is_refused(tmp_path):
    """Both are .bin: their documents were read as those of one corpus."""
    write.megatron(tmp_path / "a", [[5, END]])
    write.llm_c(tmp_path / "b.bin", [[5, 6]], "uint16")
    assert "token files of 2 kinds (Megatron's .bin and .idx, llm.c's token file)" in wrong(
        f"tokens:{tmp_path}"
    )


def test_prefixes_of_megatron_may_be_globbed(tmp_path):
    for name in "ba":
        write.megatron(tmp_path / f"{name}_text_document", [[ord(name), END]])
    assert read(f"tokens:{tmp_path}/*_text_document") == [[97, END], [98, END]]


def test_folders_with_an_index_may_be_globbed(tmp_path):
    for name in "ba":
        write.mds(tmp_path / name, [[ord(name), END], [5], [6]])
    assert read(f"tokens:{tmp_path}/*") == [[97, 2], [5], [6], [98, 2], [5], [6]]


def test_shards_are_read_whatever_their_width(tmp_path):
    write.numpy_file(tmp_path / "a.npy", [[5, END]], "uint16")
    write.numpy_file(tmp_path / "b.npy", [[70_000, END]], "int64")
    assert read(f"tokens:{tmp_path}/*.npy#end=eos") == [[5, END], [70_000, END]]


@pytest.mark.parametrize("part", [1, 7, 64, 10_000])
def test_parts_together_are_the_whole(part, tmp_path, monkeypatch):
    """Whatever a part's first and last token are: a border token, the one after it, or none."""
    monkeypatch.setattr(token_table, "PART_TOKENS", part)
    monkeypatch.setattr(token_table, "_BLOCK", 13)
    specs = {
        f"tokens:{write.datatrove(tmp_path / 'a.ds', ending())}": ending(),
        f"tokens:{write.bare(tmp_path / 'b.bin', ending())}#uint16&end={END}": ending(),
        f"tokens:{write.llm_c(tmp_path / 'c.bin', beginning(GPT_2))}": beginning(GPT_2),
        f"tokens:{tmp_path}/b.bin#uint16&end=file": [list(itertools.chain(*ending()))],
    }
    for spec, documents in specs.items():
        (source,) = parse_all([spec])
        assert len(source.token_shards()) == max(1, -(-sum(map(len, documents)) // part))
        assert [ids.tolist() for _, ids in source.token_rows()] == documents, spec


def test_what_a_format_does_not_record_is_asked_for_and_the_remedy_reads(tmp_path):
    """Each refusal ends with a spec; written so, it is taken."""
    write.numpy_file(tmp_path / "x.npy", ending())
    write.bare(tmp_path / "raw.bin", ending())
    for name, said in {
        "x.npy": "nothing says where documents end",
        "raw.bin": "nothing says how wide",
    }.items():
        message = wrong(f"tokens:{tmp_path}/{name}")
        remedy = message.rpartition("tokens:")[2].split(",")[0].strip()
        assert said in message and read(f"tokens:{remedy}") == ending()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("#uint16&uint16&end=3", "'uint16' is no option of it"),
        ("#float32", "'float32' is no option of it"),
        ("#end=stop", "end=stop is no token id"),
        ("#end=" + "9" * 5000, "is no token id"),
        ("#end=2&begin=1", "end and begin are given"),
        ("#uint32", "has no width to choose"),
        ("#column=x", "has no column to choose"),
    ],
)
def test_options_that_are_not_taken(options, said, tmp_path):
    path = write.numpy_file(tmp_path / "x.npy", ending())
    assert said in wrong(f"tokens:{path}{options}")


def test_another_width_than_that_of_the_ids_is_refused(tmp_path):
    for dtype, other in (
        ("uint16", "uint32"),
        ("uint32", "uint16"),
        ("uint32", "uint64"),
        ("uint64", "uint32"),
    ):
        path = write.bare(tmp_path / f"{dtype}.npy", ending(), dtype)
        assert "its ids are not" in wrong(f"tokens:{path}#{other}&end=2")
        assert "nothing says how wide" in wrong(f"tokens:{path}")
    path = write.datatrove(tmp_path / "x.ds", ending())
    assert "its ids are uint16, and uint32 is given" in wrong(f"tokens:{path}#uint32")


def damage(path, change):
    path.write_bytes(change(bytearray(path.read_bytes())))


@pytest.mark.parametrize(
    ("writer", "file", "change", "said"),
    [
        (write.megatron, "x.bin", lambda data: data[:-4], "where its index has"),
        (write.megatron, "x.idx", lambda data: data[:-8], "where its header asks for"),
        (
            write.megatron,
            "x.idx",
            lambda data: data[:17] + b"\x07" + data[18:],
            "type 7, which is none of whole",
        ),
        (
            write.megatron,
            "x.idx",
            lambda data: data[:9] + b"\x02" + data[10:],
            "version 2, and 1 is read",
        ),
        (write.megatron, "x.idx", lambda data: data + b"\0" * 7, "a mode for every sequence"),
        (
            write.megatron,
            "x.idx",
            lambda data: data[:-1] + b"\1",
            "are not those of its 7 sequences",
        ),
        (
            write.megatron,
            "x.idx",
            lambda data: data[:64] + b"\5" + data[65:],
            "do not follow one another",
        ),
        (
            write.megatron,
            "x.idx",
            lambda data: b"TNTIDX\0\0" + data[8:],
            "begins as fairseq's index",
        ),
        (write.megatron, "x.idx", lambda data: data[:37] + b"\xff" + data[38:], "a sequence of -"),
        (write.datatrove, "x", lambda data: data[:-2], "where its index has"),
        (write.datatrove, "x.index", lambda data: data[:-1], "no whole 64-bit numbers"),
        (
            write.datatrove,
            "x.index",
            lambda data: data[:8] + b"\1" + data[9:],
            "ends before it begins",
        ),
        (
            write.datatrove,
            "x.metadata",
            lambda data: b"gpt2|4\n",
            "has ids of 4 bytes, and the index of 2",
        ),
        (write.llm_c, "x", lambda data: data[:-2], "where its header has"),
        (write.llm_c, "x", lambda data: data[:4] + b"\3" + data[5:], "version 3, and 1 is read"),
        (write.olmo, "x", lambda data: data[:-4], "bytes, where"),
        (write.numpy_file, "x", lambda data: data + data, "bytes follow its array"),
        (
            write.numpy_file,
            "x",
            lambda data: data[:8] + b"\x20\0" + data[10:],
            "its header or index is damaged",
        ),
        (write.mds, "shard.00001.mds", lambda data: data[:-1], "where index.json has"),
        (write.mds, "index.json", lambda data: b"{", "index.json cannot be read"),
        (write.mds, "index.json", lambda data: b"[]", "holds no object"),
        (
            write.mds,
            "index.json",
            lambda data: data.replace(b'"basename"', b'"name"'),
            "is not that of MDS",
        ),
        (
            write.mds,
            "index.json",
            lambda data: data.replace(b'"shard.0', b'"../shard.0'),
            "outside its folder",
        ),
        (
            write.mds,
            "index.json",
            lambda data: data.replace(b"ndarray:int32", b"ndarray:float32"),
            "holds float32",
        ),
        (
            write.mds,
            "index.json",
            lambda data: data.replace(b"ndarray:int32", b"jpeg"),
            "no column",
        ),
        (write.litdata, "chunk-0-1.bin", lambda data: data[:-4], "where index.json has"),
        (
            write.litdata,
            "index.json",
            lambda data: data.replace(b"no_header_tensor:16", b"jpeg"),
            "its items are jpeg",
        ),
        (
            write.litdata,
            "index.json",
            lambda data: data.replace(b":16", b":0"),
            "none of whole numbers",
        ),
        (
            write.litdata,
            "index.json",
            lambda data: data.replace(b"chunks", b"parts"),
            "neither that of MDS nor",
        ),
    ],
)
def test_a_damaged_file_is_named_before_a_run(writer, file, change, said, tmp_path):
    (tmp_path / "in").mkdir()
    suffix = {
        write.datatrove: ".ds",
        write.llm_c: ".bin",
        write.olmo: ".npy",
        write.numpy_file: ".npy",
    }.get(writer, "")
    documents = beginning(GPT_2) if writer is write.llm_c else ending()
    path = writer(tmp_path / "in" / f"x{suffix}", documents)
    folder = path if path.is_dir() else path.parent
    damage(folder / (file.replace("x", f"x{suffix}", 1) if suffix else file), change)
    assert said in wrong(f"tokens:{path}")


def test_a_damaged_listing_is_named(tmp_path):
    """An error of zlib inside was a traceback."""
    path = write.olmo(tmp_path / "x.npy", ending())
    listing = tmp_path / "x.csv.gz"
    listing.write_bytes(listing.read_bytes()[:10] + b"\xff" * 20)
    assert "x.npy cannot be read: its header or index is damaged" in wrong(f"tokens:{path}")


def test_a_shard_that_grows_when_decompressed_is_refused(tmp_path):
    folder = write.litdata(tmp_path / "z", ending(), "int32", "zstd")
    index = json.loads((folder / "index.json").read_text())
    index["chunks"][0]["chunk_bytes"] -= 4
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"has other than [0-9,]+ bytes when decompressed"):
        read(f"tokens:{folder}")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nope", "no such file or folder"),
        ("*.ds", "no file matches"),
        ("mds/shard.00000.mds", "which is read through the index.json of its folder"),
        ("loss.ds", "leaves tokens out of the loss"),
        ("alone.ds", "alone.ds.index is missing"),
        ("own.bin", "a file of tape-ds prepare-test-set"),
        ("float.npy", "not whole numbers of one or two axes"),
        ("objects.npy", "objects.npy cannot be read: .*objects"),
        ("empty", "(?s)a folder without token files .*the folder that holds them, or all below it"),
    ],
)
def test_what_is_no_token_file_is_refused(place, said, tmp_path):
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "empty").mkdir()
    write.mds(folder / "mds", ending())
    write.datatrove(tmp_path / "loss.ds", ending())
    (tmp_path / "loss.ds.loss").write_bytes(b"\1")
    write.bare(tmp_path / "alone.ds", ending())
    ids = map(np.array, ending())
    token_file.write(
        tmp_path / "own.bin", ids, tokenizer="t", vocabulary=60_000, sources={}, choice={}
    )
    np.save(tmp_path / "float.npy", np.ones(4))
    np.save(tmp_path / "objects.npy", np.array([{}, {}]), allow_pickle=True)
    root = tmp_path if (tmp_path / place).exists() else folder
    with pytest.raises(UserError, match=said):
        parse_all([f"tokens:{root}/{place}"])


def test_a_header_of_wide_numbers_is_not_read_as_wide_ids(tmp_path):
    """256 numbers of 32 bits in front, three of them set, as llm.c has them, of a program that is not known."""
    header = np.zeros(256, "<u4")
    header[:3] = 77, 1, 373
    (tmp_path / "x.bin").write_bytes(header.tobytes() + write.joined(ending(), "<u4").tobytes())
    assert "a header that is not known" in wrong(f"tokens:{tmp_path}/x.bin#uint32&end=2")


def test_a_pipe_is_no_token_file(tmp_path):
    """Opening one waits for a writer."""
    write.megatron(tmp_path / "x", ending())
    (tmp_path / "x.idx").unlink()
    for name in ("x.idx", "y.bin"):
        os.mkfifo(tmp_path / name)
        assert "cannot be read" in wrong(f"tokens:{tmp_path}/{name}")


def test_a_url_is_refused():
    assert "cannot be" in wrong("tokens:hf://datasets/a/b/x.npy#end=2")


def test_the_fingerprint_follows_ids_borders_and_options_and_not_the_place(tmp_path):
    def fingerprint(documents, name="a", options="", writer=write.datatrove):
        folder = tmp_path / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return parse(f"tokens:{writer(folder / 'x.ds', documents)}{options}").fingerprint()

    first = fingerprint([[5, 6], [7]])
    assert fingerprint([[5, 6], [7]], "b") == first
    folders = {parse(f"tokens:{tmp_path}/{name}").fingerprint() for name in "ab"}
    assert len(folders) == 1, "of a folder too"
    others = [
        fingerprint([[5, 6], [8]]),
        fingerprint([[5], [6, 7]]),
        fingerprint([[5, 6], [7]], options="#end=6"),
        fingerprint([[5, 6], [7]], options="#end=eos"),
        fingerprint([[5, 6], [7]], options="#begin=6"),
    ]
    assert len({first, *others}) == 6
    folder = write.mds(tmp_path / "mds", ending())
    before = parse(f"tokens:{folder}").fingerprint()
    (folder / "index.json").write_text((folder / "index.json").read_text() + " ")
    assert parse(f"tokens:{folder}").fingerprint() != before


def test_training_on_the_evaluation_is_refused(tmp_path):
    write.datatrove(tmp_path / "a.ds", ending())
    write.datatrove(tmp_path / "b.ds", ending())
    assert check_lists([f"tokens:{tmp_path}/a.ds"], [f"tokens:{tmp_path}/b.ds"]) == []
    (problem,) = check_lists([f"tokens:{tmp_path}/*.ds"], [f"tokens:{tmp_path}/b.ds"])
    assert "also trained on" in problem.wrong


def test_ids_are_those_of_the_tokenizer_or_refused(tmp_path, tokenizer, caplog):
    path = write.datatrove(tmp_path / "x.ds", [[5, 6, 1], [299, 1]])
    rows = tokenize([f"tokens:{path}"], tokenizer, "train", tmp_path / "cache")
    assert list(rows["input_ids"]) == [[5, 6, 1], [299, 1]] and rows["name"][:] == [
        "x.ds@0",
        "x.ds@3",
    ]
    assert "its ids were made with the tokenizer gpt2, as it records" in caplog.text
    write.datatrove(path, [[5, 6, 1], [300, 1]])
    with pytest.raises(
        UserError,
        match=r"x.ds@3 has token ids 1 \.\. 300, outside the tokenizer's vocabulary of 300",
    ):
        tokenize([f"tokens:{path}"], tokenizer, "train", tmp_path / "cache")


def test_documents_end_with_the_eos_of_the_tokenizer(tmp_path, tokenizer):
    eos = tokenizer.eos_token_id
    path = write.bare(tmp_path / "x.bin", [[5, 6, eos], [7, eos], [8]], "uint32")
    spec = f"tokens:{path}#uint32&end=eos"
    rows = tokenize([spec], tokenizer, "train", tmp_path / "cache")
    assert list(rows["input_ids"]) == [[5, 6, eos], [7, eos], [8]]
    other = build_tokenizer()
    other.eos_token = None
    with pytest.raises(UserError, match="end=eos is given, and the tokenizer has no EOS"):
        tokenize([spec], other, "train", tmp_path / "cache")


def test_documents_are_selected_and_packed_as_those_of_a_text(tmp_path, tokenizer):
    """Short ones are left out, and a document that ends with EOS is given no second one."""
    eos = tokenizer.eos_token_id
    documents = [[5, 6, 7, eos], [8, eos], [9, 10, 11]]
    spec = f"tokens:{write.megatron(tmp_path / 'x', documents)}"
    found = select([spec], tokenizer, "train", tmp_path / "cache", min_tokens=3)
    assert list(found.documents["input_ids"]) == [documents[0], documents[2]]
    assert (found.tokens, found.read_documents, found.read_tokens) == (7, 3, 9)
    sequences = pack(found.documents, 8, tmp_path / "cache", "cut", eos)
    assert list(sequences["input_ids"]) == [[5, 6, 7, eos, 9, 10, 11, eos]]
    assert list(sequences["document_ids"]) == [[0, 0, 0, 0, 1, 1, 1, 1]]


def test_a_changed_file_is_opened_again(tmp_path):
    path = write.numpy_file(tmp_path / "x.npy", [[5, END]])
    spec = f"tokens:{path}#end=2"
    assert read(spec) == [[5, END]]
    write.numpy_file(path, [[6, END]])
    os.utime(path, ns=(1, 1))
    assert read(spec) == [[6, END]]
