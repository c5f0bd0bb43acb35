"""Conversations behind a data spec: a column of lists of ``{role, content}``, ``messages`` unless the spec names
another.

``jsonl``, ``parquet`` and ``hub`` have such columns; ``stdlib`` stands for conversations that are made on the spot
(:mod:`.made`). Nothing of a row is passed over in silence: a turn with another key that holds something (a tool's
calls, a weight), or in another form, is refused with its place, and so is a row with another column that would change
what is learnt. The other columns are named before the run.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tape_ds import storage
from tape_ds.data import sources
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.chat import made
from tape_ds.data.sources import RowSource, Source, StandardLibrary
from tape_ds.errors import Problem, UserError

COLUMN = "messages"
"""The column that is read unless the spec names one."""
ROLES = ("system", "developer", "user", "assistant", "tool")
ASSISTANT = "assistant"
"""Whose turns are learnt."""

TOOLS = "tools"
"""The column of the tools that the assistant may call: JSON schemas, as a list or as its JSON."""

Conversation = list[dict[str, str]]
"""Turns of ``role`` and ``content``."""


@dataclass(frozen=True)
class Row:
    """A conversation, and the other columns of its row that hold something."""

    name: str
    turns: Conversation
    tools: list[dict[str, Any]] | None
    others: Mapping[str, Any]


TooLong = Literal["cut", "leave_out"]
"""What becomes of a conversation of more than ``max_tokens``: it loses its end, or it is left out."""

_OTHER_FORM = "write each turn as {role, content}"
_CALLS = "rename it to tools, a list of JSON schemas: jq -c '.tools = .{0} | del(.{0})'"
_SYSTEM = (
    "make it the first turn: "
    'jq -c \'if (.{0} // "") != "" then .{1} = [{{role: "system", content: .{0}}}] + .{1} else . end | del(.{0})\''
)
_WITHOUT = "remove the column, or the rows in which it holds something"
_REFUSED = {
    **dict.fromkeys(("functions", "function_definitions", "tool_defs", "tool_definitions", "available_tools"), _CALLS),
    **dict.fromkeys(("system", "system_prompt", "system_message"), _SYSTEM),
    **dict.fromkeys(("documents", "chat_template", "chat_template_kwargs", "enable_thinking"), _WITHOUT),
    **dict.fromkeys(("reasoning_effort", "weight", "weights", "image", "images"), _WITHOUT),
    **dict.fromkeys(("video", "videos", "audio", "audios"), _WITHOUT),
}
"""Columns that change what is learnt from a conversation wherever they hold something, each with the remedy."""
_SHAREGPT = (
    "rename them, from to role (human: user, gpt: assistant) and value to content: "
    'jq -c \'.{} |= map({{role: ({{human: "user", gpt: "assistant"}}[.from] // .from), content: .value}})\''
)


def check(train: Sequence[str], evaluation: Sequence[str], skip_bad_rows: int | None = None) -> list[Problem]:
    """Return what is wrong with ``train_data`` and ``eval_data`` as far as the specs and the first row of each tell.

    The hub and other machines are not asked. ``skip_bad_rows``: of the recipe.
    """
    lists = {"train_data": train, "eval_data": evaluation}
    problems, fitting = [], []
    for field, specs in lists.items():
        foreign = [spec for spec in specs if (kind := spec.partition(":")[0]) in sources.KINDS and kind not in _TAKEN]
        remedy = f"give {', '.join(_FORMS)}, or stdlib"
        problems += [Problem(field, spec, "it holds no conversations", remedy) for spec in foreign]
        fitting.append([completed(spec) for spec in specs if spec not in foreign])
    if fitting[0] or not train:
        problems += sources.check_lists(fitting[0], fitting[1], skip_bad_rows)
    if problems:
        return problems
    for field, specs in lists.items():
        for source in [parse(spec, field) for spec in specs]:
            source.bad_rows = BadRows(skip_bad_rows)
            if isinstance(source, StandardLibrary):
                if source.rest:
                    problems.append(source.problem("conversations are made of all files, not of one", "write stdlib"))
            elif source.kind != "hub" and not getattr(source, "remote", False):
                problems += _first(source)
    return problems


def without_template(model: str) -> Problem:
    """A problem: the model ``model`` does not say how it renders a conversation."""
    remedy = "--chat_template FILE, a jinja file that renders messages, or a model that was tuned for chat"
    return Problem("chat_template", None, f"{model} comes without a chat template", remedy)


def parse(spec: str, field: str) -> Source:
    """Return the source of a spec, which :func:`check` has found well."""
    return sources.parse(completed(spec), field)


def completed(spec: str) -> str:
    """``spec`` with :data:`COLUMN` where it names no column."""
    return f"{spec}#{COLUMN}" if "#" not in spec and spec.partition(":")[0] in _COLUMNS else spec


def fingerprint(source: Source, split: str) -> str:
    """Changes when the conversations do."""
    return made.fingerprint(split) if isinstance(source, StandardLibrary) else source.fingerprint()


def read(source: Source, split: str) -> Iterator[Row]:
    """Every row, in a fixed order.

    Raises:
        UserError: a row that holds no conversation, or more than is read, and no more of them may be left out.
    """
    if isinstance(source, StandardLibrary):
        yield from (Row(name, turns, None, {}) for name, turns in made.conversations(split))
        return
    assert isinstance(source, RowSource), "checked with the recipe"
    for name, row in source.rows(split):
        turns, others = _parted(row, source.column)
        wrong = _wrong(turns, source.column) or _wrong_others(others, turns, source.column)
        try:
            tools = _schemas(others.pop(TOOLS, None))
        except (ValueError, RecursionError) as error:
            wrong = f"tools is not a list of JSON schemas ({error})", "write a list of mappings, or the JSON of one"
        if wrong is not None:
            source.leave_out(f"{name}: {wrong[0]}", wrong[1])
            continue
        yield Row(name, [{"role": turn["role"], "content": turn["content"]} for turn in turns], tools, others)


_COLUMNS = ("jsonl", "parquet", "hub")
_TAKEN = (*_COLUMNS, "stdlib")
_FORMS = ("jsonl:FILE", "parquet:FILE", "hub:NAME (each with #COLUMN for another column than messages)")


def _first(source: Source) -> list[Problem]:
    try:
        first = next(read(source, "train"), None)
    except UserError as error:
        return error.problems
    return [] if first is not None else [source.problem("it has no rows", "give a file with a conversation a row")]


def _parted(row: Mapping[str, Any], column: str) -> tuple[Any, dict[str, Any]]:
    """Return the value of a column, and the other columns that hold something; those next to it, if it is nested."""
    others = {key: value for key, value in row.items() if key != column and _holds(value)}
    head, _, rest = column.partition(".")
    if column in row or not isinstance(row.get(head), Mapping):
        return row.get(column), others  # None: it is null, which rows of Arrow come without
    others.pop(head, None)
    turns, inner = _parted(row[head], rest)
    return turns, others | inner


def _holds(value: Any) -> bool:
    return value not in (None, "", [], {})


def _schemas(given: Any) -> list[dict[str, Any]] | None:
    """Return a row's tools, None where it has none; published data have them as a list, as JSON, or as a list of JSON.

    Raises:
        ValueError: they are something else.
    """
    found = json.loads(given) if isinstance(given, str) else given
    if isinstance(found, list):
        found = [json.loads(each) if isinstance(each, str) else each for each in found]
    if not found:
        return None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError(f"it holds {str(found)[:60]}")
    if not storage.is_utf8(json.dumps(found, ensure_ascii=False)):
        raise ValueError("it is no Unicode text")
    return found


def _wrong_others(others: Mapping[str, Any], turns: Conversation, column: str) -> tuple[str, str] | None:
    """Return what is wrong with the other columns of a row, and the remedy; None: nothing."""
    for key in sorted(others.keys() & _REFUSED.keys()):
        neutral = key == "weight" and others[key] == 1
        repeated = _REFUSED[key] == _SYSTEM and any(others[key] == turn["content"] for turn in turns)
        if not neutral and not repeated:
            return f"the column {key} holds something, and nothing here reads it", _REFUSED[key].format(key, column)
    return None


def _wrong(value: Any, column: str) -> tuple[str, str] | None:
    """Return what is wrong with a conversation, and the remedy; None: nothing."""
    if not isinstance(value, list) or not value:
        found = "an empty list" if value == [] else f"{type(value).__name__}"
        return f"holds {found}, not a list of turns", f"{_OTHER_FORM}, or name the column that has them: #COLUMN"
    for number, turn in enumerate(value, 1):
        if not isinstance(turn, dict):
            return f"turn {number} is {type(turn).__name__}, not a mapping", _OTHER_FORM
        held = {key for key, each in turn.items() if each is not None}
        if {"from", "value"} <= held:
            wrong = f"turn {number} has 'from' and 'value' (ShareGPT's form), not role and content"
            return wrong, _SHAREGPT.format(column)
        for key in ("role", "content"):
            if not isinstance(turn.get(key), str):
                found = type(turn[key]).__name__ if key in held else "nothing"
                return f"turn {number} has {found} under {key!r}, not a text", _OTHER_FORM
        if not storage.is_utf8(turn["content"]):  # half of a character, as "\ud83d": no tokenizer takes it
            return f"turn {number} is no Unicode text", "mend or remove that row"
        if turn["role"] not in ROLES:
            return f"turn {number} has the role {turn['role']!r}", f"one of: {', '.join(ROLES)}"
        if others := sorted(key for key in held - {"role", "content"} if turn[key] not in ("", [], {})):
            return (
                f"turn {number} has {', '.join(others)} too, which nothing here reads",
                "take it out of the turn, or leave that conversation out",
            )
    return None
