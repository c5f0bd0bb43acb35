"""Preparing a corpus: the same shards however it is done, going on after a crash, damage found and mended, and use."""

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from filelock import FileLock

from tape_ds.data import prepared
from tape_ds.data.pack import pack
from tape_ds.data.prepared import _in_processes, prepare, verify, write_shard
from tape_ds.data.sources import Document, parse
from tape_ds.data.tokenized import document_features, encode, tokenize
from tape_ds.errors import DiskError, Problem, UserError
from tests.data.conftest import CountingTokenizer, build_tokenizer
from tests.disks import files, mounted

ROOT = Path(__file__).parents[2]
SETTINGS = {"shard_tokens": 200, "parts": 3}


@pytest.fixture
def spec(tmp_path):
    """Seven files of 0 to 40 documents, some of them empty."""
    (tmp_path / "texts").mkdir()
    for file, count in enumerate([5, 40, 0, 1, 25, 3, 12]):
        lines = [{"t": f"def f{line}(a, b): return {file}" if line % 6 else ""} for line in range(count)]
        (tmp_path / "texts" / f"{file}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"jsonl:{tmp_path}/texts/*.jsonl#t"


@pytest.fixture
def silent():
    """The tokenizer of most tests: without BOS, so that an empty document has no token."""
    CountingTokenizer.texts = 0
    return build_tokenizer(bos=False)


@pytest.fixture
def done(spec, silent, tmp_path):
    """A finished folder."""
    prepare([spec], silent, tmp_path / "done", **SETTINGS)
    CountingTokenizer.texts = 0
    return tmp_path / "done"


def contents(folder):
    """Hash of every file below ``folder``."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def shards(folder):
    return sorted(path.name for path in folder.glob("*.arrow"))


def wrongs(error):
    return [problem.wrong for problem in error.value.problems]


# --- what is written ------------------------------------------------------------------------------------------------


def test_rows_are_those_of_tokenize(spec, silent, done, tmp_path):
    """Prepared or tokenised on the spot, a run is given the same rows."""
    rows = tokenize([f"arrow:{done}"], silent, "train", tmp_path / "cache")
    assert not (tmp_path / "cache").exists(), "a prepared folder is not copied"
    assert CountingTokenizer.texts == 0
    expected = tokenize([spec], silent, "train", tmp_path / "cache")
    assert rows.to_dict() == expected.to_dict()
    assert rows.features == expected.features
    mixed = tokenize([f"arrow:{done}", spec], silent, "train", tmp_path / "cache")
    assert len(mixed) == 2 * len(rows)
    assert list(pack(rows, 16, tmp_path / "cache")["input_ids"]) == list(
        pack(expected, 16, tmp_path / "cache")["input_ids"]
    )


def test_shards_hold_what_the_manifest_says(done, spec):
    result = prepared.read_manifest(done)
    assert shards(done) == [entry.file for entry in result.shards]
    assert len(result.shards) > 4
    for entry in result.shards:
        rows = datasets.Dataset.from_file(str(done / entry.file))
        assert entry.documents == len(rows)
        assert entry.tokens == sum(map(len, rows["input_ids"]))
        assert entry.size == (done / entry.file).stat().st_size
    sizes = [entry.tokens for entry in result.shards]
    assert all(size < 250 for size in sizes), "a document more than the limit at most"
    assert result.settings.addresses == [spec]
    others = ["dataset_info.json", "manifest.json", "records", "state.json"]
    assert sorted(path.name for path in done.iterdir() if path.suffix != ".arrow") == others


def test_split_decides_what_is_read(silent, tmp_path):
    result = prepare(["stdlib"], silent, tmp_path / "new", split="heldout", parts=2)
    assert result.documents == 7
    assert [entry.file for entry in result.shards] == ["00000-00000.arrow", "00001-00000.arrow"]


def test_folder_may_be_moved(silent, done, tmp_path):
    def fingerprints(folder):
        rows = tokenize([f"arrow:{folder}"], silent, "train", tmp_path / "cache")
        return parse(f"arrow:{folder}").fingerprint(), rows._fingerprint

    before = fingerprints(done)
    done.rename(tmp_path / "moved")
    assert fingerprints(tmp_path / "moved") == before


# --- started again --------------------------------------------------------------------------------------------------


def test_finished_folder_is_left_as_it_is(spec, silent, done):
    before = contents(done)
    result = prepare([spec], silent, done, **SETTINGS, processes=4, report=pytest.fail)
    assert result == prepared.read_manifest(done)
    assert contents(done) == before
    assert CountingTokenizer.texts == 0


KILLS = {
    "before anything": ("write_shard", 0, False),
    "while a shard is written": ("_BATCH_TOKENS", 0, False),
    "after the rename, before the record": ("write_shard", 2, True),
    "between two shards": ("write_shard", 3, False),
    "before the manifest": ("DataManifest", 0, False),
}


def _die_at(moment, arguments):
    """Prepare until ``moment``: before or after a certain call of a certain function, or within a shard."""
    name, number, after = moment
    original, calls = getattr(prepared, name), []

    class Dying(int):
        def __le__(self, other):
            os._exit(9)

    def dying(*args, **kwargs):
        calls.append(args)
        if len(calls) == number + 1 and not after:
            os._exit(9)
        result = original(*args, **kwargs)
        if len(calls) == number + 1:
            os._exit(9)
        return result

    setattr(prepared, name, Dying() if name == "_BATCH_TOKENS" else dying)
    prepare(*arguments, **SETTINGS)


@pytest.mark.parametrize("moment", KILLS.values(), ids=KILLS.keys())
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
    assert {problem.field for problem in caught.value.problems} == {
        "split",
        "tokenizer",
        "data",
        "shard_tokens",
        "parts",
    }
    assert "the folder was begun with 200" in str(caught.value)
    assert spec in str(caught.value)
    with (tmp_path / "texts" / "0.jsonl").open("a") as file:
        file.write('{"t": "more"}\n')
    with pytest.raises(UserError, match="or it changed since"):
        prepare([spec], silent, done, **SETTINGS)
    (tmp_path / "texts" / "0.jsonl").rename(tmp_path / "texts" / "00.jsonl")
    assert contents(done) == before


def test_other_folders_are_left_alone(spec, silent, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    datasets.Dataset.from_dict({"input_ids": [[1]]}).save_to_disk(str(tmp_path / "saved"))
    for name in ("mine", "saved", "mine/notes.txt"):
        with pytest.raises(UserError, match="holds something else"):
            prepare([spec], silent, tmp_path / name, **SETTINGS)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    prepare([spec], silent, tmp_path / "empty", **SETTINGS)
    with pytest.raises(UserError, match="cannot be created"):
        prepare([spec], silent, Path("/proc/new"), **SETTINGS)


def test_two_at_once_are_refused(spec, silent, tmp_path):
    (tmp_path / "new" / "records").mkdir(parents=True)
    with FileLock(tmp_path / "new" / "records" / "lock"), pytest.raises(UserError, match="another preparation"):
        prepare([spec], silent, tmp_path / "new", **SETTINGS)
    prepare([spec], silent, tmp_path / "new", **SETTINGS)


# --- damage ---------------------------------------------------------------------------------------------------------


def flip(path):
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def refused(spec, tokenizer, cache):
    """Messages of a run that is given the folder."""
    with pytest.raises(UserError) as caught:
        tokenize([spec], tokenizer, "train", cache)
    assert {problem.field for problem in caught.value.problems} == {"train_data"}
    assert {problem.value for problem in caught.value.problems} == {spec}
    return wrongs(caught)


def test_verify_names_every_damaged_shard(done):
    assert verify(done, threads=2) == []
    first, second, third, *_ = shards(done)
    flip(done / first)
    flip(done / second)
    (done / third).unlink()
    found = {problem.wrong for problem in verify(done, threads=2)}
    assert found == {
        f"shard {first} is damaged: its SHA-256 is another",
        f"shard {second} is damaged: its SHA-256 is another",
        f"shard {third} is missing",
    }


def test_verify_of_other_folders(done, tmp_path):
    assert "no prepared data" in verify(tmp_path / "absent")[0].wrong
    (done / "manifest.json").write_text("{")
    assert "manifest.json is damaged" in verify(done)[0].wrong


def test_run_refuses_a_damaged_folder(silent, done, tmp_path):
    spec, cache = f"arrow:{done}", tmp_path / "cache"
    first, *_ = shards(done)
    whole = (done / first).read_bytes()
    (done / first).write_bytes(whole[:-8])
    assert refused(spec, silent, cache) == [f"shard {first} has {len(whole) - 8} bytes instead of {len(whole)}"]
    (done / first).unlink()
    assert refused(spec, silent, cache) == [f"shard {first} is missing"]


def test_run_refuses_another_tokenizer(done, tmp_path):
    assert refused(f"arrow:{done}", build_tokenizer(), tmp_path) == ["its token ids are those of another tokenizer"]


def test_missing_and_short_shards_are_made_again(spec, silent, done):
    before = contents(done)
    (done / shards(done)[0]).write_bytes(b"short")
    (done / shards(done)[-1]).unlink()
    prepare([spec], silent, done, **SETTINGS)
    assert contents(done) == before


@pytest.mark.parametrize("content", ["{", '{"file": "x"}', "[]"])
def test_a_shard_whose_record_is_damaged_is_made_again(spec, silent, done, content):
    """It was a traceback of json's, at every start."""
    before = contents(done)
    (done / "manifest.json").unlink()
    (done / "records" / f"{shards(done)[0]}.json").write_text(content)
    prepare([spec], silent, done, **SETTINGS)
    assert contents(done) == before


# --- what a user can get wrong --------------------------------------------------------------------------------------


def test_wrong_calls(spec, silent, done, tmp_path):
    new = tmp_path / "new"
    with pytest.raises(UserError) as caught:
        prepare([spec], silent, new, shard_tokens=0, parts=-1, processes=0)
    assert [problem.field for problem in caught.value.problems] == ["shard_tokens", "parts", "workers"]
    with pytest.raises(UserError, match="token ids already"):
        prepare([f"arrow:{done}"], silent, new)
    assert not new.exists()


def test_data_without_a_token(silent, tmp_path):
    (tmp_path / "e.txt").write_text("")
    with pytest.raises(UserError, match="no document has any token"):
        prepare([f"text:{tmp_path}/e.txt"], silent, tmp_path / "new")
    assert not any((tmp_path / "new").iterdir())


def test_bad_line_is_named_and_can_be_mended(spec, silent, done, tmp_path):
    """The rest goes on where it was, unless mending changed what was read: then the folder is refused."""
    with (tmp_path / "texts" / "6.jsonl").open("a") as file:
        file.write('{"t": 3}\n')
    with pytest.raises(UserError, match=r"6\.jsonl:13: 't' holds int"):
        prepare([spec], silent, tmp_path / "new", **SETTINGS)
    assert shards(tmp_path / "new") == shards(done)[:-1]


# --- the command ----------------------------------------------------------------------------------------------------


def command(*arguments, **options):
    line = [sys.executable, str(ROOT / "tools" / "prepare_data.py"), *map(str, arguments)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.Popen(
        line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


@pytest.fixture
def arguments(spec, silent, tmp_path):
    """Options of the command for the data of the other tests."""
    silent.save_pretrained(tmp_path / "tokenizer")
    numbers = [part for name, number in SETTINGS.items() for part in (f"--{name}", number)]
    return ["--data", spec, "--tokenizer", tmp_path / "tokenizer", *numbers]


def test_two_workers_write_what_one_does(arguments, tmp_path, capfd):
    from tape_ds.cli import prepare_data
    from tape_ds.data.tokenizer import load_tokenizer

    prepare([arguments[1]], load_tokenizer(str(arguments[3])), tmp_path / "one", **SETTINGS)
    options = [*map(str, arguments), "--output", str(tmp_path / "two")]
    assert prepare_data.main([*options, "--workers", "2"]) == 0
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    lines = capfd.readouterr().out.splitlines()
    assert {line.split(":")[0] for line in lines[:-1]} == set(shards(tmp_path / "one"))
    assert lines[-1].endswith(f"name it arrow:{tmp_path}/two")


def test_check_names_the_shard_and_exits_with_two(done, capsys):
    from tape_ds.cli import prepare_data

    assert prepare_data.main(["--check", str(done), "--workers", "2"]) == 0
    assert "all of them whole" in capsys.readouterr().out
    flip(done / shards(done)[2])
    assert prepare_data.main(["--check", str(done)]) == 2
    assert f"shard {shards(done)[2]} is damaged" in capsys.readouterr().err


def test_options_are_checked(done, tmp_path, capsys):
    from tape_ds.cli import prepare_data

    assert prepare_data.main(["--data", "stdlib"]) == 2
    shown = capsys.readouterr().err
    assert "tokenizer = None: missing" in shown
    assert "output = None: missing" in shown
    assert prepare_data.main(["--check", str(done), "--output", "x"]) == 2
    assert prepare_data.main(["--check", str(done), "--workers", "0"]) == 2
    assert prepare_data.main(["--data", "stdlib", "--tokenizer", str(tmp_path), "--output", str(tmp_path / "x")]) == 2
    assert "no tokenizer could be read" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        prepare_data.main(["--data", "stdlib", "--split", "test"])
    assert caught.value.code == 2


@pytest.mark.faults
def test_killed_command_leaves_no_process_and_goes_on(arguments, tmp_path):
    """SIGKILL to the parent of two workers, at work on megabytes of text."""
    arguments[1] = f"text:{Path(torch.__file__).parent}/_dynamo/variables/*.py"
    arguments[5] = 50_000
    run = command(*arguments, "--output", tmp_path / "new", "--workers", 2, start_new_session=True)
    first = run.stdout.readline()
    run.kill()
    run.wait()
    assert ".arrow" in first
    for _ in range(100):
        members = [path for path in Path("/proc").glob("[0-9]*/stat") if _session(path) == run.pid]
        if not members:
            break
        time.sleep(0.1)
    assert not members, "the workers left too"
    again = command(*arguments, "--output", tmp_path / "new", "--workers", 2)
    out, err = again.communicate(timeout=240)
    assert again.returncode == 0, err
    assert first.split(":")[0] not in {line.split(":")[0] for line in out.splitlines()}
    assert verify(tmp_path / "new") == []


def _session(stat):
    """Session of the process behind a ``/proc/PID/stat``; -1 when it is gone or dead."""
    try:
        state, _, _, session, *_ = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return -1 if state == "Z" else int(session)


def test_a_disk_that_fills_up_is_told_and_gone_on_from(tmp_path, spec, silent):
    """No half of a shard stays to keep the disk full, and what is made with room is what would have been made."""
    settings = {"shard_tokens": 4000, "parts": 2}
    with open(tmp_path / "texts" / "7.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"t": f"def f{n}(a, b): return {n}"}) + "\n" for n in range(3000))
    whole = prepare([spec], silent, tmp_path / "whole", **settings)
    with mounted(tmp_path / "disk", "128k") as disk:
        with pytest.raises(DiskError, match=r"output = .* is full"):
            prepare([spec], silent, disk / "out", **settings)
        assert not [name for name in files(disk) if name.endswith(".writing")]
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        assert prepare([spec], silent, disk / "out", **settings) == whole


# --- processes ---------------------------------------------------------------------------------------------------


def fail_on_three(task):
    if task == 3:
        raise UserError(Problem("data", task, "bad line", "correct it"))
    time.sleep(60)


def environment(task):
    return task, os.environ["RAYON_NUM_THREADS"], os.environ["TOKENIZERS_PARALLELISM"]


def kill_itself(task):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def forked(monkeypatch):
    """By fork, which takes no time; spawned processes are tested through the command."""
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)


@pytest.mark.parametrize(("count", "expected"), [(2, ("4", "true")), (8, ("1", "false"))])
def test_processes_without_a_task_become_threads_of_the_tokenizer(forked, count, expected):
    assert _in_processes(environment, range(count), 8) == [(task, *expected) for task in range(count)]


def test_a_failure_stops_the_others_at_once(forked):
    started = time.monotonic()
    with pytest.raises(UserError, match="bad line") as caught:
        _in_processes(fail_on_three, [1, 2, 3], 3)
    assert caught.value.problems[0].value == 3
    assert time.monotonic() - started < 30, "tasks 1 and 2 take 60 seconds"
    assert not multiprocessing.active_children()


def test_a_killed_process_is_reported_with_a_remedy(forked):
    with pytest.raises(UserError, match="memory runs out") as caught:
        _in_processes(kill_itself, [1, 2], 2)
    assert caught.value.problems[0].field == "workers"


# --- a shard --------------------------------------------------------------------------------------------------------


def rows(*lengths):
    """A document of each length, filled with its number."""
    for number, length in enumerate(lengths):
        yield Document(f"d{number}", ""), np.full(length, number, np.int32)


def stored(path):
    return datasets.Dataset.from_file(str(path))


def test_rows_are_the_documents(tmp_path):
    entry = write_shard(tmp_path / "a.arrow", rows(2, 0, 3), 100)
    assert (entry.read, entry.documents, entry.tokens) == (3, 2, 5)
    found = stored(tmp_path / "a.arrow")
    assert found.features == document_features()
    assert found.to_dict() == {"name": ["d0", "d2"], "input_ids": [[0, 0], [2, 2, 2]]}


@pytest.mark.parametrize(
    ("limit", "read", "tokens"), [(1, 1, 3), (3, 1, 3), (4, 3, 7), (7, 3, 7), (8, 4, 9), (99, 5, 9)]
)
def test_a_shard_ends_with_the_document_that_reaches_the_limit(tmp_path, limit, read, tokens):
    left = rows(3, 0, 4, 2, 0)
    entry = write_shard(tmp_path / "a.arrow", left, limit)
    assert (entry.read, entry.tokens) == (read, tokens)
    assert len(list(left)) == 5 - read, "the rest is left to the next shard"


def test_nothing_to_write_is_no_file(tmp_path):
    assert write_shard(tmp_path / "a.arrow", rows(0, 0), 5).read == 2
    assert not (tmp_path / "a.arrow").exists()


def test_batches_change_no_row(tmp_path, monkeypatch):
    lengths = [int(n) for n in np.random.default_rng(0).integers(0, 40, 300)]
    write_shard(tmp_path / "whole.arrow", rows(*lengths), 10**6)
    monkeypatch.setattr(prepared, "_BATCH_TOKENS", 64)
    write_shard(tmp_path / "cut.arrow", rows(*lengths), 10**6)
    assert stored(tmp_path / "cut.arrow").to_dict() == stored(tmp_path / "whole.arrow").to_dict()
    assert stored(tmp_path / "cut.arrow").data.column("input_ids").num_chunks > 20


def test_bytes_do_not_depend_on_the_tokenizers_batches(tmp_path, monkeypatch):
    """A shard that a resumed run begins is batched differently than in the run that was killed."""
    documents = [Document(str(n), f"def f{n}(a, b): return {n}" * (n % 5)) for n in range(40)]
    write_shard(tmp_path / "one.arrow", encode(documents, build_tokenizer()), 10**6)
    monkeypatch.setattr("tape_ds.data.tokenized._BATCH_DOCUMENTS", 3)
    write_shard(tmp_path / "two.arrow", encode(documents, build_tokenizer()), 10**6)
    assert (tmp_path / "one.arrow").read_bytes() == (tmp_path / "two.arrow").read_bytes()
