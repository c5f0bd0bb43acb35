"""Data specs: what they yield, in which order, and how a wrong one is reported."""

import errno
import gzip
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest
from huggingface_hub.errors import HTTPError

from tape_ds import storage
from tape_ds.data.sources import HELD_OUT, base, check_lists, files, parse, parse_all, standard_library
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


# --- the standard library -------------------------------------------------------------------------------------------


def test_a_package_gives_its_file():
    spec = "package:torch/include/pybind11/pybind11.h"
    assert "namespace" in texts(spec)[0] and names(spec) == ["pybind11.h"]
    for wrong in ("package:torch/absent", "package:absent/x", "package:torch", "package:", "package:__main__/x"):
        (problem,) = parse(wrong).check()
        assert problem.wrong == "no installed package has this file"


def test_stdlib_splits_are_real_disjoint_and_sorted():
    train, held_out = names("stdlib"), names("stdlib", "heldout")
    assert held_out == sorted(HELD_OUT)
    assert not set(train) & set(held_out)
    assert train == sorted(train)
    assert len(train) > 300
    assert sum(map(len, texts("stdlib"))) > 5_000_000
    assert {"ast.py", "asyncio/base_events.py", "json/decoder.py"} <= set(train)


def test_stdlib_leaves_out_what_differs_between_machines():
    for name in names("stdlib"):
        parts = name.split("/")
        assert not {"test", "tests", "site-packages", "idlelib", "tkinter", "__pycache__", "ensurepip"} & set(parts)
        assert not parts[0].startswith(("_sysconfigdata", "config-"))


@pytest.mark.parametrize("name", HELD_OUT)
def test_held_out_files_are_long_documents(name):
    (text,) = texts(f"stdlib:{name}")
    assert len(text) > 80_000


def test_stdlib_skips_unreadable_files(tmp_path, monkeypatch):
    for name in HELD_OUT:
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / "latin.py").write_bytes(b"# \xff\xfe\n")
    (tmp_path / "empty.py").write_text("\n")
    (tmp_path / "fine.py").write_text("y = 2\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "no.py").write_text("z = 3\n")
    monkeypatch.setattr(standard_library.sysconfig, "get_path", lambda name: str(tmp_path))
    assert parse("stdlib").check() == []
    assert names("stdlib") == ["fine.py"]


def test_python_without_library_sources_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(standard_library.sysconfig, "get_path", lambda name: str(tmp_path / "python311.zip"))
    (problem,) = parse("stdlib", "train_data").check()
    assert problem.field == "train_data"
    assert "without the sources" in problem.wrong
    assert "inspect.py" in problem.wrong


def test_stdlib_file_by_name():
    assert names("stdlib:typing.py") == ["typing.py"] == names("stdlib:typing.py", "heldout")
    (problem,) = parse("stdlib:typin.py").check()
    assert "'typing.py'" in problem.remedy
    assert parse("stdlib:").check()


def test_stdlib_is_the_same_in_every_process():
    """Neither the hash seed nor the locale decides the order."""
    program = "from tape_ds.data.sources import parse; s = parse('stdlib'); print(s.fingerprint(), "
    program += "[d.name for d in s.documents('train')])"
    results = set()
    for hash_seed, locale in (("1", "C"), ("77", "C.UTF-8")):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "LC_ALL": locale}
        run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        results.add(run.stdout)
    assert len(results) == 1


# --- files ----------------------------------------------------------------------------------------------------------


def test_text_files_in_path_order(folder):
    assert texts(f"text:{folder}/*.txt") == ["first", "second"]
    assert names(f"text:{folder}/**/*.txt") == ["a.txt", "b.txt", "deep/c.txt"]
    assert texts(f"text:{folder}/deep/c.txt") == ["third\nüé"]


