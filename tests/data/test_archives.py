"""Archives that would do harm if they were unpacked, or read whole, are refused by the name of the member."""

import gzip
import io
import stat
import tarfile
import zipfile

import pytest

from tape_ds.data import archives
from tape_ds.data.archives import UnsafeArchiveError
from tape_ds.data.scrolls import examples
from tape_ds.data.sources import opening, parse_all
from tape_ds.errors import UserError
from tests.disks import files

LINE = b'{"text": "one", "id": "1", "input": "i", "output": "o"}\n'
BAD = ["/etc/passwd", "../out.jsonl", "a/../../out.jsonl", "a\\..\\out.jsonl", "C:\\out.jsonl", "\\\\host\\out.jsonl"]


def zip_with(path, name, link=False):
    """A data file, and beside it a member of that name."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("qasper/train.jsonl", LINE)
        member = zipfile.ZipInfo(name)
        member.create_system = 3
        member.external_attr = ((stat.S_IFLNK if link else stat.S_IFREG) | 0o644) << 16
        archive.writestr(member, "/etc/passwd")
    return path


def tar_with(path, name, kind=tarfile.REGTYPE):
    with tarfile.open(path, "w") as archive:
        for each, form in (("qasper/train.jsonl", tarfile.REGTYPE), (name, kind)):
            member = tarfile.TarInfo(each)
            member.type, member.size, member.linkname = form, len(LINE) if form == tarfile.REGTYPE else 0, "/etc/passwd"
            archive.addfile(member, io.BytesIO(LINE))
    return path


def read(address):
    (source,) = parse_all([address])
    return [document.text for document in source.documents("train")]


@pytest.mark.parametrize(("name", "link"), [*((name, False) for name in BAD), ("innocent", True)])
@pytest.mark.parametrize("door", ["scrolls", "zip", "tar"])
def test_a_member_that_leads_elsewhere_is_refused_by_name(tmp_path, door, name, link):
    (tmp_path / "here").mkdir()
    if door == "tar":
        path = tar_with(tmp_path / "here" / "x.tar", name, tarfile.SYMTYPE if link else tarfile.REGTYPE)
    else:
        path = zip_with(tmp_path / "here" / "x.zip", name, link)
    before = files(tmp_path)
    with pytest.raises(UserError) as caught:
        if door == "scrolls":
            examples.read("qasper", "train", path)
        else:
            read(f"jsonl:{door}://qasper/train.jsonl::file://{path}#text")
    said = str(caught.value)
    assert f"the archive's member {zipfile.ZipInfo(name).filename!r} is " in said and archives.REMEDY in said
    assert files(tmp_path) == before


@pytest.mark.parametrize("door", ["zip", "tar"])
def test_an_archive_of_data_is_read(tmp_path, door):
    make = zip_with if door == "zip" else tar_with
    path = make(tmp_path / f"x.{door}", "other/..names/a..b.jsonl")
    assert read(f"jsonl:{door}://qasper/train.jsonl::file://{path}#text") == ["one"]


@pytest.mark.parametrize(
    ("size", "packed", "refused"),
    [
        (2**30, 1, False),
        (2**30 + 1, 1, True),
        (2**40, 2**30, True),
        (2**40, 2**31, False),
    ],
)
def test_a_size_is_absurd_where_it_is_large_and_out_of_proportion(size, packed, refused):
    assert archives.too_much(size, packed) is refused


def test_a_zip_that_says_it_would_fill_the_disk_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "LARGE", 2**20)
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("qasper/train.jsonl", bytes(2**23))
    with pytest.raises(UserError, match="would grow to 8,388,608 bytes out of"):
        examples.read("qasper", "train", tmp_path / "x.zip")


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_compressed_file_is_read_no_further_than_data_go(tmp_path, monkeypatch, suffix):
    """Nothing says beforehand what comes out of one."""
    import pyarrow as pa

    monkeypatch.setattr(archives, "LARGE", 2**20)
    monkeypatch.setattr(archives, "RATIO", 100)
    path = tmp_path / f"x.txt.{suffix}"
    large = bytes(2**24)
    path.write_bytes(gzip.compress(large) if suffix == "gz" else pa.Codec("zstd").compress(large, asbytes=True))
    (file,) = opening.find(str(path)).values()
    with file.open() as stream, pytest.raises(UnsafeArchiveError, match="come out of"):
        stream.read()
    with pytest.raises(UserError, match=r"x\.txt.* cannot be read: more than"):
        read(f"text:{path}")


def test_text_that_compresses_well_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "LARGE", 1000)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(LINE * 1000))
    assert len(read(f"jsonl:{tmp_path}/x.jsonl.gz#text")) == 1000
