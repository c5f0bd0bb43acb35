"""Remote and compressed files, and lines by a condition: read as local and plain ones are, refused as clearly."""

import gzip
import importlib
import io
import json
import pickle
import zipfile
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet
import pytest
from huggingface_hub import get_session

from tape_ds.data.sources import check_lists, opening, parse, parse_all
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
    with local_hub({f"{SCRIPT_ONLY}/{name}": contents for name, contents in files.items()}) as opened:
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
        ("jsonl:zip://inner/test.jsonl::hf://HUB/set.zip#input", [("test.jsonl:1", "z1"), ("test.jsonl:2", "z2")]),
        ("parquet:hf://HUB/rows.parquet#text", [("rows.parquet:0", "p1"), ("rows.parquet:1", "p2")]),
        ("text:hf://HUB/one.txt", [("one.txt", "whole")]),
    ],
)
def test_files_of_a_hub_repository(hub, spec, found):
    assert read(spec.replace("HUB", SCRIPT_ONLY)) == found


def test_nothing_is_opened_before_it_is_read(hub):
    """Checks, fingerprints and comparisons need no network; a shard opens its own file and can be sent elsewhere."""
    source = parse(f"jsonl:hf://{SCRIPT_ONLY}/test/*.jsonl*#text")
    other = parse(f"jsonl:hf://{SCRIPT_ONLY}/test/*.gz#text")
    assert source.check() == [] and source.fingerprint() != other.fingerprint()
    (problem,) = check_lists([source.spec], [source.spec])
    assert "also trained on" in problem.wrong
    shards = source.shards("train")
    assert hub == [] and [shard.name for shard in shards] == ["a.jsonl.zst", "b.jsonl.gz"]
    assert [document.text for document in pickle.loads(pickle.dumps(shards[1])).documents()] == ["b1", "b2"]
    assert hub == [f"/{SCRIPT_ONLY}/test/b.jsonl.gz"]


def test_what_cannot_be_had_is_named(hub, monkeypatch):
    for spec, wrong in (
        (f"jsonl:hf://{SCRIPT_ONLY}/train/*.jsonl#text", "no file matches"),
        (f"jsonl:hf://{SCRIPT_ONLY}/none.jsonl#text", "none.jsonl cannot be read"),
        (f"jsonl:zip://other.jsonl::hf://{SCRIPT_ONLY}/set.zip#input", "other.jsonl cannot be read"),
        (f"jsonl:zip://inner/test.jsonl::hf://{SCRIPT_ONLY}/one.txt#input", "cannot be looked for"),
        (f"jsonl:hf://{SCRIPT_ONLY}/test/deep/c.jsonl", "no '#field'"),
        ("jsonl:nowhere://a/b.jsonl#text", "Protocol not known: nowhere"),
        ("jsonl:zip://x.jsonl::nowhere://a/b.zip#text", "Protocol not known: nowhere"),
    ):
        with pytest.raises(UserError, match=wrong):
            read(spec)

    client = importlib.import_module(type(get_session()).__module__)  # httpx, or httpx2, as the hub's version has it

    def silent(*args, **options):
        raise client.ConnectError("no network")

    monkeypatch.setattr(LocalHub, "_open", silent)
    with pytest.raises(UserError, match=r"one.txt cannot be read: no network\n.*check the URL and the network"):
        read(f"text:hf://{SCRIPT_ONLY}/one.txt")
    monkeypatch.setattr(LocalHub, "glob", silent)
    with pytest.raises(UserError, match="cannot be looked for: no network"):
        read(f"text:hf://{SCRIPT_ONLY}/*.txt")


def test_compressed_lines_of_this_machine(tmp_path):
    contents = lines({"text": "one"}, {"text": "two"})
    (tmp_path / "x.jsonl.zst").write_bytes(zstd(contents) + zstd(lines({"text": "three"})))
    assert [text for _, text in read(f"jsonl:{tmp_path}/x.jsonl.zst#text")] == ["one", "two", "three"]
    (tmp_path / "x.jsonl.zst").write_bytes(zstd(contents)[:-4])
    with pytest.raises(UserError, match=r"x\.jsonl\.zst cannot be read"):
        read(f"jsonl:{tmp_path}/x.jsonl.zst#text")
    (tmp_path / "plain.zst").write_bytes(b"no frame of zstd")
    with pytest.raises(UserError, match=r"plain\.zst cannot be read"):
        read(f"jsonl:{tmp_path}/plain.zst#text")


def test_a_decompressed_file_closes_the_one_below(tmp_path):
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"text"))
    raw = (tmp_path / "x.gz").open("rb")
    filesystem = SimpleNamespace(open=lambda path, mode: raw)
    with opening.File(filesystem, "x.gz").open() as file:
        assert file.read() == b"text" and not raw.closed
    assert raw.closed


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_compressed_file_is_read_no_further_than_data_go(tmp_path, monkeypatch, suffix):
    """Nothing says beforehand what comes out of one."""
    monkeypatch.setattr(opening, "LARGE", 2**20)
    monkeypatch.setattr(opening, "RATIO", 100)
    path = tmp_path / f"x.txt.{suffix}"
    path.write_bytes(gzip.compress(bytes(2**24)) if suffix == "gz" else zstd(bytes(2**24)))
    with pytest.raises(UserError, match=r"x\.txt.* cannot be read: .* come out of"):
        read(f"text:{path}")


def test_text_that_compresses_well_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "LARGE", 1000)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(lines({"text": "one"}) * 1000))
    assert len(read(f"jsonl:{tmp_path}/x.jsonl.gz#text")) == 1000


# --- lines by a condition -------------------------------------------------------------------------------------------


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
        ("meta.pile_set_name=Wikipedia", []),
    ],
)
def test_lines_by_a_condition(pile, condition, found):
    assert [text for _, text in read(f"{pile}?{condition}")] == found


def test_a_condition_is_part_of_the_fingerprint(pile):
    specs = (pile, f"{pile}?long=true", f"{pile}?long=false")
    assert len({parse(spec).fingerprint() for spec in specs}) == 3


def test_conditions_that_cannot_hold_are_refused(pile):
    for condition, wrong in (
        ("long", "'long' is no condition"),
        ("=true", "'=true' is no condition"),
        ("long=true&", "is no condition"),
        ("meta.set=Github", r"pile.jsonl:1 has no 'meta\.set'"),
        ("text.length=2", r"has no 'text\.length'"),
    ):
        with pytest.raises(UserError, match=wrong):
            read(f"{pile}?{condition}")