def test_relative_glob_and_home(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    assert names("text:*.txt") == ["a.txt", "b.txt"] == names("text:~/*.txt")


def test_jsonl_lines_plain_and_compressed(folder):
    assert texts(f"jsonl:{folder}/*.jsonl*#body") == ["one", "two", "three"]
    assert names(f"jsonl:{folder}/*.jsonl*#body") == ["x.jsonl:1", "x.jsonl:3", "y.jsonl.gz:1"]


def test_parquet_rows(folder):
    assert texts(f"parquet:{folder}/z.parquet#content") == [f"row {number}" for number in range(600)]
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
    """Its date stood for its contents: a copy was other data, and a run that had moved could not be resumed."""
    monkeypatch.setattr(storage, "HASHED_WHOLE", 3)
    monkeypatch.setattr(storage, "BLOCK_BYTES", 1)
    copy = tmp_path / "copy" / "a.txt"
    copy.parent.mkdir()
    shutil.copyfile(folder / "a.txt", copy)
    os.utime(copy, ns=(1, 1))
    spec, before = f"text:{copy}", parse(f"text:{folder}/a.txt").fingerprint()
    assert parse(spec).fingerprint() == before
    with base.dated_identities():
        assert base.file_identity(copy) == "5@1", "as older checkpoints have it"
    copy.write_text("Other")
    assert parse(spec).fingerprint() != before


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ('{"body": "cut', "x.jsonl:4 is not JSON"),
        ("[" * 10**6, "x.jsonl:4 is not JSON"),
        ("[1]", "x.jsonl:4 is a list"),
        ('{"body": null}', "holds NoneType"),
        (r'{"body": "half \ud83d"}', "'body' is no Unicode text"),
    ],
)
def test_bad_line_is_named(folder, line, wrong):
    """Half of a character was a TypeError of the tokenizer, and a line too deep a RecursionError."""
    with (folder / "x.jsonl").open("a") as file:
        file.write(line)
    assert parse(f"jsonl:{folder}/x.jsonl#body").check() == []
    with pytest.raises(UserError, match=wrong) as caught:
        texts(f"jsonl:{folder}/x.jsonl#body")
    assert "x.jsonl:4" in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        (lambda raw: raw[:-9], "ended before the end-of-stream marker"),
        (lambda raw: raw[:10] + b"y\0" + b"\xff" * 20, "invalid block type"),
        (lambda raw: raw[:-8] + bytes(8), "CRC check failed"),
    ],
)
def test_damaged_archive_is_named(folder, damage, wrong):
    """Cut or corrupted, a file met in the middle of reading is a message like one met by a check."""
    path = folder / "y.jsonl.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=rf"y\.jsonl\.gz cannot be read: .*{wrong}.*\n.*repair the file"):
        texts(f"jsonl:{path}#body")
    assert wrong in parse(f"jsonl:{path}#body").check()[0].wrong


def test_a_reader_left_open_ends_quietly(folder):
    """A run ends with its streams open; closed as the interpreter ended, each printed a TypeError."""
    program = "from tape_ds.data.sources import parse; reader = parse('SPEC').documents('train'); next(reader)"
    program = program.replace("SPEC", f"jsonl:{folder}/*.jsonl*#body")
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "Exception ignored" not in run.stderr


def test_text_that_is_not_utf8_is_named(folder):
    (folder / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"a\.txt is not UTF-8 \(byte 3\)"):
        texts(f"text:{folder}/a.txt")


def test_a_column_that_only_later_files_lack_is_named(folder, monkeypatch):
    """Files are peeked into up to a number, and remote ones not at all: the others ended in an IndexError."""
    monkeypatch.setattr(files, "_PEEKED_FILES", 1)
    pyarrow.parquet.write_table(pa.table({"contents": ["x"]}), folder / "zz.parquet")
    with pytest.raises(UserError, match=r"zz\.parquet has no column 'content'\n.*did you mean 'contents'"):
        texts(f"parquet:{folder}/*.parquet#content")


def test_a_file_that_may_not_be_read_is_named(folder, monkeypatch):
    """Beyond those that are peeked into it was a PermissionError of the fingerprint."""

    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(storage, "digest", refuse)
    with pytest.raises(UserError, match=r"cannot be read: .*Permission denied: '.*a\.txt'"):
        parse(f"text:{folder}/*.txt").fingerprint()


