"""Rows that cannot be read: refused by default, left out up to a limit, and the same documents for every process."""

import json
import multiprocessing
from datetime import date

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest

from tape_ds.data.bad_rows import BadRows
from tape_ds.data.chat import sequences as chat
from tape_ds.data.prepared import prepare
from tape_ds.data.scrolls import sequences as scrolls
from tape_ds.data.stream import StreamedSequences, StreamError
from tape_ds.errors import UserError
from tests.data.chat import chatml
from tests.data.conftest import CountingTokenizer, build_tokenizer, tokenize

GOOD = ["one", "two", "three", "four"]
TALK = chatml.conversation("a?", "b")


def jsonl(folder):
    lines = [json.dumps({"text": text}).encode() for text in GOOD]
    lines[1:1] = [b'{"text": "cut', rb'{"text": "half a letter \ud83d"}']
    lines[4:4] = [b'{"body": "another field"}']
    (folder / "x.jsonl").write_bytes(b"\n".join(lines))
    return f"jsonl:{folder}/x.jsonl#text", [
        "x.jsonl:2 is not JSON",
        "x.jsonl:3: 'text' is no",
        "x.jsonl:5 has no",
    ]


def parquet(folder):
    rows = [{"text": each} for each in GOOD]
    rows[2:2] = [{"text": None}, None]
    pyarrow.parquet.write_table(pa.table({"meta": rows}), folder / "a.parquet")
    bad = pa.StructArray.from_arrays([pa.array([b"\xff\xfe"]).view(pa.string())], ["text"])
    pyarrow.parquet.write_table(pa.table({"meta": bad}), folder / "b.parquet")
    named = [
        "a.parquet:2: 'meta.text' holds",
        "a.parquet:3: 'meta.text' holds",
        "b.parquet:0 is not UTF-8",
    ]
    return f"parquet:{folder}/*.parquet#meta.text", named


def text(folder):
    for number, each in enumerate(GOOD):
        (folder / f"{number}.txt").write_text(each)
    for name in ("0a", "1a", "2a"):
        (folder / f"{name}.txt").write_bytes(b"caf\xe9")
    return f"text:{folder}/*.txt", ["0a.txt is not UTF-8", "1a.txt is not", "2a.txt is not"]


@pytest.mark.parametrize("make", [jsonl, text, parquet])
def test_three_bad_rows_need_a_limit_of_three(make, tmp_path, tokenizer):
    spec, named = make(tmp_path)

    def read(bad_rows):
        return tokenize([spec], tokenizer, "train", tmp_path / "cache", bad_rows)["input_ids"]

    for limit in (0, 2):
        with pytest.raises(UserError, match="skip_bad_rows") as caught:
            read(BadRows(limit))
        assert caught.value.problems[0].wrong.startswith(named[limit])
    expected = [tokenizer(each)["input_ids"] for each in GOOD]
    CountingTokenizer.texts = 0
    for _ in range(2):  # the second time from the cache
        bad_rows = BadRows(3)
        assert read(bad_rows) == expected
        assert all(
            each.wrong.startswith(begin)
            for each, begin in zip(bad_rows.problems, named, strict=True)
        )
    assert CountingTokenizer.texts == len(GOOD)
    # of what another run has left in the cache
    with pytest.raises(UserError, match="skip_bad_rows"):
        read(BadRows(2))


def test_a_saved_folder(tmp_path, tokenizer):
    datasets.Dataset.from_dict({"input_ids": [[1], None, [2, None], [3]]}).save_to_disk(
        str(tmp_path / "ids")
    )
    spec = f"arrow:{tmp_path}/ids"
    with pytest.raises(UserError, match="ids:2 has a null"):
        tokenize([spec], tokenizer, "train", tmp_path / "cache", BadRows(1))
    assert tokenize([spec], tokenizer, "train", tmp_path / "cache", BadRows(2))["input_ids"] == [
        [1],
        [3],
    ]


