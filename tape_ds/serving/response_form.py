"""The form of ``/v1/responses``."""

from collections.abc import Sequence
from typing import Any

from tape_ds.serving.answers import Piece, Whole
from tape_ds.serving.forms import DONE, event, new_id, now
from tape_ds.serving.refusal import RefusalError
from tape_ds.serving.requests import ResponseRequest
from tape_ds.serving.served import Served
from tape_ds.serving.settings import AnswerSettings


class ResponseForm:
    """Of one request, whose answer is one message."""

    def __init__(
        self, served: Served, prompt_tokens: int, request: ResponseRequest, settings: AnswerSettings
    ):
        self.served = served
        self.prompt_tokens = prompt_tokens
        self.request = request
        self.settings = settings
        self.id = new_id("resp")
        self.message_id = new_id("msg")
        self.created = now()
        self.number = 0
        self.text = ""
        self.last: Piece | None = None

    def whole(self, choices: Sequence[Whole]) -> dict[str, Any]:
        (one,) = choices
        return self._ended(one.text, one.finish, one.drawn)

    def begin(self) -> list[str]:
        started = self._response("in_progress", [])
        item = self._message("in_progress", [])
        return [
            self._event("response.created", response=started),
            self._event("response.in_progress", response=started),
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **self._place(), part=_part("")),
        ]

    def piece(self, piece: Piece) -> list[str]:
        self.text += piece.text
        if piece.finish is not None:
            self.last = piece
        # the last piece may have a reason alone, which `end` writes
        if not piece.text:
            return []
        return [
            self._event(
                "response.output_text.delta", **self._place(), delta=piece.text, logprobs=[]
            )
        ]

    def end(self) -> list[str]:
        assert self.last is not None and self.last.finish is not None
        response = self._ended(self.text, self.last.finish, self.last.drawn)
        name = f"response.{response['status']}"
        return [
            self._event("response.output_text.done", **self._place(), text=self.text, logprobs=[]),
            self._event("response.content_part.done", **self._place(), part=_part(self.text)),
            self._event("response.output_item.done", output_index=0, item=response["output"][0]),
            self._event(name, response=response),
            DONE,
        ]

    def failed(self, refusal: RefusalError) -> list[str]:
        error = refusal.error
        told = self._event(
            "error", code=error["code"], message=error["message"], param=error["param"]
        )
        failed = self._response("failed", [])
        failed["error"] = {"code": "server_error", "message": refusal.message}
        return [told, self._event("response.failed", response=failed), DONE]

    def _ended(self, text: str, finish: str, drawn: int) -> dict[str, Any]:
        status = "completed" if finish == "stop" else "incomplete"
        response = self._response(status, [self._message(status, [_part(text)])])
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            response["completed_at"] = now()
        response["usage"] = {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": drawn,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + drawn,
        }
        return response

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        asked = self.request
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": self.served.name,
            "output": output,
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": self.settings.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": self.settings.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def _message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.message_id, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> str:
        data = {"type": kind, "sequence_number": self.number, **fields}
        self.number += 1
        return event(data, kind)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}
