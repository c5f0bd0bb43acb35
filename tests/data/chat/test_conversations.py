"""Conversations behind specs, and every row that is none."""

import json
import re
import shutil
import subprocess

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest

from tape_ds.data.chat import conversations
from tape_ds.data.sources import parse
from tape_ds.errors import UserError
from tests.data.chat.chatml import WEATHER, conversation, write

TALK = conversation("a?", "b", system="c")


def read(spec, split="train"):
    return [(row.name, row.turns) for row in rows(spec, split)]


def rows(spec, split="train"):
    return list(conversations.read(parse(conversations.completed(spec), "train_data"), split))


def test_rows_are_read_in_their_order(tmp_path):
    spec = write(tmp_path / "x.jsonl", [TALK, TALK[1:]], id=3)
    assert read(spec) == [("x.jsonl:1", TALK), ("x.jsonl:2", TALK[1:])]
    assert conversations.check([spec], []) == []


def test_parquet_fills_rows_with_nulls_which_are_nothing(tmp_path):
    rows = [TALK, [{**TALK[1], "name": None}, TALK[2]]]
    pyarrow.parquet.write_table(pa.table({"messages": rows, "id": [1, 2]}), tmp_path / "x.parquet")
    assert [each for _, each in read(f"parquet:{tmp_path}/x.parquet")] == [TALK, TALK[1:]]


def test_another_column_and_a_condition_are_named_in_the_spec(tmp_path):
    lines = [{"chat": TALK, "kind": kind} for kind in ("long", "short", "long")]
    assert [name for name, _ in read(saved(tmp_path, "jsonl", lines, "#chat?kind=long"))] == [
        "x.jsonl:1",
        "x.jsonl:3",
    ]


def test_what_is_made_needs_no_file():
    made = read("stdlib", "heldout")
    assert len(made) == 50 and [turn["role"] for turn in made[0][1]] == ["user", "assistant"] * 2
    assert made == read("stdlib", "heldout") and all(
        turn["content"] for _, turns in made for turn in turns
    )
    assert conversations.check(["stdlib"], ["stdlib"]) == []
    source = parse("stdlib", "train_data")
    assert len({conversations.fingerprint(source, split) for split in ("train", "heldout")}) == 2


SEARCH = {
    "type": "function",
    "function": {"name": "search", "parameters": {"text": {"type": "string"}}},
}


def saved(folder, kind, lines, column=""):
    if kind == "jsonl":
        (folder / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    else:
        pyarrow.parquet.write_table(pa.Table.from_pylist(lines), folder / "x.parquet")
    return f"{kind}:{folder}/x.{kind}{column}"


def listed(tools):
    return [json.dumps(each) for each in tools]


@pytest.mark.parametrize(
    ("kind", "form"), [("jsonl", list), ("parquet", json.dumps), ("hub", listed)]
)
def test_the_tools_of_a_row_are_read_as_published_data_have_them(kind, form, tmp_path, monkeypatch):
    given = [[WEATHER], [SEARCH, WEATHER], []]
    lines = [
        {"messages": TALK, "tools": form(tools), "id": number} for number, tools in enumerate(given)
    ]
    stream = datasets.Dataset.from_list(lines).to_iterable_dataset()
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: stream)
    found = rows("hub:org/talks" if kind == "hub" else saved(tmp_path, kind, lines))
    assert [row.tools for row in found] == [[WEATHER], [SEARCH, WEATHER], None]
    assert [row.turns for row in found] == [TALK] * 3 and [row.others for row in found] == [
        {"id": n} for n in range(3)
    ]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_columns_next_to_a_nested_one_belong_to_the_row(kind, tmp_path):
    inner = {"messages": TALK, "tools": [WEATHER], "source": "web"}
    lines = [{"data": inner, "id": 3}, {"data": {**inner, "tools": []}, "id": 4}]
    found = rows(saved(tmp_path, kind, lines, "#data.messages"))
    assert [(row.turns, row.tools) for row in found] == [(TALK, [WEATHER]), (TALK, None)]
    assert [row.others for row in found] == [{"source": "web", "id": 3}, {"source": "web", "id": 4}]


