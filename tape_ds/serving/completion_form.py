"""The form of ``/v1/completions``."""

from collections.abc import Sequence
from typing import Any

from tape_ds.serving.answers import Piece, Token, Whole
from tape_ds.serving.forms import DONE, event, finite, new_id, now, usage
from tape_ds.serving.refusal import RefusalError
from tape_ds.serving.served import Served


class CompletionForm:
    """Of one request.

    Args:
        served: the model.
        prompt_tokens: of all prompts together.
        with_logprobs: whether probabilities are told.
        wants_usage: whether a stream ends with the number of tokens.
    """

    def __init__(
        self, served: Served, prompt_tokens: int, *, with_logprobs: bool, wants_usage: bool
    ):
        self.served = served
        self.prompt_tokens = prompt_tokens
        self.with_logprobs = with_logprobs
        self.wants_usage = wants_usage
        self.drawn = 0
        self.head = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": now(),
            "model": served.name,
        }

    def whole(self, choices: Sequence[Whole]) -> dict[str, Any]:
        made = [
            self._choice(index, one.text, one.tokens, one.finish)
            for index, one in enumerate(choices)
        ]
        drawn = sum(one.drawn for one in choices)
        return {**self.head, "choices": made, "usage": usage(self.prompt_tokens, drawn)}

    def begin(self) -> list[str]:
        return []

    def piece(self, piece: Piece) -> list[str]:
        self.drawn += piece.drawn
        choice = self._choice(piece.choice, piece.text, piece.tokens, piece.finish)
        return [self._chunk([choice])]

    def end(self) -> list[str]:
        if not self.wants_usage:
            return [DONE]
        return [
            event({**self.head, "choices": [], "usage": usage(self.prompt_tokens, self.drawn)}),
            DONE,
        ]

    def failed(self, refusal: RefusalError) -> list[str]:
        return [event({"error": refusal.error}), DONE]

    def _chunk(self, choices: list[dict[str, Any]]) -> str:
        # with stream_options every chunk has the field
        last = {"usage": None} if self.wants_usage else {}
        return event({**self.head, "choices": choices, **last})

    def _choice(
        self, index: int, text: str, tokens: Sequence[Token], finish: str | None
    ) -> dict[str, Any]:
        logprobs = self._logprobs(tokens) if self.with_logprobs else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        names = []
        logprobs: list[float | None] = []
        top: list[dict[str, float] | None] = []
        for token in tokens:
            name = self.served.texts.of(token.scored.token)[0]
            names.append(name)
            # a text's first token has no place before it
            if token.scored.logprob is None:
                logprobs.append(None)
                top.append(None)
                continue
            logprobs.append(finite(token.scored.logprob))
            likeliest: dict[str, float] = {}
            for other, logprob in token.scored.likeliest:
                # two tokens may be one text: the likelier one comes first and stays
                likeliest.setdefault(self.served.texts.of(other)[0], finite(logprob))
            likeliest.setdefault(name, finite(token.scored.logprob))
            top.append(likeliest)
        offsets = [token.offset for token in tokens]
        return {
            "tokens": names,
            "token_logprobs": logprobs,
            "top_logprobs": top,
            "text_offset": offsets,
        }
