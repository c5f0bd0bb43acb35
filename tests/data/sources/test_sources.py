"""Data specs: what they yield, in which order, and how a wrong one is reported."""

import gzip
import itertools
import json
import os
import pickle
import shutil

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest

from tape_ds import storage
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.sources import HELD_OUT, check_lists, file_identity, parse, parse_all
from tape_ds.errors import UserError


def texts(spec, split="train"):
    return [document.text for document in parse(spec).documents(split)]


def names(spec, split="train"):
    return [document.name for document in parse(spec).documents(split)]


@pytest.fixture
def folder(tmp_path):
    """Two text files out of order, a deeper one, two jsonl files (one compressed) and a parquet file."""
    (tmp_path / "deep").mkdir()
    for name, text in {"b.txt": "second", "a.txt": "first", "deep/c.txt": "third\nüé"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    lines = [{"body": "one", "id": 1}, {"body": "two", "id": 2}]
    (tmp_path / "x.jsonl").write_text("\n\n".join(json.dumps(line) for line in lines) + "\n")
    with gzip.open(tmp_path / "y.jsonl.gz", "wt") as file:
        file.write(json.dumps({"body": "three"}))
    table = pa.table({"content": [f"row {number}" for number in range(600)], "other": range(600)})
    pyarrow.parquet.write_table(table, tmp_path / "z.parquet")
    return tmp_path


def test_a_package_gives_its_file():
    spec = "package:torch/include/pybind11/pybind11.h"
    assert "namespace" in texts(spec)[0] and names(spec) == ["pybind11.h"]
    assert parse("package:torch/absent").check()[0].wrong == "no installed package has this file"


def test_stdlib_splits_are_real_disjoint_and_sorted():
    train, held_out = names("stdlib"), names("stdlib", "heldout")
    assert held_out == sorted(HELD_OUT)
    assert not set(train) & set(held_out)
    assert train == sorted(train)
    assert len(train) > 300
    assert sum(map(len, texts("stdlib"))) > 5_000_000
    assert {"ast.py", "asyncio/base_events.py", "json/decoder.py"} <= set(train)
    assert all(len(text) > 80_000 for text in texts("stdlib", "heldout"))


def test_stdlib_leaves_out_what_differs_between_machines():
    for name in names("stdlib"):
        parts = name.split("/")
        assert not {
            "test",
            "tests",
            "site-packages",
            "idlelib",
            "tkinter",
            "__pycache__",
            "ensurepip",
        } & set(parts)
        assert not parts[0].startswith(("_sysconfigdata", "config-"))


def test_text_files_in_path_order(folder):
    assert texts(f"text:{folder}/*.txt") == ["first", "second"]
    assert names(f"text:{folder}/**/*.txt") == ["a.txt", "b.txt", "deep/c.txt"]
    assert texts(f"text:{folder}/deep/c.txt") == ["third\nüé"]


def test_jsonl_lines_plain_and_compressed(folder):
    assert texts(f"jsonl:{folder}/*.jsonl*#body") == ["one", "two", "three"]
    assert names(f"jsonl:{folder}/*.jsonl*#body") == ["x.jsonl:1", "x.jsonl:3", "y.jsonl.gz:1"]


def test_parquet_rows(folder):
    assert texts(f"parquet:{folder}/z.parquet#content") == [
        f"row {number}" for number in range(600)
    ]
    assert names(f"parquet:{folder}/z.parquet#content")[599] == "z.parquet:599"


def test_fingerprint_follows_contents_not_place(folder, tmp_path_factory):
    before = parse(f"text:{folder}/*.txt").fingerprint()
    elsewhere = tmp_path_factory.mktemp("copy")
    for name in ("a.txt", "b.txt"):
        (elsewhere / name).write_text((folder / name).read_text())
    assert parse(f"text:{elsewhere}/*.txt").fingerprint() == before
    (elsewhere / "b.txt").write_text("Second")  # the same size
    assert parse(f"text:{elsewhere}/*.txt").fingerprint() != before
    jsonl = f"jsonl:{folder}/x.jsonl"
    assert parse(f"{jsonl}#body").fingerprint() != parse(f"{jsonl}#id").fingerprint()


def test_a_large_file_is_known_again_wherever_it_is_copied(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "HASHED_WHOLE", 3)
    monkeypatch.setattr(storage, "BLOCK_BYTES", 1)
    copy = tmp_path / "copy" / "a.txt"
    copy.parent.mkdir()
    shutil.copyfile(folder / "a.txt", copy)
    os.utime(copy, ns=(1, 1))
    spec, before = f"text:{copy}", parse(f"text:{folder}/a.txt").fingerprint()
    assert parse(spec).fingerprint() == before
    with file_identity.dated_identities():
        assert file_identity.file_identity(copy) == "5@1", "as older checkpoints have it"
    copy.write_text("Other")
    assert parse(spec).fingerprint() != before


def hub_rows(numbers):
    for number in itertools.chain(*numbers):
        yield {"text": f"t{number}", "code": f"c{number}", "n": number}


@pytest.fixture
def hub(monkeypatch):
    """Stands for the network: records the call and streams ten rows in two shards."""
    calls = []

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs))
        return datasets.IterableDataset.from_generator(
            hub_rows, gen_kwargs={"numbers": [range(4), range(4, 10)]}
        )

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