def test_a_name_that_is_not_utf8_is_named(folder):
    """It ended in a UnicodeEncodeError of the fingerprint."""
    (folder / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    (problem,) = parse(f"text:{folder}/*.txt").check()
    assert problem.wrong == "the name of the file caf?.txt is not UTF-8"


# --- the hub --------------------------------------------------------------------------------------------------------


def hub_rows(numbers):
    """Rows of the shards that ``numbers`` stand for."""
    for number in itertools.chain(*numbers):
        yield {"text": f"t{number}", "code": f"c{number}", "n": number}


@pytest.fixture
def hub(monkeypatch):
    """Stands for the network: records the call and streams ten rows in two shards."""
    calls = []

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs))
        return datasets.IterableDataset.from_generator(hub_rows, gen_kwargs={"numbers": [range(4), range(4, 10)]})

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


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        ("hub:", "hub:NAME"),
        ("hub:a/b/c", "hub:NAME"),
        ("hub:a/b::train[:0]", "hub:NAME"),
    ],
)
def test_hub_spec_checked(spec, remedy):
    (problem,) = parse(spec).check()
    assert remedy in problem.remedy


def test_hub_column_problems_name_the_remedy(hub):
    with pytest.raises(UserError, match=r"did you mean 'text'\?"):
        texts("hub:squad#txt")
    with pytest.raises(UserError, match="squad:train:0: 'n' holds int"):
        texts("hub:squad#n")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Dataset scripts are no longer supported"),
        ConnectionError("no network"),
        ValueError("Bad"),
        HTTPError("server disconnected"),
    ],
)
def test_hub_failure_becomes_one_message(monkeypatch, error):
    def load_dataset(*args, **kwargs):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(UserError, match=str(error)):
        texts("hub:squad")


