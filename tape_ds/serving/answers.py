"""Answers in pieces, as the engine's thread writes them and the event loop reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tape_ds.serving.answer_text import AnswerText
from tape_ds.serving.engine import AnswerJob
from tape_ds.serving.generation import Scored, continue_prompt
from tape_ds.serving.prompt_scores import score_prompt
from tape_ds.serving.prompts import PromptTokens
from tape_ds.serving.read_prompt import ReadPrompt
from tape_ds.serving.served import Served
from tape_ds.serving.settings import AnswerSettings

# tokens of a prompt that show whether its answer begins with a space
_CONTEXT = 8


@dataclass(frozen=True)
class Token:
    scored: Scored
    offset: int
    """Character of the choice's text at which it begins."""


@dataclass(frozen=True)
class Piece:
    """A part of a choice."""

    choice: int
    text: str
    tokens: Sequence[Token] = ()
    """Those that begin in the text, if their probabilities were asked for."""
    finish: Literal["stop", "length"] | None = None
    """Of the last piece."""
    drawn: int = 0
    """Tokens of the whole answer, the one that ends it included; of the last piece."""


def write_answers(
    served: Served,
    job: AnswerJob,
    prompt: PromptTokens,
    choices: Mapping[int, AnswerSettings],
    *,
    echo: bool = False,
) -> None:
    """Write the choices of one prompt into their job, each with its number and settings: the prompt, if it is echoed,
    then the answer. The model reads the prompt once."""
    # they differ in their seeds alone
    settings = next(iter(choices.values()))
    read = ReadPrompt(served, prompt.ids, len(choices) if settings.max_tokens else 0)
    tokens: list[Token] = []
    if echo and settings.likeliest is not None:
        scored = score_prompt(
            read, settings.likeliest, job.check, with_cache=settings.max_tokens > 1
        )
        for one, offset in zip(scored, prompt.offsets, strict=True):
            tokens.append(Token(one, offset))
    for choice, own in choices.items():
        # each choice has it, as OpenAI's have
        if echo:
            job.put(Piece(choice, prompt.text, tokens))
        writer = _Writer(served, job, choice, prompt, own, echo)
        # none: only the prompt's probabilities were asked for
        if own.max_tokens:
            continue_prompt(read, own, writer.tell, job.check)
        writer.finish()


class _Writer:
    """Turns the tokens of an answer into pieces."""

    def __init__(
        self,
        served: Served,
        job: AnswerJob,
        choice: int,
        prompt: PromptTokens,
        settings: AnswerSettings,
        echo: bool,
    ):
        self.served = served
        self.job = job
        self.choice = choice
        self.with_tokens = settings.likeliest is not None
        self.shift = 0
        context: Sequence[int] = ()
        # offsets count from the prompt's begin, and the answer's first word has its space
        if echo:
            self.shift = len(prompt.text)
            context = prompt.ids[-_CONTEXT:]
        self.text = AnswerText(served.texts, settings.stops, context)
        self.waiting: list[Token] = []
        self.drawn = 0
        self.has_ended = False

    def tell(self, one: Scored) -> bool:
        self.job.check()
        self.drawn += 1
        if one.token in self.served.ends:
            self.has_ended = True
            return True
        if self.with_tokens:
            self.waiting.append(Token(one, self.shift + self.text.length))
        piece = self.text.add(one.token)
        if piece:
            self.job.put(Piece(self.choice, piece, self._begun()))
        return self.text.stopped

    def finish(self) -> None:
        rest = self.text.finish()
        tokens = self._begun() if self.text.stopped else self.waiting
        reason: Literal["stop", "length"] = "length"
        if self.has_ended or self.text.stopped:
            reason = "stop"
        self.job.put(Piece(self.choice, rest, tokens, reason, self.drawn))

    def _begun(self) -> list[Token]:
        """Take the tokens that begin in the text that was given."""
        end = self.shift + self.text.sent
        begun = [token for token in self.waiting if token.offset < end]
        self.waiting = self.waiting[len(begun) :]
        return begun


@dataclass
class Whole:
    """A choice with all of its pieces."""

    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    finish: Literal["stop", "length"] = "length"
    drawn: int = 0


async def gather(job: AnswerJob, choices: int) -> list[Whole]:
    """Return the choices of a job when it is done."""
    # joined at the end: to add to a text that is long already copies it
    texts: list[list[str]] = [[] for _ in range(choices)]
    whole = [Whole() for _ in range(choices)]
    while True:
        piece = await job.next()
        if piece is None:
            break
        texts[piece.choice].append(piece.text)
        one = whole[piece.choice]
        one.tokens += piece.tokens
        if piece.finish is not None:
            one.finish = piece.finish
            one.drawn = piece.drawn
    for one, parts in zip(whole, texts, strict=True):
        one.text = "".join(parts)
    return whole