def test_hub_spec_in_full(hub):
    spec = "hub:a/b.c@refs/convert/parquet:en.x:test[:3]#code"
    assert parse(spec).check() == []
    assert texts(spec) == ["c0", "c1", "c2"]
    assert names(spec)[2] == "a/b.c:test:2"
    expected = {"split": "test", "revision": "refs/convert/parquet", "streaming": True}
    assert hub == [(("a/b.c", "en.x"), expected)] * 2, "in particular, no trust_remote_code"


def test_hub_defaults(hub):
    assert len(texts("hub:squad")) == 10
    texts("hub:squad", "heldout")
    texts("hub:squad::dev")
    assert [kwargs["split"] for _, kwargs in hub] == ["train", "validation", "dev"]
    assert {args for args, _ in hub} == {("squad", None)}
    with pytest.raises(UserError, match="did you mean 'text'"):
        texts("hub:squad#txt")


def test_a_hub_that_cannot_be_reached_is_one_message(monkeypatch):
    def load_dataset(*args, **kwargs):
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(UserError, match="no network"):
        texts("hub:squad")


@pytest.mark.parametrize(
    ("spec", "shards"),
    [
        ("text:DIR/**/*.txt", ["a.txt", "b.txt", "deep/c.txt"]),
        ("jsonl:DIR/*.jsonl*#body", ["x.jsonl", "y.jsonl.gz"]),
        ("parquet:DIR/*.parquet#content", ["z.parquet"]),
        ("hub:a/b", ["a/b:train:0", "a/b:train:1"]),
        ("hub:a/b::train[:5]", ["a/b:train"]),
    ],
)
def test_shards_one_after_another_are_the_documents(folder, hub, spec, shards):
    """Each can be read alone, in any order, more than once at a time, and in another process."""
    source = parse(spec.replace("DIR", str(folder)))
    expected = [document.text for document in source.documents("train")]
    found = source.shards("train")
    assert [shard.name for shard in found] == shards
    one, other = (
        [shard.documents() for shard in reversed(found)],
        [shard.documents() for shard in reversed(found)],
    )
    pairs = [list(zip(*both, strict=True)) for both in zip(one, other, strict=True)]
    assert [document.text for pair in reversed(pairs) for document, _ in pair] == expected
    assert all(document == again for pair in pairs for document, again in pair)
    copies = pickle.loads(pickle.dumps(found))
    assert [document.text for shard in copies for document in shard.documents()] == expected


