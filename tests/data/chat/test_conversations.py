"""Conversations behind specs, and every row that is none."""

import json
import shlex
import shutil
import subprocess

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest

from tape_ds.data.chat import conversations
from tape_ds.errors import UserError
from tests.data.chat.chatml import WEATHER, conversation, write

TALK = conversation("a?", "b", system="c")


def read(spec, split="train"):
    return [(row.name, row.turns) for row in rows(spec, split)]


def rows(spec, split="train"):
    return list(conversations.read(conversations.parse(spec, "train_data"), split))


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
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert [name for name, _ in read(f"jsonl:{tmp_path}/x.jsonl#chat?kind=long")] == ["x.jsonl:1", "x.jsonl:3"]


def test_what_is_made_needs_no_file():
    made = read("stdlib", "heldout")
    assert len(made) == 50 and [turn["role"] for turn in made[0][1]] == ["user", "assistant"] * 2
    assert made == read("stdlib", "heldout") and all(turn["content"] for _, turns in made for turn in turns)
    assert conversations.check(["stdlib"], ["stdlib"]) == []
    source = conversations.parse("stdlib", "train_data")
    assert len({conversations.fingerprint(source, split) for split in ("train", "heldout")}) == 2


SEARCH = {"type": "function", "function": {"name": "search", "parameters": {"text": {"type": "string"}}}}


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "hub"])
@pytest.mark.parametrize("form", ["a list", "JSON", "a list of JSON"])
def test_the_tools_of_a_row_are_read_as_published_data_have_them(kind, form, tmp_path, monkeypatch):
    """They were left out without a word; Arrow fills the keys of other rows in with nulls."""
    write_as = {
        "a list": list,
        "JSON": json.dumps,
        "a list of JSON": lambda tools: [json.dumps(each) for each in tools],
    }
    given = [[WEATHER], [SEARCH, WEATHER], []]
    lines = [{"messages": TALK, "tools": write_as[form](tools), "id": number} for number, tools in enumerate(given)]
    if kind == "jsonl":
        (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
        spec = f"jsonl:{tmp_path}/x.jsonl"
    elif kind == "parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(lines), tmp_path / "x.parquet")
        spec = f"parquet:{tmp_path}/x.parquet"
    else:
        stream = datasets.Dataset.from_list(lines).to_iterable_dataset()
        monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: stream)
        spec = "hub:org/talks"
    found = rows(spec)
    assert [row.tools for row in found] == [[WEATHER], [SEARCH, WEATHER], None]
    assert [row.turns for row in found] == [TALK] * 3 and [row.others for row in found] == [{"id": n} for n in range(3)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_what_is_next_to_a_nested_column_belongs_to_the_row(kind, tmp_path):
    inner = {"messages": TALK, "tools": [WEATHER], "source": "web"}
    lines = [{"data": inner, "id": 3}, {"data": {**inner, "tools": []}, "id": 4}]
    if kind == "jsonl":
        (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    else:
        pyarrow.parquet.write_table(pa.Table.from_pylist(lines), tmp_path / "x.parquet")
    found = rows(f"{kind}:{tmp_path}/x.{kind}#data.messages")
    assert [(row.turns, row.tools) for row in found] == [(TALK, [WEATHER]), (TALK, None)]
    assert [row.others for row in found] == [{"source": "web", "id": 3}, {"source": "web", "id": 4}]


def test_a_row_of_parquet_that_is_not_utf_8_is_refused_by_its_place(tmp_path):
    bad = pa.array([b"fine", b"\xff\xfe"]).view(pa.string())
    pyarrow.parquet.write_table(pa.table({"messages": [TALK, TALK], "source": bad}), tmp_path / "x.parquet")
    with pytest.raises(UserError, match=r"x\.parquet:1 is not UTF-8"):
        rows(f"parquet:{tmp_path}/x.parquet")


def test_columns_that_hold_nothing_or_repeat_a_turn_are_no_obstacle(tmp_path):
    empty = {"tools": "[]", "functions": None, "documents": [], "system_prompt": "", "weight": 1.0}
    spec = write(tmp_path / "x.jsonl", [TALK], **empty, system="c", source="web")
    (row,) = rows(spec)
    assert row.tools is None and set(row.others) == {"weight", "system", "source"}


# (other columns of a row, part of the problem, part of the remedy)
REFUSED = {
    "tools of another name": ({"functions": [WEATHER]}, "functions", ".tools = .functions"),
    "a system prompt": ({"system": "Be brief."}, "system", "jq -c"),
    "a text for tools": ({"tools": "get_weather"}, "tools is not a list of JSON schemas", "JSON"),
    "names for tools": ({"tools": [3]}, "tools is not a list of JSON schemas", "JSON"),
    "documents": ({"documents": [{"text": "x"}]}, "documents", "remove"),
    "a switch of the template": (
        {"chat_template_kwargs": {"enable_thinking": False}},
        "chat_template_kwargs",
        "remove",
    ),
    "the switch itself": ({"enable_thinking": False}, "enable_thinking", "remove"),
    "a weight": ({"weight": 0}, "weight", "remove"),
    "pictures": ({"images": ["a.png"]}, "images", "remove"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_column_that_changes_what_is_learnt_is_refused_by_its_place(case, tmp_path):
    more, wrong, remedy = REFUSED[case]
    (problem,) = conversations.check([write(tmp_path / "x.jsonl", [TALK[1:]], **more)], [])
    assert problem.wrong.startswith("x.jsonl:1: ") and wrong in problem.wrong and remedy in problem.remedy


def follow(remedy, source, target):
    """The lines of ``source`` after a remedy's command, in ``target``."""
    command = "jq" + remedy.partition("jq")[2]
    with target.open("w") as out:
        subprocess.run(shlex.split(command), stdin=source.open(), stdout=out, check=True)


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
def test_a_system_column_that_some_rows_leave_empty_becomes_a_turn_of_the_others(tmp_path):
    given = [{"talk": TALK[1:], "system": "c"}, *({"talk": TALK[1:]} | each for each in ({}, {"system": ""}))]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, given)))
    (problem,) = conversations.check([f"jsonl:{tmp_path}/x.jsonl#talk"], [])
    follow(problem.remedy, tmp_path / "x.jsonl", tmp_path / "y.jsonl")
    found = rows(f"jsonl:{tmp_path}/y.jsonl#talk")
    assert [row.turns for row in found] == [[{"role": "system", "content": "c"}, *TALK[1:]], TALK[1:], TALK[1:]]


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
def test_sharegpt_turns_are_renamed_in_the_column_that_has_them(tmp_path):
    turns = [
        {"from": {"user": "human", "assistant": "gpt"}[turn["role"]], "value": turn["content"]} for turn in TALK[1:]
    ]
    (tmp_path / "x.jsonl").write_text(json.dumps({"talk": turns}))
    (problem,) = conversations.check([f"jsonl:{tmp_path}/x.jsonl#talk"], [])
    follow(problem.remedy, tmp_path / "x.jsonl", tmp_path / "y.jsonl")
    (row,) = rows(f"jsonl:{tmp_path}/y.jsonl#talk")
    assert row.turns == TALK[1:] and not row.others


USER = {"role": "user", "content": "x"}
# (a row's messages, part of the problem, part of the remedy)
MALFORMED = {
    "no list": ("text", "holds str, not a list", "{role, content}"),
    "nothing": (None, "holds NoneType", "#COLUMN"),
    "no turn": ([], "an empty list", "{role, content}"),
    "texts": (["a", "b"], "turn 1 is str", "{role, content}"),
    "ShareGPT": ([{"from": "human", "value": "x"}], "'from' and 'value'", "gpt: assistant"),
    "no content": ([USER, {"role": "assistant"}], "turn 2 has nothing under 'content'", "{role, content}"),
    "content in parts": ([{"role": "user", "content": [{"type": "text"}]}], "list under 'content'", "content"),
    "another role": ([USER, {"role": "gpt", "content": "y"}], "the role 'gpt'", "assistant"),
    "a weight": ([USER, {"role": "assistant", "content": "y", "weight": 0}], "has weight too", "take it out"),
    "half a character": ([{"role": "user", "content": "\ud83d"}], "no Unicode", "correct"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_row_that_is_no_conversation_is_refused_by_its_place(case, tmp_path):
    messages, wrong, remedy = MALFORMED[case]
    spec = write(tmp_path / "x.jsonl", [TALK, messages])
    with pytest.raises(UserError) as caught:
        read(spec)
    (problem,) = caught.value.problems
    assert problem.wrong.startswith("x.jsonl:2: ") and wrong in problem.wrong and remedy in problem.remedy
    (first,) = conversations.check([write(tmp_path / "y.jsonl", [messages])], [])
    assert first.field == "train_data" and wrong in first.wrong, "the first row is read with the recipe"


def test_sources_that_hold_no_conversations_are_refused_together(tmp_path):
    found = conversations.check([f"text:{tmp_path}", "stdlib"], ["bin:x.bin", "json:x"])
    assert [problem.field for problem in found] == ["train_data", "eval_data", "eval_data"]
    assert all("no conversations" in problem.wrong and "jsonl:FILE" in problem.remedy for problem in found[:2])
    assert "unknown kind" in found[2].wrong


def test_files_are_looked_at_as_for_every_other_run(tmp_path):
    spec = write(tmp_path / "x.jsonl", [TALK])
    (tmp_path / "y.jsonl").write_text(json.dumps({"conversations": []}))
    (tmp_path / "empty.jsonl").write_text("")
    assert "also trained on" in conversations.check([spec], [spec])[0].wrong
    (missing,) = conversations.check([f"jsonl:{tmp_path}/y.jsonl"], [])
    assert "no column 'messages'" in missing.wrong and "conversations" in missing.remedy
    assert "no such file" in conversations.check([f"jsonl:{tmp_path}/none.jsonl"], [])[0].wrong
    assert "no rows" in conversations.check([f"jsonl:{tmp_path}/empty.jsonl"], [])[0].wrong
    assert "not of one" in conversations.check(["stdlib:ast.py"], [])[0].wrong
    assert "unknown kind" in conversations.check(["json:x"], [])[0].wrong
