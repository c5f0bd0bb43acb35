"""Passkey prompts: a number hidden somewhere in a long text of filler, and asked for at its end.

Two published forms of the same idea (Mohtashami and Jaggi 2023, arXiv:2305.16300, appendix), five lines each: what it
is about, filler, the key, filler, the question. They differ in the filler:

- ``longlora``: its sentences, joined by spaces and cut at any character (LongLoRA's and TAPE's evaluation);
- ``pose``: only whole rounds of the sentences, with nothing between two rounds (PoSE's evaluation).

Published lengths are guesses from characters (891 to 7,990 tokens for "1k to 8k") or from 25 tokens a round. Here the
filler is as long as the tokenizer at hand allows, so ``length`` is what it says, whatever the vocabulary. A prompt is a
function of form, tokenizer, length and (seed, trial), or of a depth and a key that somebody chose. Which prompts an
evaluation asks is said in :mod:`tape_ds.data.passkey_protocols`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tape_ds.data.prompting import prompt_ids
from tape_ds.errors import Problem, UserError, did_you_mean, raise_if_any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LARGEST_KEY = 50_000

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
    "about the important information there."
)
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
_KEY = "The pass key is {key}. Remember it. {key} is the pass key."
_QUESTION = "What is the pass key? The pass key is"


FORMS: dict[str, Callable[[int], str]] = {
    "longlora": lambda characters: (f"{FILLER} " * (characters // len(FILLER) + 1))[:characters],
    "pose": lambda rounds: FILLER * rounds,
}
"""Name of a form -> its filler of a number of units: characters, or rounds of the sentences."""


@dataclass(frozen=True)
class PasskeyPrompt:
    """One question, ready for a model."""

    length: int
    """Tokens that it may have; it has as many as the form's filler allows."""
    trial: int
    """Its number among the prompts of this length."""
    key: int
    """The answer."""
    depth: float
    """Share of the filler that stands before the key, 0 to 1."""
    text: str
    """What the model reads."""
    ids: tuple[int, ...]
    """The text's tokens, with what the tokenizer puts before a text (BOS, or nothing)."""


def draw(
    tokenizer: "PreTrainedTokenizerBase", lengths: Sequence[int], trials: int, seed: int, form: str = "longlora"
) -> list[PasskeyPrompt]:
    """``trials`` prompts of each length: keys uniform in 1 .. 50,000, their places uniform in the filler.

    The same (seed, trial, length) gives the same key at the same place, whatever else is asked for.

    Raises:
        UserError: a form that does not exist, lengths too short for what is no filler.
    """
    prompts: list[PasskeyPrompt] = []
    problems: list[Problem] = []
    for length in lengths:
        for trial in range(trials):
            generator = np.random.Generator(np.random.PCG64((seed, trial, length)))
            key, depth = int(generator.integers(1, LARGEST_KEY, endpoint=True)), float(generator.random())
            try:
                prompts.append(write(tokenizer, length, key, depth, form, trial))
            except UserError as error:
                problems += error.problems
                break  # other keys of this length would say nothing new
    raise_if_any(problems)
    return prompts


def write(
    tokenizer: "PreTrainedTokenizerBase",
    length: int,
    key: int,
    depth: float,
    form: str = "longlora",
    trial: int = 0,
    reply: int = 0,
) -> PasskeyPrompt:
    """Return the longest prompt of at most ``length`` tokens with ``key`` at ``depth`` (0: before the filler, 1: behind
    it).

    ``reply`` tokens of the length are kept free for an answer.

    Raises:
        UserError: a form that does not exist, a length too short for what is no filler.
    """

    def at(units: int) -> str:
        before = round(depth * units)
        return text(form, before, units - before, key)

    bare = shortest(tokenizer, key, form)
    if bare + reply > length:
        wrong = f"without any filler the prompt has {bare} tokens"
        raise UserError(Problem("passkey_lengths", length, wrong, f"give {bare + reply} or more"))
    units = _most(lambda count: len(tokens(tokenizer, at(count))) + reply <= length)
    return PasskeyPrompt(length, trial, key, depth, at(units), tokens(tokenizer, at(units)))


def text(form: str, before: int, after: int, key: int) -> str:
    """Return the five lines, with so many units of filler before and behind the key.

    Raises:
        UserError: a form that does not exist.
    """
    if form not in FORMS:
        raise UserError(Problem("passkey_form", form, "no such form", did_you_mean(form, FORMS)))
    filler = FORMS[form]
    return "\n".join((TASK, filler(before), _KEY.format(key=key), filler(after), _QUESTION))


def tokens(tokenizer: "PreTrainedTokenizerBase", words: str) -> tuple[int, ...]:
    """Return the ids of a prompt."""
    return tuple(prompt_ids(words, tokenizer))


def shortest(tokenizer: "PreTrainedTokenizerBase", key: int, form: str) -> int:
    """Return tokens of the prompt without any filler."""
    return len(tokens(tokenizer, text(form, 0, 0, key)))


def answer_ids(tokenizer: "PreTrainedTokenizerBase", key: int) -> tuple[int, ...] | None:
    """Return the ids that ``key`` has where it follows the question; None for a tokenizer that joins the two."""
    asked, answered = tokens(tokenizer, _QUESTION), tokens(tokenizer, f"{_QUESTION} {key}")
    return answered[len(asked) :] if answered[: len(asked)] == asked else None


def same_ids(tokenizer: "PreTrainedTokenizerBase", reply: str, key: int) -> bool:
    """LongLoRA's rule for a reply of which only the text is known: it begins with the key's token ids, where it
    follows the question and one space. False where :func:`answer_ids` has none."""
    answer = answer_ids(tokenizer, key)
    if answer is None:
        return False
    asked = len(tokens(tokenizer, _QUESTION))
    return tokens(tokenizer, f"{_QUESTION} {reply.lstrip(' ')}")[asked : asked + len(answer)] == answer


def _most(fits: Callable[[int], bool]) -> int:
    """Return a count that fits while the next does not; 0 is known to fit. Doubles, then halves the interval."""
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