def test_hub_stream_that_breaks_off_is_named(monkeypatch):
    def rows(numbers):
        yield from ({"text": f"t{number}"} for number in range(300))
        raise ConnectionError("gone")

    stream = datasets.IterableDataset.from_generator(rows, gen_kwargs={"numbers": [0]})
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: stream)
    documents = parse("hub:a/b").shards("train")[0].documents()
    with pytest.raises(UserError, match="a/b:train:0: the stream broke off: gone"):
        list(documents)


def test_arrow_folder_rows(tmp_path):
    datasets.Dataset.from_dict({"input_ids": [[1, 2], [3]]}).save_to_disk(str(tmp_path / "ids"))
    source = parse(f"arrow:{tmp_path}/ids")
    assert source.check() == []
    assert [(name, list(ids)) for name, ids in source.token_rows()] == [
        ("ids:0", [1, 2]),
        ("ids:1", [3]),
    ]
    with pytest.raises(TypeError, match="token ids"):
        source.shards("train")


def test_a_damaged_arrow_folder_is_named(tmp_path):
    datasets.Dataset.from_dict({"input_ids": [[1, 2, 3]] * 100}).save_to_disk(str(tmp_path / "ids"))
    (shard,) = (tmp_path / "ids").glob("*.arrow")
    shard.write_bytes(shard.read_bytes()[:1000])
    (source,) = parse_all([f"arrow:{tmp_path}/ids"])
    with pytest.raises(UserError, match=r"it cannot be read: .*Expected to be able to read"):
        list(source.token_rows())
    shard.unlink()
    with pytest.raises(UserError, match=f"{shard.name} of it is missing"):
        parse_all([f"arrow:{tmp_path}/ids"])


def test_an_arrow_folder_reads_files_of_its_own_alone(tmp_path):
    """state.json could name a file elsewhere, which was read and was in no fingerprint: a change of it was not seen."""
    for name in ("ids", "other"):
        datasets.Dataset.from_dict({"input_ids": [[1, 2], [3]]}).save_to_disk(str(tmp_path / name))
    (shard,) = (tmp_path / "other").glob("*.arrow")
    state = tmp_path / "ids" / "state.json"
    whole = json.loads(state.read_text())
    for named in (f"../other/{shard.name}", str(shard)):
        state.write_text(json.dumps({**whole, "_data_files": [{"filename": named}]}))
        with pytest.raises(
            UserError, match=r"names .*, and a file outside its folder is in no fingerprint"
        ):
            parse_all([f"arrow:{tmp_path}/ids"])
    shutil.copyfile(shard, tmp_path / "ids" / "moved.bin")
    state.write_text(json.dumps({**whole, "_data_files": [{"filename": "moved.bin"}]}))
    (source,) = parse_all([f"arrow:{tmp_path}/ids"])
    before = source.fingerprint()
    (tmp_path / "ids" / "moved.bin").write_bytes(shard.read_bytes() + b"\0")
    assert source.fingerprint() != before


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ("parqet:x#y", "did you mean 'parquet'"),
        ("DIR/a.txt", "no kind of data before the path"),
        ("text:DIR/*.md", "no file matches"),
        ("text:DIR", "a folder, not a file"),
        ("text:DIR/a.txt#body", "a text file has no '#field'"),
        ("jsonl:DIR/x.jsonl", "no '#field' names the column"),
        ("parquet:DIR/z.parquet#body", "z.parquet has no column 'body'"),
        ("parquet:DIR/a.txt#body", "cannot be read"),
        ("jsonl:DIR/cut.gz#body", "cut.gz cannot be read"),
        ("arrow:DIR/absent", "no such folder"),
        ("arrow:DIR/deep", "not a saved dataset"),
        ("arrow:DIR/letters", "no column 'input_ids' of lists of integers"),
        ("hub:a/b/c", "not the data spec of a hub dataset"),
    ],
)
def test_what_cannot_be_read_is_refused_before_the_run(folder, spec, wrong):
    (folder / "cut.gz").write_bytes((folder / "y.jsonl.gz").read_bytes()[:-9])
    datasets.Dataset.from_dict({"input_ids": [["a"]]}).save_to_disk(str(folder / "letters"))
    with pytest.raises(UserError, match=wrong):
        parse_all([spec.replace("DIR", str(folder))])


