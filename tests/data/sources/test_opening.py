"""Remote and compressed files, and lines by a condition: read as local and plain ones are, refused as clearly."""

import bz2
import gzip
import importlib
import io
import json
import lzma
import tarfile
import zipfile

import pyarrow as pa
import pyarrow.parquet
import pytest
from huggingface_hub import get_session

from tape_ds.data.sources import opening, parse, parse_all
from tape_ds.errors import UserError
from tests.data.local_hub import LocalHub, local_hub

SCRIPT_ONLY = "datasets/someone/books@abc"


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def zstd(contents):
    return pa.Codec("zstd").compress(contents, asbytes=True)


def table(*texts):
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"text": list(texts)}), sink)
    return sink.getvalue()


def archive(member, contents):
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as file:
        file.writestr(member, contents)
    return sink.getvalue()


@pytest.fixture
def hub():
    """A repository with files of each kind; yields the list of what is opened."""
    files = {
        "test/b.jsonl.gz": gzip.compress(lines({"text": "b1"}, {"text": "b2"})),
        "test/a.jsonl.zst": zstd(lines({"text": "a1"})),
        "test/deep/c.jsonl": lines({"text": "c1"}),
        "rows.parquet": table("p1", "p2"),
        "one.txt": b"whole",
        "set.zip": archive("inner/test.jsonl", lines({"input": "z1"}, {"input": "z2"})),
    }
    with local_hub(
        {f"{SCRIPT_ONLY}/{name}": contents for name, contents in files.items()}
    ) as opened:
        yield opened


def read(spec):
    (source,) = parse_all([spec])
    return [(document.name, document.text) for document in source.documents("heldout")]


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (
            "jsonl:hf://HUB/test/*.jsonl*#text",
            [("a.jsonl.zst:1", "a1"), ("b.jsonl.gz:1", "b1"), ("b.jsonl.gz:2", "b2")],
        ),
        ("jsonl:hf://HUB/**/*.jsonl#text", [("test/deep/c.jsonl:1", "c1")]),
        ("jsonl:hf://HUB/test/b.jsonl.gz#text", [("b.jsonl.gz:1", "b1"), ("b.jsonl.gz:2", "b2")]),
        (
            "jsonl:zip://inner/test.jsonl::hf://HUB/set.zip#input",
            [("test.jsonl:1", "z1"), ("test.jsonl:2", "z2")],
        ),
        (
            "parquet:hf://HUB/rows.parquet#text",
            [("rows.parquet:0", "p1"), ("rows.parquet:1", "p2")],
        ),
        ("text:hf://HUB/one.txt", [("one.txt", "whole")]),
    ],
)
def test_files_of_a_hub_repository(hub, spec, found):
    assert read(spec.replace("HUB", SCRIPT_ONLY)) == found


def test_what_cannot_be_had_is_named(hub, monkeypatch):
    for spec, wrong in (
        (f"jsonl:hf://{SCRIPT_ONLY}/train/*.jsonl#text", "no file matches"),
        (f"jsonl:hf://{SCRIPT_ONLY}/none.jsonl#text", "none.jsonl cannot be read"),
        (f"jsonl:zip://inner/test.jsonl::hf://{SCRIPT_ONLY}/one.txt#input", "cannot be found"),
        ("jsonl:nowhere://a/b.jsonl#text", "Protocol not known: nowhere"),
    ):
        with pytest.raises(UserError, match=wrong):
            read(spec)

    # httpx, or httpx2, as the hub's version has it
    client = importlib.import_module(type(get_session()).__module__)

    def silent(*args, **options):
        raise client.ConnectError("no network")

    monkeypatch.setattr(LocalHub, "_open", silent)
    with pytest.raises(UserError, match=r"one.txt cannot be read: no network"):
        read(f"text:hf://{SCRIPT_ONLY}/one.txt")


def test_compressed_lines_of_this_machine(tmp_path):
    contents = lines({"text": "one"}, {"text": "two"})
    (tmp_path / "x.jsonl.zst").write_bytes(zstd(contents) + zstd(lines({"text": "three"})))
    assert [text for _, text in read(f"jsonl:{tmp_path}/x.jsonl.zst#text")] == [
        "one",
        "two",
        "three",
    ]
    (tmp_path / "x.jsonl.zst").write_bytes(zstd(contents)[:-4])
    with pytest.raises(UserError, match=r"x\.jsonl\.zst cannot be read"):
        read(f"jsonl:{tmp_path}/x.jsonl.zst#text")


