"""Preparing a corpus: the same shards however it is done, going on after a crash, damage found and mended, and use."""

import json
import multiprocessing
import os
import signal
import subprocess

import datasets
import pytest
from filelock import FileLock

from tape_ds.cli import prepare_data
from tape_ds.data import prepared
from tape_ds.data.prepared import _in_processes, prepare
from tape_ds.data.sources import arrow, parse
from tape_ds.data.tokenized import document_features
from tape_ds.data.tokenizer import load_tokenizer
from tape_ds.errors import DiskError, UserError
from tests.data.conftest import CountingTokenizer, build_tokenizer, tokenize
from tests.disks import files, mounted

SETTINGS = {"shard_tokens": 200, "parts": 3}


@pytest.fixture
def spec(tmp_path):
    """Seven files of 0 to 40 documents, some of them empty."""
    (tmp_path / "texts").mkdir()
    for file, count in enumerate([5, 40, 0, 1, 25, 3, 12]):
        lines = [
            {"t": f"def f{line}(a, b): return {file}" if line % 6 else ""} for line in range(count)
        ]
        (tmp_path / "texts" / f"{file}.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines)
        )
    return f"jsonl:{tmp_path}/texts/*.jsonl#t"


@pytest.fixture
def silent():
    """The tokenizer of most tests: without BOS, so that an empty document has no token."""
    CountingTokenizer.texts = 0
    return build_tokenizer(bos=False)


@pytest.fixture
def done(spec, silent, tmp_path):
    prepare([spec], silent, tmp_path / "done", **SETTINGS)
    CountingTokenizer.texts = 0
    return tmp_path / "done"


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def shards(folder):
    return sorted(path.name for path in folder.glob("*.arrow"))


def test_rows_are_those_of_tokenize(spec, silent, tmp_path, monkeypatch):
    monkeypatch.setattr(prepared, "_BATCH_TOKENS", 64)  # several batches a shard
    prepare([spec], silent, tmp_path / "done", **SETTINGS)
    CountingTokenizer.texts = 0
    rows = tokenize([f"arrow:{tmp_path}/done"], silent, "train", tmp_path / "cache")
    assert not (tmp_path / "cache").exists(), "a prepared folder is not copied"
    assert CountingTokenizer.texts == 0
    expected = tokenize([spec], silent, "train", tmp_path / "cache")
    assert rows.to_dict() == expected.to_dict()
    assert expected.features == document_features() and rows.features == document_features("uint16")


def as_before(folder):
    """Make a prepared folder one of the format before, which had no type."""
    for file in (folder / "manifest.json", folder / "records" / "plan.json"):
        if not file.is_file():
            continue
        content = json.loads(file.read_text())
        settings = content.get("settings", content)
        assert settings.pop("ids") == "int32"
        settings["format"] = arrow.WIDE
        if "check" in content:
            del content["check"]
            content["check"] = arrow._hash(content)
        file.write_text(json.dumps(content))


def test_ids_are_stored_in_16_bits_where_these_are_enough(spec, silent, tmp_path, monkeypatch):
    """Folders with 32 bits, as all were, are read, finished, and mixed with others: with the same tokens."""
    prepare([spec], silent, tmp_path / "short", **SETTINGS)
    monkeypatch.setattr(prepared, "id_type", lambda tokenizer: "int32")
    prepare([spec], silent, tmp_path / "wide", **SETTINGS)
    as_before(tmp_path / "wide")
    monkeypatch.undo()

    stored = {name: datasets.load_from_disk(str(tmp_path / name)) for name in ("short", "wide")}
    assert stored["short"].features["input_ids"].feature.dtype == "uint16"
    assert stored["short"].data.nbytes < 0.8 * stored["wide"].data.nbytes
    assert stored["short"].to_list() == stored["wide"].to_list()
    before = contents(tmp_path / "wide")
    prepare([spec], silent, tmp_path / "wide", **SETTINGS)
    assert contents(tmp_path / "wide") == before, "it is done"

    specs = [f"arrow:{tmp_path}/wide", f"arrow:{tmp_path}/short", spec]
    for mixed in (specs, specs[:1], specs[::2]):
        rows = tokenize(mixed, silent, "train", tmp_path / "cache").to_list()
        assert rows == stored["wide"].to_list() * len(mixed)

    (tmp_path / "wide" / "manifest.json").unlink()
    (tmp_path / "wide" / shards(tmp_path / "wide")[0]).unlink()
    prepare([spec], silent, tmp_path / "wide", **SETTINGS)
    assert arrow.read_manifest(tmp_path / "wide").settings.format == arrow.WIDE
    assert datasets.load_from_disk(str(tmp_path / "wide")).to_list() == stored["short"].to_list()


