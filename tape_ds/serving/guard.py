"""Refusals before a request is parsed: foreign hosts, bodies that are no JSON, and those that are too large."""

import asyncio
import codecs
import ipaddress
import re
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from tape_ds.serving.refusal import RefusalError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from its own machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Guard:
    """An ASGI application before another.

    Args:
        app: the other.
        most_bytes: of a body.
        loopback_only: refuse requests whose Host header names another machine: a web page could let its own name point
            to this one, and read the answers.
    """

    def __init__(self, app: App, most_bytes: int, loopback_only: bool):
        self.app = app
        self.most_bytes = most_bytes
        self.loopback_only = loopback_only

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            headers = Headers(scope=scope)
            self._check_headers(headers, scope["method"])
            received = await self._body(receive)
            if received is not None:
                check_text(received["body"])
        except RefusalError as refusal:
            response = JSONResponse({"error": refusal.error}, refusal.status)
            await response(scope, receive, send)
            return
        if received is None:
            # the client left
            return
        waiting = [received]

        async def replay() -> Message:
            if waiting:
                return waiting.pop()
            return await receive()

        # cancelled while the server is stopping: a stream that has begun just ends, without a traceback in the log
        with suppress(asyncio.CancelledError):
            await self.app(scope, replay, send)

    def _check_headers(self, headers: Headers, method: str) -> None:
        if self.loopback_only:
            host = headers.get("host", "")
            if not is_loopback(_without_port(host)):
                wrong = f"Host = {host[:100]!r}: this server answers to localhost, 127.0.0.1 and [::1] alone."
                raise RefusalError(wrong, status=421)
        if method != "POST":
            return
        # a web page may send other types to any server without asking it
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RefusalError(f"Content-Type = {kind[:100]!r}: send application/json.", status=415)
        coding = headers.get("content-encoding", "identity")
        if coding.lower() != "identity":
            raise RefusalError(
                f"Content-Encoding = {coding[:100]!r}: send the body as it is.", status=415
            )
        # refused before it is received; a body in chunks has no length, and is counted as it comes
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.most_bytes:
            raise self._too_large()

    async def _body(self, receive: Receive) -> Message | None:
        parts = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            if size > self.most_bytes:
                raise self._too_large()
            parts.append(part)
            if not message.get("more_body", False):
                return {"type": "http.request", "body": b"".join(parts), "more_body": False}

    def _too_large(self) -> RefusalError:
        wrong = (
            f"The body is larger than {self.most_bytes:,} bytes, with no room for an answer to it."
        )
        return RefusalError(wrong, status=413, code="request_too_large")


def check_text(body: bytes) -> None:
    """Refuse JSON with half of a surrogate pair, written out or as bytes that are no UTF-8: Python reads it as a text
    that no tokenizer takes. UTF-16 and UTF-32, which Python reads too, have zeros."""
    try:
        body.decode()
        if b"\0" in body:
            raise ValueError("it has zeros, which JSON in UTF-8 never has")
        if _SURROGATE.search(body):
            from_json(body.removeprefix(codecs.BOM_UTF8))
    except ValueError as error:
        raise RefusalError(f"The body is no JSON in UTF-8: {error}.") from error


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