@pytest.mark.parametrize(
    "column",
    [
        {"system": "Be brief."},
        {"tools": [3]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"weight": 0},
    ],
    ids=str,
)
def test_a_column_that_changes_what_is_learnt_is_refused_by_its_place(column, tmp_path):
    (problem,) = conversations.check([write(tmp_path / "x.jsonl", [TALK[1:]], **column)], [])
    assert problem.wrong.startswith("x.jsonl:1: ") and next(iter(column)) in problem.wrong


def test_columns_that_hold_nothing_or_repeat_a_turn_are_no_obstacle(tmp_path):
    empty = {"tools": "[]", "functions": None, "documents": [], "system_prompt": "", "weight": 1.0}
    (row,) = rows(write(tmp_path / "x.jsonl", [TALK], **empty, system="c", source="web"))
    assert row.tools is None and set(row.others) == {"weight", "system", "source"}


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("messages", "wrong"),
    [
        ("text", "holds str, not a list"),
        ([], "an empty list"),
        ([{"from": "human", "value": "x"}], "'from' and 'value'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "list under 'content', parts of text"),
        (
            [USER, {"role": "assistant", "content": [{"type": "text"}, {"type": "image"}]}],
            r"turn 2 has a list under 'content', with parts that are no text (image)",
        ),
        ([{"role": "user", "content": ["x", {"url": "y"}]}], "no text (?, str)"),
        ([USER, {"role": "gpt", "content": "y"}], "the role 'gpt'"),
        ([USER, {"role": "assistant", "content": "y", "weight": 0}], "has weight too"),
        ([{"role": "user", "content": "\ud83d"}], "no Unicode"),
    ],
)
def test_a_row_that_is_no_conversation_is_refused_by_its_place(messages, wrong, tmp_path):
    with pytest.raises(UserError, match=rf"x\.jsonl:2: .*{re.escape(wrong)}"):
        read(write(tmp_path / "x.jsonl", [TALK, messages]))
    (first,) = conversations.check([write(tmp_path / "y.jsonl", [messages])], [])
    assert first.field == "train_data" and wrong in first.wrong, (
        "the first row is read with the recipe"
    )


@pytest.mark.skipif(shutil.which("jq") is None, reason="remedies are commands of jq")
def test_a_remedy_for_contents_in_parts_works(tmp_path):
    """Chat data of models with pictures."""
    text = [{"type": "text", "text": "a"}, {"type": "text", "text": "?"}]
    seen = [{"type": "image", "url": "cat.png"}, *text]
    answer = {"role": "assistant", "content": "b"}
    talks = [[{"role": "user", "content": content}, answer] for content in (text, "c", seen)]
    file = tmp_path / "x.jsonl"
    write(file, talks)
    # the texts in parts, then the picture
    for _ in range(2):
        with pytest.raises(UserError) as caught:
            read(f"jsonl:{file}")
        (problem,) = caught.value.problems
        command = problem.remedy.partition("jq -c '")[2].rstrip("'")
        given = subprocess.run(["jq", "-c", command, file], capture_output=True, check=True)
        file.write_bytes(given.stdout)
    found = read(f"jsonl:{file}")
    assert [turns[0]["content"] for _, turns in found] == ["a?", "c"]


def test_lists_of_sources_are_checked_as_for_every_other_run(tmp_path):
    spec = write(tmp_path / "x.jsonl", [TALK])
    assert "also trained on" in conversations.check([spec], [spec])[0].wrong
    (tmp_path / "empty.jsonl").write_text("")
    assert "no rows" in conversations.check([f"jsonl:{tmp_path}/empty.jsonl"], [])[0].wrong
    found = conversations.check([f"text:{tmp_path}", f"{spec}#talk"], ["json:x"])
    assert [problem.field for problem in found] == ["train_data", "train_data", "eval_data"]
    assert "no conversations" in found[0].wrong and "no column 'talk'" in found[1].wrong


def test_rows_are_not_joined(tmp_path):
    """``&by=`` of a text's spec would have been read as part of a column's name, or ignored."""
    spec = write(tmp_path / "x.jsonl", [TALK])
    (problem,) = conversations.check([f"{spec}#messages&by=messages"], [])
    assert problem.wrong == "a conversation is a row"
