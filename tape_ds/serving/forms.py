"""Parts that OpenAI's three forms of an answer have in common: server-sent events, numbers of tokens, probabilities.

The forms are plain objects: which fields the ``openai`` package's types require changes with its versions. The tests
read all of them with its client and its types.
"""

import json
import math
import secrets
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from tape_ds.serving.answers import Piece, Whole
from tape_ds.serving.refusal import RefusalError

DONE = "data: [DONE]\n\n"
UNLIKELY = -9999.0
"""OpenAI's for a token that cannot come: JSON has no infinity."""
_ENTRIES = 64
"""Of a list that are written at once: with 20 probabilities each some 100 kB."""


class Form(Protocol):
    """Of one request."""

    def whole(self, choices: Sequence[Whole]) -> dict[str, Any]:
        """Return the answer in one object."""

    def begin(self) -> list[str]:
        """Return the events before the first piece."""

    def piece(self, piece: Piece) -> list[str]:
        """Return a piece's events."""

    def end(self) -> list[str]:
        """Return the events after the last piece."""

    def failed(self, refusal: RefusalError) -> list[str]:
        """Return the events of an error after the stream began."""


def new_id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(16)}"


def now() -> int:
    return int(time.time())


def event(data: dict[str, Any], name: str | None = None) -> str:
    """Return a server-sent event, in ASCII: many clients also end a line at U+2028, U+0085 and their like."""
    # a NaN would be no JSON, and end a client's stream with another error
    text = json.dumps(data, allow_nan=False)
    if name is None:
        return f"data: {text}\n\n"
    return f"event: {name}\ndata: {text}\n\n"


def written(answer: dict[str, Any]) -> str:
    """Return an answer's JSON. It is written in parts: Python's writer lets no other thread run meanwhile, and the
    probabilities of one long text take seconds."""
    return "".join(_parts(answer, 0))


def _parts(value: Any, depth: int) -> Iterator[str]:
    """Yield the JSON of a value; ``depth`` is the number of objects and lists around it. The choices of an answer are
    a list at depth 1, and deeper lists have small entries, of one token each; they may be iterators, since millions of
    objects at once would make Python's garbage collector stop all threads."""
    if isinstance(value, dict):
        opening = "{"
        for name, inner in value.items():
            yield f"{opening}{json.dumps(name)}: "
            yield from _parts(inner, depth + 1)
            opening = ", "
        yield "}" if value else "{}"
    elif isinstance(value, list) and depth <= 1:
        opening = "["
        for inner in value:
            yield opening
            yield from _parts(inner, depth + 1)
            opening = ", "
        yield "]" if value else "[]"
    elif isinstance(value, list | Iterator):
        entries = iter(value)
        opening = "["
        while part := list(islice(entries, _ENTRIES)):
            yield opening + json.dumps(part, allow_nan=False)[1:-1]
            opening = ", "
        yield "]" if opening == ", " else "[]"
    else:
        yield json.dumps(value, allow_nan=False)


def usage(prompt_tokens: int, drawn: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": drawn,
        "total_tokens": prompt_tokens + drawn,
    }


def finite(logprob: float) -> float:
    if math.isfinite(logprob):
        return logprob
    return UNLIKELY