def test_split_decides_what_is_read(silent, tmp_path):
    result = prepare(["stdlib"], silent, tmp_path / "new", split="heldout", parts=2)
    assert result.documents == 7
    assert [entry.file for entry in result.shards] == ["00000-00000.arrow", "00001-00000.arrow"]


class _Dying(int):
    def __le__(self, other):
        os._exit(9)


def _die_at(moment, arguments):
    """Prepare until a shard is half written, or the third is complete without a record, or only the manifest lacks."""
    original, written = prepared.write_shard, []

    def third_is_the_last(*args):
        written.append(original(*args))
        if len(written) == 3:
            os._exit(9)
        return written[-1]

    name, stand_in = {
        "in a shard": ("_BATCH_TOKENS", _Dying()),
        "before a record": ("write_shard", third_is_the_last),
        "before the manifest": ("DataManifest", lambda *args: os._exit(9)),
    }[moment]
    setattr(prepared, name, stand_in)
    prepare(*arguments, **SETTINGS)


@pytest.mark.parametrize("moment", ["in a shard", "before a record", "before the manifest"])
def test_killed_and_started_again_gives_the_same_folder(spec, silent, done, tmp_path, moment):
    arguments = ([spec], silent, tmp_path / "new")
    child = multiprocessing.get_context("fork").Process(target=_die_at, args=(moment, arguments))
    child.start()
    child.join(timeout=60)
    assert child.exitcode == 9
    (problem,) = parse(f"arrow:{tmp_path}/new", "train_data").check()
    assert "not finished" in problem.wrong
    finished = {path.stem for path in (tmp_path / "new" / "records").glob("*.arrow.json")}
    made = []
    prepare(*arguments, **SETTINGS, report=lambda entry: made.append(entry.file))
    assert contents(tmp_path / "new") == contents(done)
    assert not finished & set(made), "finished shards are kept"
    assert CountingTokenizer.texts <= 86, "no document is tokenised twice"


def test_other_arguments_are_refused_naming_each(spec, silent, done, tmp_path):
    before = contents(done)
    with pytest.raises(UserError) as caught:
        prepare(["stdlib"], build_tokenizer(), done, split="heldout", shard_tokens=7, parts=2)
    fields = {problem.field for problem in caught.value.problems}
    assert fields == {"split", "tokenizer", "data", "shard_tokens", "parts"}
    with (tmp_path / "texts" / "0.jsonl").open("a") as file:
        file.write('{"t": "more"}\n')
    with pytest.raises(UserError, match="or it changed since"):
        prepare([spec], silent, done, **SETTINGS)
    assert contents(done) == before