def test_all_problems_at_once(folder):
    with pytest.raises(UserError) as caught:
        parse_all(
            ["txt:a", f"text:{folder}/*.md", "stdlib:nope", f"jsonl:{folder}/none"], "train_data"
        )
    assert len(caught.value.problems) == 5
    assert {problem.field for problem in caught.value.problems} == {"train_data"}
    with pytest.raises(UserError, match="not a list of data specs"):
        parse_all("stdlib")


def test_training_on_the_evaluation_is_refused(folder):
    assert check_lists(["stdlib"], ["stdlib"]) == []
    assert check_lists(["stdlib"], ["stdlib:typing.py", f"text:{folder}/a.txt"]) == []
    (problem,) = check_lists(["stdlib"], ["stdlib:ast.py"])
    assert (problem.field, problem.value) == ("eval_data", "stdlib:ast.py")
    (problem,) = check_lists(["stdlib:typing.py"], ["stdlib"])
    assert "'stdlib:typing.py'" in problem.wrong
    (folder / "link.txt").symlink_to(folder / "a.txt")
    (problem,) = check_lists([f"text:{folder}/a*"], [f"text:{folder}/link.txt"])
    assert "also trained on" in problem.wrong
    assert check_lists(["hub:x/y"], ["hub:x/y"]) == []
    assert len(check_lists(["hub:x/y"], ["hub:x/y::train"])) == 1


REPOSITORIES = [
    {"content": "a = 1", "repo": {"name": "x"}},
    {"content": "b = 2", "repo": {"name": "x"}},
    {"content": "c = 3", "repo": {"name": "y"}},
    {"content": "d = 4", "repo": {"name": "x"}},
]


def write_repositories(folder):
    (folder / "code.jsonl").write_text("".join(json.dumps(row) + "\n" for row in REPOSITORIES))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(REPOSITORIES), folder / "code.parquet")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_neighbouring_rows_of_one_value_are_one_document(tmp_path, kind):
    """By hand: two files of x, one of y, and one of x that comes later, a document of its own; each has the name of its
    first row."""
    write_repositories(tmp_path)
    spec = f"{kind}:{tmp_path}/code.{kind}#content"
    (apart,) = parse_all([spec])
    (together,) = parse_all([f"{spec}&by=repo.name"])
    rows = list(apart.documents("train"))
    found = list(together.documents("train"))
    assert [document.text for document in rows] == ["a = 1", "b = 2", "c = 3", "d = 4"]
    assert [document.text for document in found] == ["a = 1\n\nb = 2", "c = 3", "d = 4"]
    assert [document.name for document in found] == [rows[0].name, rows[2].name, rows[3].name]
    assert apart.fingerprint() != together.fingerprint()
    if kind == "jsonl":
        (of_x,) = parse_all([f"{spec}&by=repo.name?repo.name=x"])
        assert [document.text for document in of_x.documents("train")] == [
            "a = 1\n\nb = 2\n\nd = 4"
        ]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("by", ["owner", ""])
def test_a_column_to_group_by_that_is_not_there_is_refused_before_work_starts(tmp_path, kind, by):
    write_repositories(tmp_path)
    with pytest.raises(UserError, match="has no column") as raised:
        parse_all([f"{kind}:{tmp_path}/code.{kind}#content&by={by}"])
    assert (by or "content&by=") in str(raised.value)


def test_a_row_without_the_column_to_group_by_is_left_out(tmp_path):
    rows = [*REPOSITORIES[:1], {"content": "lost"}, *REPOSITORIES[1:2]]
    (tmp_path / "code.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = f"jsonl:{tmp_path}/code.jsonl#content&by=repo.name"
    (source,) = parse_all([spec], bad_rows=BadRows(1))
    assert [document.text for document in source.documents("train")] == ["a = 1\n\nb = 2"]
    with pytest.raises(UserError, match="has no column 'repo"):
        list(parse_all([spec])[0].documents("train"))