# --- shards ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "shards"),
    [
        ("text:DIR/**/*.txt", ["a.txt", "b.txt", "deep/c.txt"]),
        ("jsonl:DIR/*.jsonl*#body", ["x.jsonl", "y.jsonl.gz"]),
        ("parquet:DIR/*.parquet#content", ["z.parquet"]),
        ("stdlib:typing.py", ["typing.py"]),
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
    one, other = [shard.documents() for shard in reversed(found)], [shard.documents() for shard in reversed(found)]
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


# --- tokenised folders ----------------------------------------------------------------------------------------------


def test_arrow_folder_rows(tmp_path):
    datasets.Dataset.from_dict({"input_ids": [[1, 2], [3]]}).save_to_disk(str(tmp_path / "ids"))
    source = parse(f"arrow:{tmp_path}/ids")
    assert source.check() == []
    assert [(name, list(ids)) for name, ids in source.token_rows()] == [("ids:0", [1, 2]), ("ids:1", [3])]
    with pytest.raises(TypeError, match="token ids"):
        source.documents("train")
    with pytest.raises(TypeError, match="token ids"):
        source.shards("train")


def test_arrow_folder_checked(tmp_path):
    def wrong(name):
        (problem,) = parse(f"arrow:{tmp_path}/{name}").check()
        return str(problem)

    both = datasets.Dataset.from_dict({"text": ["a"]})
    both.save_to_disk(str(tmp_path / "text"))
    datasets.DatasetDict(train=both).save_to_disk(str(tmp_path / "dict"))
    datasets.Dataset.from_dict({"input_ids": [1, 2]}).save_to_disk(str(tmp_path / "flat"))
    datasets.Dataset.from_dict({"input_ids": [["a"]]}).save_to_disk(str(tmp_path / "letters"))
    (tmp_path / "empty").mkdir()
    assert "no such folder" in wrong("absent")
    for spec in ("arrow:~nobody-here/ids", f"arrow:{'x' * 300}"):
        assert "no such folder" in parse(spec).check()[0].wrong
    assert "not a saved dataset" in wrong("empty")
    assert "DIR/SPLIT" in wrong("dict")
    for name, columns in (("text", "text"), ("flat", "input_ids"), ("letters", "input_ids")):
        assert f"no column 'input_ids' of lists of integers (columns: {columns})" in wrong(name)
    datasets.Dataset.from_dict({"input_ids": [[1, 2]]}).save_to_disk(str(tmp_path / "part"))
    (shard,) = (tmp_path / "part").glob("*.arrow")
    shard.unlink()
    assert f"{shard.name} of it is missing" in wrong("part")
    for state in ("{}", "[]", '{"_data_files": [3]}'):
        (tmp_path / "part" / "state.json").write_text(state)
        assert "not a saved dataset" in wrong("part")


def test_a_damaged_arrow_folder_is_named(tmp_path):
    """Cut by a copy that broke off, it ended in a traceback of pyarrow's."""
    datasets.Dataset.from_dict({"input_ids": [[1, 2, 3]] * 100}).save_to_disk(str(tmp_path / "ids"))
    (shard,) = (tmp_path / "ids").glob("*.arrow")
    shard.write_bytes(shard.read_bytes()[:1000])
    (source,) = parse_all([f"arrow:{tmp_path}/ids"])
    with pytest.raises(UserError, match=r"it cannot be read: .*Expected to be able to read"):
        list(source.token_rows())
    info = tmp_path / "ids" / "dataset_info.json"
    info.write_text(
        json.dumps(json.loads(info.read_text()) | {"features": {"name": {}, "input_ids": [{"dtype": "int32"}]}})
    )
    with pytest.raises(UserError, match="it cannot be read: "):
        list(source.token_rows())


# --- wrong data specs -----------------------------------------------------------------------------------------------


def test_unknown_kind_gets_a_close_match():
    with pytest.raises(UserError, match=r"did you mean 'parquet'\?"):
        parse("parqet:x#y")
    with pytest.raises(UserError, match="not a data spec"):
        parse("")
    for spec, wrong in (("text:~a\0", "null byte"), ("bin:~a\udcff", "not UTF-8")):
        with pytest.raises(UserError, match=wrong):
            parse(spec)


def test_file_problems(folder):
    def wrong(spec):
        return [problem.wrong for problem in parse(spec.replace("DIR", str(folder))).check()]

    assert wrong("text:DIR/*.md") == ["no file matches"]
    assert wrong("text:DIR/absent.txt") == ["no such file"]
    for spec in ("text:", "text:~nobody-here/a.txt"):
        assert wrong(spec) == ["no such file"], spec
    for spec in ("text:.", "text:/", "text:DIR"):
        assert wrong(spec) == ["a folder, not a file"], spec
    assert wrong("text:DIR/a.txt#body") == ["a text file has no '#field'"]
    assert wrong("jsonl:DIR/absent") == ["no '#field' names the column of the text", "no such file"]
    assert wrong("jsonl:DIR/x.jsonl#bod") == ["x.jsonl:1 has no column 'bod'"]
    assert wrong("parquet:DIR/z.parquet#body") == ["z.parquet has no column 'body'"]
    assert "cannot be read" in wrong("parquet:DIR/a.txt#body")[0]
    assert "is not JSON" in wrong("jsonl:DIR/a.txt#body")[0]
    (folder / "bad.gz").write_bytes(b"not gzip")
    assert "cannot be read" in wrong("text:DIR/bad.gz")[0]


def test_all_problems_at_once(folder):
    with pytest.raises(UserError) as caught:
        parse_all(["txt:a", f"text:{folder}/*.md", "stdlib:nope", f"jsonl:{folder}/none"], "train_data")
    assert len(caught.value.problems) == 5
    assert {problem.field for problem in caught.value.problems} == {"train_data"}
    for bad in ([], "stdlib"):
        with pytest.raises(UserError, match="not a list of data specs"):
            parse_all(bad)


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
    assert len(check_lists(["txt:a"], [])) == len(check_lists([], [])) == 1