@pytest.mark.parametrize(
    "place", ["{here}/set.zip", "file://{here}/set.zip", "set.zip", "~/set.zip"]
)
def test_members_of_an_archive_of_this_machine(tmp_path, monkeypatch, place):
    """A path after ``::`` was taken for a protocol, and the remedy was to write hf://datasets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "set.zip").write_bytes(
        archive("inner/test.jsonl", lines({"input": "z1"}, {"input": "z2"}))
    )
    spec = f"jsonl:zip://inner/*.jsonl::{place.format(here=tmp_path)}#input"
    (source,) = parse_all([spec])
    assert source.check() == []
    assert read(spec) == [("test.jsonl:1", "z1"), ("test.jsonl:2", "z2")]
    assert source.identities("train") == {f"{tmp_path}/set.zip::inner/test.jsonl"}
    before = source.fingerprint()
    (tmp_path / "set.zip").write_bytes(
        archive("inner/test.jsonl", lines({"input": "z1"}, {"input": "other"}))
    )
    assert parse(spec).fingerprint() != before


@pytest.mark.parametrize(
    ("pattern", "wrong", "remedy"),
    [
        ("zip://a.jsonl::{here}/none.zip", "there is no archive", "check the path"),
        ("zip://none.txt::{here}/set.zip", "cannot be read", "repair the file"),
        ("zip://none*.txt::{here}/set.zip", "no file matches", "check the path"),
        (
            "zip://{here}/set.zip/inner/test.jsonl",
            "a member of no archive",
            "write zip://MEMBER::/path/of/FILE.zip",
        ),
        (
            "zap://a.txt::{here}/set.zip",
            "Protocol not known: zap",
            "or zip://MEMBER::/path/of/FILE.zip",
        ),
        (
            "zip://a.txt::{here}/text.zip",
            "cannot be found: File is not a zip file",
            "repair the file",
        ),
        (
            "zip://no.jsonl::{here}/set.zip",
            "no.jsonl cannot be read: no file of this name is in the archive",
            "the glob",
        ),
    ],
)
def test_what_is_wrong_with_an_archive_is_found_before_anything_starts(
    tmp_path, pattern, wrong, remedy
):
    (tmp_path / "set.zip").write_bytes(archive("inner/test.jsonl", lines({"input": "z1"})))
    (tmp_path / "text.zip").write_text("no archive")
    (problem,) = parse(f"text:{pattern.format(here=tmp_path)}").check()
    assert wrong in problem.wrong
    assert remedy in problem.remedy


@pytest.fixture
def pile(tmp_path):
    """Lines as the Pile has them, and a few keys that are no text."""
    records = [
        {"text": f"t{number}", "meta": {"pile_set_name": name, "n": number}, "long": number > 1}
        for number, name in enumerate(["Github", "ArXiv", "Github", "a=b"])
    ]
    (tmp_path / "pile.jsonl").write_bytes(lines(*records))
    return f"jsonl:{tmp_path}/pile.jsonl#text"


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("meta.pile_set_name=Github", ["t0", "t2"]),
        ("meta.pile_set_name=Github&long=true", ["t2"]),
        ("meta.n=1", ["t1"]),
        ("meta.pile_set_name=a=b", ["t3"]),
    ],
)
def test_lines_by_a_condition(pile, condition, found):
    assert [text for _, text in read(f"{pile}?{condition}")] == found


def test_a_condition_is_part_of_the_fingerprint(pile):
    specs = (pile, f"{pile}?long=true", f"{pile}?long=false")
    assert len({parse(spec).fingerprint() for spec in specs}) == 3


def test_conditions_that_cannot_hold_are_refused(pile):
    for condition, wrong in (
        ("long", "'long' is not a condition"),
        ("meta.set=Github", r"pile.jsonl:1 has no column 'meta\.set'"),
    ):
        with pytest.raises(UserError, match=wrong):
            read(f"{pile}?{condition}")


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress, gzip.compress, zstd])
def test_compressed_files_are_known_by_their_contents(tmp_path, pack):
    file = tmp_path / "x.jsonl"
    file.write_bytes(pack(lines({"text": "a"}, {"text": "b"})))
    assert [text for _, text in read(f"jsonl:{file}#text")] == ["a", "b"]


def packed(tmp_path, how, contents):
    """Writes ``contents`` in some form; returns the pattern that reads them."""
    if how == "zip":
        with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("x.jsonl", contents)
        return f"zip://x.jsonl::file://{tmp_path}/x.zip"
    if how == "tar.gz":
        with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as file:
            member = tarfile.TarInfo("x.jsonl")
            member.size = len(contents)
            file.addfile(member, io.BytesIO(contents))
        return f"tar://x.jsonl::file://{tmp_path}/x.tar.gz"
    pack = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}[how]
    (tmp_path / f"x.jsonl.{how}").write_bytes(pack(contents))
    return f"{tmp_path}/x.jsonl.{how}"


@pytest.mark.parametrize("how", ["gz", "bz2", "xz", "zst", "zip", "tar.gz"])
def test_a_file_that_grows_beyond_all_measure_is_refused(tmp_path, monkeypatch, how):
    """docs/staying_alive.md promised it, and no code counted: gigabytes were read from some hundred kilobytes."""
    monkeypatch.setattr(opening, "GROWN", 2**16)
    monkeypatch.setattr(opening, "TIMES", 20)
    # 300 KB, 4 to 1
    usual = lines(*({"text": f"{number} {number**3}"} for number in range(10_000)))
    assert len(read(f"jsonl:{packed(tmp_path, how, usual)}#text")) == 10_000
    one = lines({"text": "again and again"})
    with pytest.raises(
        UserError, match=r"grows to more than 64\.00 KiB and 20 times the .* that it is stored in"
    ):
        read(f"jsonl:{packed(tmp_path, how, one * 10_000)}#text")
    assert len(read(f"jsonl:{packed(tmp_path, how, one * 2000)}#text")) == 2000, (
        "of less than that, any share"
    )


def test_a_repeated_text_that_is_stored_as_it_is_may_be_long(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "GROWN", 2**10)
    monkeypatch.setattr(opening, "TIMES", 2)
    (tmp_path / "x.jsonl").write_bytes(lines(*({"text": "again"} for _ in range(1000))))
    assert len(read(f"jsonl:{tmp_path}/x.jsonl#text")) == 1000


def test_one_document_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "LONGEST", 1000)
    (tmp_path / "x.jsonl").write_bytes(lines({"text": "one"}, {"text": "a" * 1000}))
    with pytest.raises(
        UserError, match=r"x\.jsonl cannot be read: line 2 has more than 1000 bytes"
    ):
        read(f"jsonl:{tmp_path}/x.jsonl#text")
    (tmp_path / "x.txt").write_text("a" * 1000)
    assert [len(text) for _, text in read(f"text:{tmp_path}/x.txt")] == [1000]
    (tmp_path / "x.txt").write_text("a" * 1001)
    with pytest.raises(
        UserError, match=r"x\.txt cannot be read: one document of more than 1000 bytes"
    ):
        read(f"text:{tmp_path}/x.txt")


def test_a_column_that_grows_beyond_all_measure_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "GROWN", 2**18)
    monkeypatch.setattr(opening, "TIMES", 20)
    file = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(
        pa.table({"text": ["a" * 2**19]}), file, compression="zstd", use_dictionary=False
    )
    with pytest.raises(UserError, match=r"column 'text' grows to 512\.\d+ KiB from"):
        read(f"parquet:{file}#text")
    pyarrow.parquet.write_table(
        pa.table({"text": ["a" * 2**19]}), file, compression="none", use_dictionary=False
    )
    assert len(read(f"parquet:{file}#text")) == 1


def test_a_parquet_file_in_an_archive(tmp_path):
    """Its reader moves back and forth."""
    (tmp_path / "x.zip").write_bytes(archive("x.parquet", table("a", "b")))
    assert [text for _, text in read(f"parquet:zip://x.parquet::file://{tmp_path}/x.zip#text")] == [
        "a",
        "b",
    ]


def test_members_of_an_archive_that_are_no_files(tmp_path):
    """A link to what is not in the archive was a KeyError, a pipe an AttributeError."""
    contents = lines({"text": "one"})
    with tarfile.open(tmp_path / "x.tar", "w") as file:
        member = tarfile.TarInfo("a.jsonl")
        member.size = len(contents)
        file.addfile(member, io.BytesIO(contents))
        for name, kind, target in (
            ("inside", tarfile.SYMTYPE, "a.jsonl"),
            ("outside", tarfile.SYMTYPE, "/etc/hostname"),
            ("pipe", tarfile.FIFOTYPE, ""),
            ("there", tarfile.SYMTYPE, "back"),
            ("back", tarfile.SYMTYPE, "there"),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            file.addfile(member)
    place = f"file://{tmp_path}/x.tar#text"
    assert read(f"jsonl:tar://inside::{place}") == [("inside:1", "one")]
    for name in ("outside", "pipe", "there"):
        with pytest.raises(
            UserError,
            match=f"{name} cannot be read: a link to what is not in the archive, or no file",
        ):
            read(f"jsonl:tar://{name}::{place}")


@pytest.mark.parametrize(
    ("kind", "contents", "wrong"),
    [
        ("text:{}", "text".encode("utf-16"), "is not"),
        ("jsonl:{}#text", table("x"), "is not"),
        (
            "jsonl:{}#text",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
            "a git-lfs pointer",
        ),
        ("jsonl:{}#text", json.dumps([{"text": "a"}], indent=2).encode(), "JSON"),
    ],
)
def test_a_file_of_another_format_is_refused_before_the_run(tmp_path, kind, contents, wrong):
    (tmp_path / "x").write_bytes(contents)
    (problem,) = parse(kind.format(tmp_path / "x")).check()
    assert wrong in problem.wrong


NESTED = {"id": 1, "meta": {"set": "a", "n": 2}, "content": {"text": "x", "a.b": "y"}}


@pytest.mark.parametrize(
    ("column", "found"), [("content.text", "x"), ("meta.set", "a"), ("content.a.b", "y")]
)
def test_columns_descend_as_conditions_do(tmp_path, column, found):
    (tmp_path / "x.jsonl").write_bytes(lines(NESTED))
    pyarrow.parquet.write_table(pa.Table.from_pylist([NESTED]), tmp_path / "x.parquet")
    assert read(f"jsonl:{tmp_path}/x.jsonl#{column}?meta.n=2&content.a.b=y") == [
        ("x.jsonl:1", found)
    ]
    if column != "content.a.b":  # Parquet's own reader takes every dot for a step
        assert read(f"parquet:{tmp_path}/x.parquet#{column}") == [("x.parquet:0", found)]
