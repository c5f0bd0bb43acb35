"""The application at a socket, until SIGTERM or Ctrl-C."""

import asyncio
from typing import Any

import uvicorn

from tape_ds.serving.engine import AnswerEngine

ENDING_SECONDS = 4
"""For running answers, once the server is stopping."""
_REFUSING_SECONDS = 1
"""For what is then said to those that did not end in time."""


class Listener(uvicorn.Server):
    """Listens, and at its end lets answers run for some seconds, then refuses them.

    uvicorn by itself cancels them, and the process ends before a word of it is sent.
    """

    def __init__(self, engine: AnswerEngine, **settings: Any):
        wait = ENDING_SECONDS + _REFUSING_SECONDS
        super().__init__(
            uvicorn.Config(**settings, log_level="warning", timeout_graceful_shutdown=wait)
        )
        self.engine = engine

    async def shutdown(self, *given: Any, **named: Any) -> None:
        asyncio.get_running_loop().call_later(ENDING_SECONDS, self.engine.end)
        await super().shutdown(*given, **named)
