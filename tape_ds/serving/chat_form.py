"""The form of ``/v1/chat/completions``."""

from collections.abc import Iterator, Sequence
from typing import Any

from tape_ds.serving.answers import Piece, Token, Whole
from tape_ds.serving.forms import DONE, event, finite, new_id, now, usage
from tape_ds.serving.refusal import RefusalError
from tape_ds.serving.served import Served


class ChatForm:
    """Of one request.

    Args:
        served: the model.
        prompt_tokens: of the rendered messages.
        choices: how many answers there are.
        with_logprobs: whether probabilities are told.
        wants_usage: whether a stream ends with the number of tokens.
    """

    def __init__(
        self,
        served: Served,
        prompt_tokens: int,
        choices: int,
        *,
        with_logprobs: bool,
        wants_usage: bool,
    ):
        self.served = served
        self.prompt_tokens = prompt_tokens
        self.choices = choices
        self.with_logprobs = with_logprobs
        self.wants_usage = wants_usage
        self.drawn = 0
        self.head = {"id": new_id("chatcmpl"), "created": now(), "model": served.name}

    def whole(self, choices: Sequence[Whole]) -> dict[str, Any]:
        made = []
        for index, one in enumerate(choices):
            message = {"role": "assistant", "content": one.text, "refusal": None}
            logprobs = None
            if self.with_logprobs:
                logprobs = {"content": self._content(one.tokens), "refusal": None}
            made.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": logprobs,
                    "finish_reason": one.finish,
                }
            )
        counts = usage(self.prompt_tokens, sum(one.drawn for one in choices))
        return {**self.head, "object": "chat.completion", "choices": made, "usage": counts}

    def begin(self) -> list[str]:
        # OpenAI's first chunk of a choice has the role, and no text
        first = {"role": "assistant", "content": ""}
        return [self._chunk(index, first, None, None) for index in range(self.choices)]

    def piece(self, piece: Piece) -> list[str]:
        self.drawn += piece.drawn
        chunks = []
        if piece.text or piece.tokens:
            chunks.append(
                self._chunk(
                    piece.choice, {"content": piece.text}, self._logprobs(piece.tokens), None
                )
            )
        if piece.finish is not None:
            chunks.append(self._chunk(piece.choice, {}, None, piece.finish))
        return chunks

    def end(self) -> list[str]:
        if not self.wants_usage:
            return [DONE]
        counts = usage(self.prompt_tokens, self.drawn)
        return [
            event({**self.head, "object": "chat.completion.chunk", "choices": [], "usage": counts}),
            DONE,
        ]

    def failed(self, refusal: RefusalError) -> list[str]:
        return [event({"error": refusal.error}), DONE]

    def _chunk(self, index: int, delta: dict[str, Any], logprobs: Any, finish: str | None) -> str:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        # with stream_options every chunk has the field
        last = {"usage": None} if self.wants_usage else {}
        return event({**self.head, "object": "chat.completion.chunk", "choices": [choice], **last})

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not self.with_logprobs:
            return None
        return {"content": list(self._content(tokens)), "refusal": None}

    def _content(self, tokens: Sequence[Token]) -> Iterator[dict[str, Any]]:
        for token in tokens:
            one = self._logprob(token.scored.token, token.scored.logprob)
            one["top_logprobs"] = [self._logprob(*other) for other in token.scored.likeliest]
            yield one

    def _logprob(self, token: int, logprob: float | None) -> dict[str, Any]:
        text, parts = self.served.texts.of(token)
        if logprob is not None:
            logprob = finite(logprob)
        return {"token": text, "bytes": parts and list(parts), "logprob": logprob}
