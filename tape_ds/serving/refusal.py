"""Refusals in the form of OpenAI's ``error``, which its clients turn into exceptions."""

from collections.abc import Mapping, Sequence
from typing import Any


class RefusalError(Exception):
    """Raised where a request cannot be answered.

    Args:
        message: what is wrong and what would be right.
        field: of the request, as ``messages.0.content``; None: of none.
        status: HTTP's.
        code: OpenAI's word for it, if it has one.
    """

    def __init__(
        self, message: str, field: str | None = None, *, status: int = 400, code: str | None = None
    ):
        super().__init__(message)
        self.message = message
        self.field = field
        self.status = status
        self.code = code

    @property
    def error(self) -> dict[str, str | None]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"message": self.message, "type": kind, "param": self.field, "code": self.code}


def of_validation(errors: Sequence[Mapping[str, Any]], body: Any) -> RefusalError:
    """Return the refusal of a body that is not what its endpoint takes, with every field that is wrong.

    Args:
        errors: pydantic's.
        body: as it was parsed.
    """
    messages_of: dict[str, list[str]] = {}
    depths: dict[str, int] = {}
    for error in errors:
        place = tuple(error["loc"])
        if error["type"] == "json_invalid":
            return RefusalError(
                f"The body is no JSON: {error.get('ctx', {}).get('error', error['msg'])}."
            )
        if place and place[0] == "body":
            place = place[1:]
        path = _path(place, body, is_missing=error["type"] == "missing")
        if not path:
            # of several fields: the message names one
            message = error["msg"].removeprefix("Value error, ")
            named, _, rest = message.partition(": ")
            if not (isinstance(body, dict) and named in body):
                named = ""
                rest = message
            messages_of.setdefault(named, []).append(rest)
            continue
        # a field that may have one of several forms has errors of each; the deepest fits best what was written
        top = path[0]
        if len(path) < depths.get(top, 0):
            continue
        if len(path) > depths.get(top, 0):
            depths[top] = len(path)
            for field in list(messages_of):
                if field.split(".")[0] == top:
                    del messages_of[field]
        message = error["msg"].removeprefix("Value error, ")
        messages = messages_of.setdefault(".".join(path), [])
        if message not in messages:
            messages.append(message)
    said = []
    for field, messages in messages_of.items():
        said.append(f"{field or 'The body'}: {' or '.join(messages)}.")
    first = next(iter(messages_of), "") or None
    codes = {"extra_forbidden": "unknown_parameter", "missing": "missing_required_parameter"}
    return RefusalError(" ".join(said), first, code=codes.get(errors[0]["type"], "invalid_value"))


def _path(place: Sequence[Any], body: Any, *, is_missing: bool) -> list[str]:
    """Return the part of pydantic's place that is in the body: it also has names of types."""
    path = []
    inner = body
    for step in place:
        if (isinstance(inner, dict) and step in inner) or (
            isinstance(inner, list) and isinstance(step, int) and step < len(inner)
        ):
            path.append(str(step))
            inner = inner[step]
        elif is_missing and isinstance(inner, dict) and step == place[-1]:
            path.append(str(step))
    return path