def test_a_stream_is_that_of_the_other_rows(tmp_path, tokenizer):
    spec, named = jsonl(tmp_path)
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "x.jsonl").write_text(
        "\n".join(json.dumps({"text": each}) for each in GOOD)
    )

    def stream(spec, limit):
        sequences = StreamedSequences(
            [spec], tokenizer, 4, samples=40, seed=3, workers=2, skip_bad_rows=limit
        )
        return [item["input_ids"].tolist() for item in sequences]

    assert stream(spec, 3) == stream(f"jsonl:{tmp_path}/good/x.jsonl#text", 0)
    with pytest.raises(StreamError, match="skip_bad_rows") as caught:
        stream(spec, 2)
    assert named[2] in str(caught.value)


CONVERSATIONS = [
    ({"messages": []}, "holds an empty list"),
    ({"messages": TALK, "system": "Be brief."}, "the column system is not empty"),
    ({"messages": TALK, "mood": "kind"}, "the chat template reads mood"),
]


def test_conversations(tmp_path):
    rows = [
        {"messages": TALK},
        *(row for row, _ in CONVERSATIONS),
        {"messages": TALK[:2], "source": "web"},
    ]
    (tmp_path / "x.jsonl").write_text("\n".join([*map(json.dumps, rows), '{"messages": [']))
    named = [f"x.jsonl:{line}: {wrong}" for line, (_, wrong) in enumerate(CONVERSATIONS, 2)] + [
        "x.jsonl:6 is not JSON"
    ]
    of = chatml.tokenizer("{{ mood }}" + chatml.CHATML)

    def read(bad_rows):
        return chat.rendered(
            [f"jsonl:{tmp_path}/x.jsonl"], of, "train", tmp_path, date(2026, 11, 26), bad_rows
        )

    with pytest.raises(UserError, match="skip_bad_rows"):
        read(BadRows(len(named) - 1))
    bad_rows = BadRows(len(named))
    assert read(bad_rows)["name"] == ["x.jsonl:1", "x.jsonl:5"]
    assert all(
        each.wrong.startswith(begin) for each, begin in zip(bad_rows.problems, named, strict=True)
    )


def test_questions(tmp_path, tokenizer):
    (tmp_path / "qasper").mkdir()
    lines = [
        json.dumps({"id": str(n), "input": "Q?\n\ntext", "output": "a"}).encode() for n in range(3)
    ]
    lines[1:1] = [b'{"id": "x", "input": null, "output": "a"}', b"\xff", b'{"id": "cut']
    (tmp_path / "qasper" / "train.jsonl").write_bytes(b"\n".join(lines))

    def read(bad_rows):
        form = scrolls.SequenceForm(64, 8)
        cache = tmp_path / "cache"
        return scrolls.tokenize(
            "qasper", "train", tmp_path, tokenizer, form, cache, bad_rows=bad_rows
        )

    with pytest.raises(UserError, match=r"train\.jsonl:4 is not JSON"):
        read(BadRows(2))
    for _ in range(2):  # the second time from the cache
        bad_rows = BadRows(3)
        assert read(bad_rows)["id"] == ["0", "1", "2"] and len(bad_rows.problems) == 3


def test_a_prepared_corpus_counts_over_all_its_processes(tmp_path, monkeypatch):
    context = multiprocessing.get_context("fork")  # in no time
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)
    (tmp_path / "x").mkdir()
    spec, named = jsonl(tmp_path / "x")
    (tmp_path / "x" / "y.jsonl").write_text('{"text": "five"}\n[]\n')
    spec, folder = spec.replace("x.jsonl", "*.jsonl"), tmp_path / "prepared"
    settings = {"parts": 2, "processes": 2, "shard_tokens": 10}
    with pytest.raises(UserError, match="skip_bad_rows"):
        prepare([spec], build_tokenizer(), folder, bad_rows=BadRows(3), **settings)
    for _ in range(2):  # the second time nothing is read again
        bad_rows = BadRows(4)
        assert (
            prepare([spec], build_tokenizer(), folder, bad_rows=bad_rows, **settings).documents == 5
        )
        assert all(name in str(bad_rows) for name in (*named, "y.jsonl:2 is a list"))
    with pytest.raises(UserError, match="skip_bad_rows"):
        prepare([spec], build_tokenizer(), folder, bad_rows=BadRows(2), **settings)