def test_other_folders_are_left_alone(spec, silent, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    for name in ("mine", "mine/notes.txt"):
        with pytest.raises(UserError, match="holds something else"):
            prepare([spec], silent, tmp_path / name, **SETTINGS)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_two_at_once_are_refused(spec, silent, tmp_path):
    (tmp_path / "new" / "records").mkdir(parents=True)
    with (
        FileLock(tmp_path / "new" / "records" / "lock"),
        pytest.raises(UserError, match="another preparation"),
    ):
        prepare([spec], silent, tmp_path / "new", **SETTINGS)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def refused(spec, tokenizer, cache):
    with pytest.raises(UserError) as caught:
        tokenize([spec], tokenizer, "train", cache)
    assert {(problem.field, problem.value) for problem in caught.value.problems} == {
        ("train_data", spec)
    }
    return [problem.wrong for problem in caught.value.problems]


def test_run_refuses_a_damaged_folder(silent, done, tmp_path):
    spec, cache = f"arrow:{done}", tmp_path / "cache"
    first, *_ = shards(done)
    whole = (done / first).read_bytes()
    (done / first).write_bytes(whole[:-8])
    assert refused(spec, silent, cache) == [
        f"shard {first} has {len(whole) - 8} bytes instead of {len(whole)}"
    ]
    (done / first).unlink()
    assert refused(spec, silent, cache) == [f"shard {first} is missing"]


def test_run_refuses_another_tokenizer(done, tmp_path):
    assert refused(f"arrow:{done}", build_tokenizer(), tmp_path) == [
        "its token ids are those of another tokenizer"
    ]


def test_a_folder_may_be_moved(silent, done, tmp_path):
    before = parse(f"arrow:{done}").fingerprint()
    done.rename(tmp_path / "moved")
    assert parse(f"arrow:{tmp_path}/moved").fingerprint() == before


def test_a_manifest_that_was_changed_or_is_of_another_version_is_refused(
    silent, done, tmp_path, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(arrow, "FORMAT", arrow.FORMAT + 1)
        assert "its format is" in refused(f"arrow:{done}", silent, tmp_path)[0]
    manifest = done / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"train"', '"heldout"'))
    assert "its check sum is wrong" in refused(f"arrow:{done}", silent, tmp_path)[0]


def test_damaged_shards_and_records_are_made_again(spec, silent, done):
    before = contents(done)
    first, second, *_, last = shards(done)
    (done / first).write_bytes(b"short")
    (done / last).unlink()
    (done / "records" / f"{second}.json").write_text("{")
    (done / "manifest.json").unlink()
    prepare([spec], silent, done, **SETTINGS)
    assert contents(done) == before


def test_what_prepares_nothing_is_refused(silent, done, tmp_path):
    (tmp_path / "e.txt").write_text("")
    for spec, settings, wrong in (
        ("stdlib", {"shard_tokens": 0, "parts": -1, "processes": 0}, "3 problems"),
        (f"arrow:{done}", {}, "token ids already"),
        (f"text:{tmp_path}/e.txt", {}, "no document has any token"),
    ):
        with pytest.raises(UserError, match=wrong):
            prepare([spec], silent, tmp_path / "new", **settings)


@pytest.mark.slow
def test_two_workers_of_the_command_write_what_one_does(spec, silent, tmp_path):
    tokenizer = str(tmp_path / "tokenizer")
    silent.save_pretrained(tokenizer)
    prepare([spec], load_tokenizer(tokenizer), tmp_path / "one", **SETTINGS)
    words = (
        f"--tokenizer {tokenizer} --shard_tokens 200 --parts 3 --output {tmp_path}/two --workers 2"
    )
    assert prepare_data.main(["--data", spec, *words.split()]) == 0
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_check_names_every_damaged_shard_and_exits_with_two(done, capsys):
    assert prepare_data.main(["--check", str(done), "--workers", "2"]) == 0
    first, second, third, *_ = shards(done)
    flip(done / first)
    flip(done / second)
    (done / third).unlink()
    assert prepare_data.main(["--check", str(done)]) == 2
    found = capsys.readouterr().err
    assert f"shard {first} is damaged" in found and f"shard {second} is damaged" in found
    assert f"shard {third} is missing" in found
    (done / "manifest.json").write_text("{")
    assert [prepare_data.main(["--check", str(folder)]) for folder in (done, done / "absent")] == [
        2,
        2,
    ]


def test_a_disk_that_fills_up_is_told_and_gone_on_from(tmp_path, spec, silent):
    settings = {"shard_tokens": 4000, "parts": 2}
    with open(tmp_path / "texts" / "7.jsonl", "w", encoding="utf-8") as file:
        file.writelines(
            json.dumps({"t": f"def f{n}(a, b): return {n}"}) + "\n" for n in range(3000)
        )
    whole = prepare([spec], silent, tmp_path / "whole", **settings)
    with mounted(tmp_path / "disk", "128k") as disk:
        with pytest.raises(DiskError, match=r"output = .* is full"):
            prepare([spec], silent, disk / "out", **settings)
        assert not [name for name in files(disk) if name.endswith(".writing")]
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        assert prepare([spec], silent, disk / "out", **settings) == whole


def kill_itself(task):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_is_reported(monkeypatch):
    context = multiprocessing.get_context("fork")  # in no time
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)
    with pytest.raises(UserError, match="memory runs out"):
        _in_processes(kill_itself, [1, 2], 2)
