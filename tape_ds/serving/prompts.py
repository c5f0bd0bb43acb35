"""Token ids of what a request asks to continue, and refusals of what cannot fit, before it is tokenised if possible."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tape_ds.data.prompting import prompt_part
from tape_ds.serving.answer_text import AnswerText
from tape_ds.serving.refusal import RefusalError
from tape_ds.serving.requests import ChatRequest, Message, ResponseMessage, ResponseRequest
from tape_ds.serving.served import Served
from tape_ds.serving.token_texts import TokenTexts


@dataclass(frozen=True)
class PromptTokens:
    ids: list[int]
    text: str
    offsets: list[int]
    """Character of ``text`` at which each token begins; empty unless asked for."""


def _turns_of(messages: Sequence[Message | ResponseMessage]) -> list[dict[str, str]]:
    """Return messages as chat templates take them, the parts of each as lines of one text."""
    turns = []
    for message in messages:
        text = message.content
        if not isinstance(text, str):
            text = "\n".join(part.text for part in text)
        turns.append({"role": message.role, "content": text})
    return turns


class Prompts:
    """Reads prompts with a tokenizer of its own, in one thread: tokenizers are not made for two."""

    def __init__(self, served: Served):
        self.served = served
        self.tokenizer: Any = copy.deepcopy(served.tokenizer)
        self.texts = TokenTexts(self.tokenizer)

    def of_completion(
        self, prompts: Sequence[str | list[int]], answer: int, with_offsets: bool
    ) -> list[PromptTokens]:
        """Return the prompts of a completion.

        Args:
            prompts: texts or token ids.
            answer: tokens that there must be room for: 1, or 0 if none is asked for.
            with_offsets: whether to say where each token begins.
        """
        read = []
        for number, given in enumerate(prompts):
            field = "prompt" if len(prompts) == 1 else f"prompt.{number}"
            if isinstance(given, str):
                prompt = self._of_text(given, field, with_offsets)
            else:
                prompt = self._of_ids(given, with_offsets)
            self._check(prompt.ids, field, answer)
            read.append(prompt)
        return read

    def of_chat(self, request: ChatRequest) -> PromptTokens:
        return self._of_turns(_turns_of(request.messages), "messages")

    def of_response(self, request: ResponseRequest) -> PromptTokens:
        turns = []
        if request.instructions is not None:
            turns.append({"role": "system", "content": request.instructions})
        if isinstance(request.input, str):
            turns.append({"role": "user", "content": request.input})
        else:
            turns += _turns_of(request.input)
        return self._of_turns(turns, "input")

    def _of_turns(self, turns: list[dict[str, str]], field: str) -> PromptTokens:
        if not getattr(self.tokenizer, "chat_template", None):
            wrong = f"{field}: the model's tokenizer has no chat template, which base models lack: ask /v1/completions."
            raise RefusalError(wrong, field)
        self._check_characters(sum(len(turn["content"]) for turn in turns), field)
        for turn in turns:
            if turn["role"] == "developer":
                # its name in chat templates
                turn["role"] = "system"
        try:
            text = self.tokenizer.apply_chat_template(
                turns, add_generation_prompt=True, tokenize=False
            )
        except Exception as error:
            # a template may raise anything
            said = " ".join(str(error).split())[:300]
            raise RefusalError(
                f"{field}: the model's chat template refuses them: {said}", field
            ) from error
        self._check_characters(len(text), field)
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        self._check(ids, field, 1)
        return PromptTokens(ids, text, [])

    def _of_text(self, text: str, field: str, with_offsets: bool) -> PromptTokens:
        self._check_characters(len(text), field)
        located = with_offsets and self.tokenizer.is_fast
        encoded = self.tokenizer(text, verbose=False, return_offsets_mapping=located)
        part = prompt_part(encoded["input_ids"], self.tokenizer)
        ids = encoded["input_ids"][part]
        if located:
            return PromptTokens(ids, text, [start for start, _ in encoded["offset_mapping"][part]])
        offsets: list[int] = []
        # a tokenizer in Python alone does not say where its tokens begin
        if with_offsets:
            offsets, _ = self._offsets(ids)
        return PromptTokens(ids, text, offsets)

    def _of_ids(self, ids: list[int], with_text: bool) -> PromptTokens:
        if not with_text:
            return PromptTokens(ids, "", [])
        if max(ids) >= self.served.rows:
            # is refused
            return PromptTokens(ids, "", [])
        offsets, text = self._offsets(ids)
        return PromptTokens(ids, text, offsets)

    def _offsets(self, ids: Sequence[int]) -> tuple[list[int], str]:
        """Return where each token begins in the text of all, and that text."""
        if len(ids) > self.served.length:
            # is refused
            return [], ""
        grown = AnswerText(self.texts, decode=self.texts.decode_all)
        offsets = []
        text = ""
        for token in ids:
            offsets.append(grown.length)
            text += grown.add(token)
        return offsets, text + grown.finish()

    def _check_characters(self, characters: int, field: str) -> None:
        most = self.served.most_characters
        if characters > most:
            wrong = f"{field}: {characters:,} characters, with no room for an answer: this model reads and writes up to"
            raise RefusalError(
                f"{wrong} {self.served.length:,} tokens, which is {most:,} characters at the very most.",
                field,
            )

    def _check(self, ids: Sequence[int], field: str, answer: int) -> None:
        length = self.served.length
        if not ids:
            raise RefusalError(f"{field}: no tokens: give some text.", field)
        if len(ids) + answer > length:
            wrong = f"{field}: {len(ids):,} tokens, with no room for an answer: this model reads and writes up to"
            raise RefusalError(f"{wrong} {length:,}.", field, code="context_length_exceeded")
        highest = max(ids)
        if highest >= self.served.rows:
            wrong = f"{field}: token {highest} is outside of the model's vocabulary of {self.served.rows:,}."
            raise RefusalError(wrong, field)
