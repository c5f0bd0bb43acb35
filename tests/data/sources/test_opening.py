"""Remote and compressed files, and lines by a condition: read as local and plain ones are, refused as clearly."""

import bz2
import gzip
import importlib
import io
import json
import lzma
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
        (f"jsonl:zip://inner/test.jsonl::hf://{SCRIPT_ONLY}/one.txt#input", "cannot be found"),
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
    with pytest.raises(UserError, match="cannot be found: no network"):
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
        ("long", "'long' is not a condition"),
        ("=true", "'=true' is not a condition"),
        ("long=true&", "is not a condition"),
        ("meta.set=Github", r"pile.jsonl:1 has no column 'meta\.set'"),
        ("text.length=2", r"has no column 'text\.length'"),
    ):
        with pytest.raises(UserError, match=wrong):
            read(f"{pile}?{condition}")


# --- formats --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress, gzip.compress, zstd])
@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.{}"])
def test_compressed_files_are_known_by_name_or_contents(tmp_path, pack, name):
    suffix = {bz2.compress: "bz2", lzma.compress: "xz", gzip.compress: "gz", zstd: "zst"}[pack]
    file = tmp_path / name.format(suffix)
    file.write_bytes(pack(lines({"text": "a"}, {"text": "b"})))
    assert [text for _, text in read(f"jsonl:{file}#text")] == ["a", "b"]


def test_a_damaged_xz_file_is_named(tmp_path):
    (tmp_path / "x.jsonl.xz").write_bytes(lzma.compress(lines({"text": "a"}))[:-9] + bytes(9))
    with pytest.raises(UserError, match=r"x\.jsonl\.xz cannot be read"):
        read(f"jsonl:{tmp_path}/x.jsonl.xz#text")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
PRETTY = json.dumps([{"text": "a"}], indent=2).encode()


@pytest.mark.parametrize("kind", ["text:{}", "jsonl:{}#text"])
@pytest.mark.parametrize("contents", ["text".encode("utf-16"), archive("x", b"y" * 99), table("x")])
def test_a_binary_file_is_refused_before_the_run(tmp_path, kind, contents):
    (tmp_path / "x.jsonl").write_bytes(contents)
    (problem,) = parse(kind.format(tmp_path / "x.jsonl"), "train_data").check()
    assert "is not" in problem.wrong and "x.jsonl" in problem.wrong


@pytest.mark.parametrize("kind", ["text:{}", "jsonl:{}#text", "parquet:{}#text"])
def test_a_pointer_is_no_damaged_file(tmp_path, kind):
    (tmp_path / "x").write_bytes(POINTER)
    (problem,) = parse(kind.format(tmp_path / "x")).check()
    assert "a git-lfs pointer" in problem.wrong and "git lfs pull" in problem.wrong


@pytest.mark.parametrize(
    ("contents", "command"),
    [
        (PRETTY, "jq -c '.[]' x.json"),
        (b'[{"text": "a"}]', "jq -c '.[]' x.json"),
        (b'[{\n"text": "a"\n}]', "jq -c '.[]' x.json"),
        (json.dumps({"text": "a"}, indent=1).encode(), "jq -c '.' x.json"),
    ],
)
def test_json_over_several_lines_is_told_with_the_command(tmp_path, contents, command):
    """However many bad rows are skipped: it is the file."""
    (tmp_path / "x.json").write_bytes(contents)
    (problem,) = check_lists([f"jsonl:{tmp_path}/x.json#text"], [], 9)
    assert command in problem.remedy


# --- columns that descend -------------------------------------------------------------------------------------------

NESTED = {"id": 1, "meta": {"set": "a", "n": 2}, "content": {"text": "x", "a.b": "y"}}


@pytest.mark.parametrize(("column", "found"), [("content.text", "x"), ("meta.set", "a"), ("content.a.b", "y")])
def test_columns_descend_as_conditions_do(tmp_path, column, found):
    (tmp_path / "x.jsonl").write_bytes(lines(NESTED))
    pyarrow.parquet.write_table(pa.Table.from_pylist([NESTED]), tmp_path / "x.parquet")
    assert read(f"jsonl:{tmp_path}/x.jsonl#{column}?meta.n=2&content.a.b=y") == [("x.jsonl:1", found)]
    if column != "content.a.b":  # Parquet's own reader takes every dot for a step
        assert read(f"parquet:{tmp_path}/x.parquet#{column}") == [("x.parquet:0", found)]


def test_a_key_that_is_spelled_with_dots_comes_first(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(lines({"a.b": "outer", "a": {"b": "inner"}}))
    assert read(f"jsonl:{tmp_path}/x.jsonl#a.b?a.b=outer") == [("x.jsonl:1", "outer")]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize(("column", "hint"), [("text", "content.text"), ("content.txt", "content.text")])
def test_a_hint_leads_to_a_column_that_is_taken(tmp_path, kind, column, hint):
    """'content' was suggested, which was refused next."""
    (tmp_path / "x.jsonl").write_bytes(lines({"id": 1, "content": {"text": "x"}}))
    pyarrow.parquet.write_table(pa.Table.from_pylist([{"id": 1, "content": {"text": "x"}}]), tmp_path / "x.parquet")
    (problem,) = parse(f"{kind}:{tmp_path}/x.{kind}#{column}").check()
    assert problem.remedy == f"did you mean '{hint}'?"
    with pytest.raises(UserError, match=r"is an object with text.*\n.*did you mean 'content.text'"):
        read(f"{kind}:{tmp_path}/x.{kind}#content")


# --- paths ----------------------------------------------------------------------------------------------------------


def test_brackets_of_a_name_that_exists_are_no_pattern(tmp_path):
    folder = tmp_path / "data [v2]"
    folder.mkdir()
    for name in ("a[1].jsonl", "b.jsonl"):
        (folder / name).write_bytes(lines({"text": name}))
    assert read(f"jsonl:{folder}/a[1].jsonl#text") == [("a[1].jsonl:1", "a[1].jsonl")]
    assert [text for _, text in read(f"jsonl:{folder}/[ab]*.jsonl#text")] == ["a[1].jsonl", "b.jsonl"]
    (problem,) = parse(f"jsonl:{tmp_path}/data [v3]/a.jsonl#text").check()
    assert "[[]" in problem.remedy


def test_a_path_without_a_kind_is_told_the_forms(tmp_path):
    (tmp_path / "x.txt").touch()
    with pytest.raises(UserError, match=r"no kind of data before the path\n.*text:FILE"):
        parse(f"{tmp_path}/x.txt")


def test_a_table_as_text_is_told_how_to_convert(tmp_path):
    (tmp_path / "x.csv").write_text("text,label\na,1\n")
    assert "to_parquet" in parse(f"jsonl:{tmp_path}/x.csv#text").check()[0].remedy
    with pytest.raises(UserError, match="to_parquet"):
        parse(f"csv:{tmp_path}/x.csv#text")
