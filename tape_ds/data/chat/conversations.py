"""Conversations of a data spec: a column of lists of ``{role, content}``, by default ``messages``.

``jsonl``, ``parquet`` and ``hub`` have such columns; ``stdlib`` is questions and answers about the running Python's own
sources (:func:`tape_ds.data.scrolls.examples.made_rows`), two to a conversation, to try chat tuning without a download.
Nothing of a row is ignored silently: a turn with another non-empty key (a tool's calls, a weight), or in another form,
is refused with its place, and so is a row with another column that changes what is learnt. The remaining columns are
named before the run.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tape_ds import storage
from tape_ds.data import sources
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.scrolls import examples
from tape_ds.data.sources import GeneratedDocuments, RowSource, Source, StandardLibrary
from tape_ds.errors import Problem, UserError

# unless the spec names another
COLUMN = "messages"
ROLES = ("system", "developer", "user", "assistant", "tool")
# its turns are targets
ASSISTANT = "assistant"
# the column of the tools that the assistant may call: JSON schemas, as a list or as its JSON
TOOLS = "tools"

# turns of ``role`` and ``content``
Conversation = list[dict[str, str]]
# how a conversation of more than ``max_tokens`` is treated
TooLong = Literal["cut", "leave_out"]


@dataclass(frozen=True)
class Row:
    name: str
    turns: Conversation
    tools: list[dict[str, Any]] | None
    # the other non-empty columns
    others: Mapping[str, Any]


# split of the data -> of the questions
_MADE_SPLITS = {"train": "train", "heldout": "validation"}
# kinds of sources with columns
_COLUMNS = ("jsonl", "parquet", "hub")

# values of a column or key that says nothing
_EMPTY: tuple[Any, ...] = (None, "", [], {})

_OTHER_FORM = "write each turn as {role, content}"
_CALLS = "rename it to tools, a list of JSON schemas: jq -c '.tools = .{0} | del(.{0})'"
_SYSTEM = (
    "make it the first turn: "
    'jq -c \'if (.{0} // "") != "" then .{1} = [{{role: "system", content: .{0}}}] + .{1} else . end | del(.{0})\''
)
_TEXTS = (
    "join them: "
    "jq -c '.{0} |= map(.content |= "
    'if type == "array" and all(.[]; .type == "text") then map(.text) | join("") else . end)\''
)
_SEEN = (
    "leave those conversations out: "
    "jq -c 'select([.{0}[].content | arrays[] | select(.type != \"text\")] == [])'"
)
_WITHOUT = "remove the column, or the rows in which it is not empty"
# columns that change the targets or the text of a conversation, each with the remedy
_REFUSED = {
    **dict.fromkeys(
        ("functions", "function_definitions", "tool_defs", "tool_definitions", "available_tools"),
        _CALLS,
    ),
    **dict.fromkeys(("system", "system_prompt", "system_message"), _SYSTEM),
    **dict.fromkeys(
        ("documents", "chat_template", "chat_template_kwargs", "enable_thinking"), _WITHOUT
    ),
    **dict.fromkeys(("reasoning_effort", "weight", "weights", "image", "images"), _WITHOUT),
    **dict.fromkeys(("video", "videos", "audio", "audios"), _WITHOUT),
}
_SHAREGPT = (
    "rename them, from to role (human: user, gpt: assistant) and value to content: "
    'jq -c \'.{} |= map({{role: ({{human: "user", gpt: "assistant"}}[.from] // .from), content: .value}})\''
)


def check(
    train: Sequence[str], evaluation: Sequence[str], skip_bad_rows: int | None = None
) -> list[Problem]:
    """Check the specs and the first row of each, without the network."""
    lists = {"train_data": train, "eval_data": evaluation}
    problems = []
    fitting = []
    without = sources.KINDS.keys() - {*_COLUMNS, "stdlib", GeneratedDocuments.kind}
    remedy = (
        "give jsonl:FILE, parquet:FILE, hub:NAME (each with #COLUMN for another column than messages), stdlib, or "
        "generated:retrieval"
    )
    for field, specs in lists.items():
        of_field = []
        for spec in specs:
            if spec.partition(":")[0] in without:
                problems.append(Problem(field, spec, "it holds no conversations", remedy))
            else:
                of_field.append(completed(spec))
        fitting.append(of_field)
    if fitting[0] or not train:
        problems += sources.check_lists(fitting[0], fitting[1], skip_bad_rows)
    if problems:
        return problems
    for field, specs in zip(lists, fitting, strict=True):
        for spec in specs:
            source = sources.parse(spec, field)
            source.bad_rows = BadRows(skip_bad_rows)
            if getattr(source, "by", ""):
                problems.append(source.problem("a conversation is a row", "leave out &by="))
                continue
            if isinstance(source, StandardLibrary):
                if source.rest:
                    reason = "conversations are made of all files, not of one"
                    problems.append(source.problem(reason, "write stdlib"))
            elif isinstance(source, GeneratedDocuments):
                continue
            elif source.kind != "hub" and not getattr(source, "remote", False):
                try:
                    if next(read(source, "train"), None) is None:
                        remedy = "give a file with a conversation a row"
                        problems.append(source.problem("it has no rows", remedy))
                except UserError as error:
                    problems += error.problems
    return problems


def without_template(model: str) -> Problem:
    remedy = "--chat_template FILE, a jinja file that renders messages, or a model that was tuned for chat"
    return Problem("chat_template", None, f"{model} comes without a chat template", remedy)


def completed(spec: str) -> str:
    """Return ``spec`` with :data:`COLUMN` where it names no column."""
    if "#" not in spec and spec.partition(":")[0] in _COLUMNS:
        return f"{spec}#{COLUMN}"
    return spec


def fingerprint(source: Source, split: str) -> str:
    if isinstance(source, StandardLibrary):
        return f"chat:{split}:{examples.made_fingerprint(_MADE_SPLITS[split])}"
    return source.fingerprint()


def read(source: Source, split: str) -> Iterator[Row]:
    if isinstance(source, StandardLibrary):
        questions = examples.made_rows(_MADE_SPLITS[split])
        # an unpaired last one is left out
        for pair in zip(questions[::2], questions[1::2], strict=False):
            turns = []
            for _, question, answer in pair:
                turns.append({"role": "user", "content": question})
                turns.append({"role": ASSISTANT, "content": answer})
            yield Row(pair[0][0], turns, None, {})
        return
    assert isinstance(source, RowSource), "checked with the recipe"
    for name, row in source.rows(split):
        turns, others = _parted(row, source.column)
        mistake = _wrong(turns, source.column) or _refused(turns, others, source.column)
        try:
            tools = _tools(others.pop(TOOLS, None))
        except (ValueError, RecursionError):
            remedy = "write a list of mappings, or the JSON of one"
            mistake = ("tools is not a list of JSON schemas", remedy)
        if mistake is not None:
            source.leave_out(f"{name}: {mistake[0]}", mistake[1])
            continue
        # without keys that are None
        plain = [{"role": turn["role"], "content": turn["content"]} for turn in turns]
        yield Row(name, plain, tools, others)


def _refused(turns: Conversation, others: Mapping[str, Any], column: str) -> tuple[str, str] | None:
    """Return what is wrong, and the remedy, if another column would change what is learnt."""
    for key in sorted(others.keys() & _REFUSED.keys()):
        # a weight of 1, and a system prompt that is a turn as well, change nothing
        if key == "weight" and others[key] == 1:
            continue
        if _REFUSED[key] == _SYSTEM and any(others[key] == turn["content"] for turn in turns):
            continue
        return f"the column {key} is not empty, and is not read", _REFUSED[key].format(key, column)
    return None


def _tools(value: Any) -> list[dict[str, Any]] | None:
    """Return the tools of a row: published data have a list, JSON, or a list of JSON. Raises ValueError."""
    if isinstance(value, str):
        value = json.loads(value)
    if not value:
        return None
    if not isinstance(value, list):
        raise ValueError("no list")
    tools = []
    for tool in value:
        if isinstance(tool, str):
            tool = json.loads(tool)
        if not isinstance(tool, dict):
            raise ValueError("no mapping")
        tools.append(tool)
    # half of a surrogate pair cannot be tokenised
    if not storage.is_utf8(json.dumps(tools, ensure_ascii=False)):
        raise ValueError("no Unicode text")
    return tools


def _parted(row: Mapping[str, Any], column: str) -> tuple[Any, dict[str, Any]]:
    """Return the value of a column, and the other non-empty columns, those next to a nested one included."""
    others = {}
    for key, value in row.items():
        if key != column and value not in _EMPTY:
            others[key] = value
    head, _, rest = column.partition(".")
    if column in row or not isinstance(row.get(head), Mapping):
        # None: it is null, which rows of Arrow come without
        return row.get(column), others
    others.pop(head, None)
    turns, inner = _parted(row[head], rest)
    return turns, others | inner


def _wrong(value: Any, column: str) -> tuple[str, str] | None:
    if not isinstance(value, list) or not value:
        held_instead = "an empty list" if value == [] else f"{type(value).__name__}"
        remedy = f"{_OTHER_FORM}, or name the column that has them: #COLUMN"
        return f"holds {held_instead}, not a list of turns", remedy
    for number, turn in enumerate(value, 1):
        if not isinstance(turn, dict):
            return f"turn {number} is {type(turn).__name__}, not a mapping", _OTHER_FORM
        held = {key for key, value in turn.items() if value is not None}
        if {"from", "value"} <= held:
            wrong = f"turn {number} has 'from' and 'value' (ShareGPT's form), not role and content"
            return wrong, _SHAREGPT.format(column)
        for key in ("role", "content"):
            if key == "content" and isinstance(turn.get(key), list) and turn[key]:
                return _in_parts(turn[key], number, column)
            if not isinstance(turn.get(key), str):
                found = type(turn[key]).__name__ if key in held else "nothing"
                return f"turn {number} has {found} under {key!r}, not a text", _OTHER_FORM
        # half of a surrogate pair cannot be tokenised
        if not storage.is_utf8(turn["content"]):
            return f"turn {number} is no Unicode text", "correct or remove that row"
        if turn["role"] not in ROLES:
            return f"turn {number} has the role {turn['role']!r}", f"one of: {', '.join(ROLES)}"
        others = sorted(key for key in held - {"role", "content"} if turn[key] not in _EMPTY)
        if others:
            remedy = "take it out of the turn, or leave that conversation out"
            return f"turn {number} has {', '.join(others)} too, which are not read", remedy
    return None


def _in_parts(parts: list[Any], number: int, column: str) -> tuple[str, str]:
    """Return what is wrong with a content in parts, as models with pictures have it, and the remedy."""
    kinds = set()
    for part in parts:
        kinds.add(str(part.get("type", "?")) if isinstance(part, dict) else type(part).__name__)
    if kinds == {"text"}:
        return f"turn {number} has a list under 'content', parts of text", _TEXTS.format(column)
    others = ", ".join(sorted(kinds - {"text"}))
    wrong = f"turn {number} has a list under 'content', with parts that are no text ({others})"
    return wrong, _SEEN.format(column)
