"""Passkey prompts: a number hidden in a long filler text and asked for at its end, and which of them are asked.

Two published forms (Mohtashami and Jaggi 2023, arXiv:2305.16300, appendix) have five lines each: the task, filler, the
key, filler, the question. ``longlora`` cuts its filler at any character (LongLoRA's and TAPE's evaluation); ``pose``
repeats whole rounds of the sentences without a space between two rounds (PoSE's evaluation).

- :func:`draw`: questions with random keys and places, for the checks during a run.
- :func:`grid`: every length with the key at every depth, for a heat map.
- :func:`published`: the prompts of LongLoRA's ``passkey_retrivial.py`` and TAPE's ``eval_retrieval.py``: the same
  filler, keys and places. A nominal length is 3.75 characters a token there, rounded down to a multiple of 1,024; with
  Llama's tokenizer the eight nominal lengths have 891 to 7,990 tokens.

In :func:`draw` and :func:`grid` the filler is as long as the tokenizer allows: prompt and reply have ``length`` tokens.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tape_ds.data.prompting import prompt_ids
from tape_ds.errors import Problem, UserError, collecting, did_you_mean, raise_if_any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LARGEST_KEY = 50_000
REPLY_TOKENS = 10
"""Tokens of a reply, PoSE's number: room for a space and more digits than the largest key has, at a digit a token."""
# nominal tokens
PUBLISHED_LENGTHS = tuple(range(1000, 9000, 1000))
# prompts of a length, seeds 0 to 19
PUBLISHED_TRIALS = 20

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
    "about the important information there."
)
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
_SPACED = f"{FILLER} "
_KEY = "The pass key is {key}. Remember it. {key} is the pass key."
_QUESTION = "What is the pass key? The pass key is"

# filler of a number of units: characters, or rounds of the sentences
FORMS: dict[str, Callable[[int], str]] = {
    "longlora": lambda characters: (_SPACED * (characters // len(FILLER) + 1))[:characters],
    "pose": lambda rounds: FILLER * rounds,
}


@dataclass(frozen=True)
class PasskeyQuestion:
    """One prompt with its answer."""

    # the most tokens that it may have with its reply, or the nominal length of a published prompt
    length: int
    trial: int
    key: int
    # share of the filler before the key, 0 to 1
    depth: float
    text: str
    # token ids, with what the tokenizer puts before a text (BOS, or nothing)
    ids: tuple[int, ...]
    new_tokens: int = REPLY_TOKENS


@dataclass(frozen=True)
class PlannedQuestion:
    """A question that is written when it is asked: a long prompt takes many passes of the tokenizer."""

    length: int
    # share of the filler before the key; None where the protocol draws it
    depth: float | None
    trial: int
    write: Callable[[], PasskeyQuestion]

    @property
    def name(self) -> str:
        depth = "" if self.depth is None else f" depth {self.depth}"
        return f"length {self.length}{depth} trial {self.trial}"


def draw(
    tokenizer: "PreTrainedTokenizerBase",
    lengths: Sequence[int],
    trials: int,
    seed: int,
    form: str = "longlora",
) -> list[PasskeyQuestion]:
    """Draw ``trials`` questions of each length: keys uniform in 1 .. 50,000, their places uniform in the filler.

    A question depends on (seed, trial, length) alone.
    """
    questions: list[PasskeyQuestion] = []
    problems: list[Problem] = []
    for length in lengths:
        # other keys of this length have the same problem
        with collecting(problems):
            for trial in range(trials):
                generator = np.random.Generator(np.random.PCG64((seed, trial, length)))
                key = int(generator.integers(1, LARGEST_KEY, endpoint=True))
                depth = float(generator.random())
                questions.append(write(tokenizer, length, key, depth, form, trial, REPLY_TOKENS))
    raise_if_any(problems)
    return questions


def grid(
    tokenizer: "PreTrainedTokenizerBase",
    lengths: Sequence[int],
    depths: Sequence[float],
    trials: int,
    *,
    seed: int,
    form: str,
    reply: int,
) -> list[PlannedQuestion]:
    """Return ``trials`` questions at every length and depth; ``reply`` tokens of a length are for the answer.

    A key depends on (seed, trial, length, depth) alone.
    """
    problems = _too_few(trials)
    if seed < 0:
        problems.append(Problem("seed", seed, "below 0", "give 0 or more"))
    raise_if_any(problems)
    questions = []
    for length in lengths:
        shortest = 0
        for depth in depths:
            for trial in range(trials):
                # whole numbers alone seed it
                drawn_from = (seed, trial, length, round(depth * 1_000_000))
                generator = np.random.Generator(np.random.PCG64(drawn_from))
                key = int(generator.integers(1, LARGEST_KEY, endpoint=True))
                shortest = max(shortest, len(prompt_ids(text(form, 0, 0, key), tokenizer)) + reply)
                written = partial(write, tokenizer, length, key, depth, form, trial, reply)
                questions.append(PlannedQuestion(length, depth, trial, written))
        if length < shortest:
            wrong = f"without any filler, prompt and reply have {shortest} tokens"
            problems.append(Problem("lengths", length, wrong, f"give {shortest} or more"))
    raise_if_any(problems)
    return questions


def published(
    tokenizer: "PreTrainedTokenizerBase",
    lengths: Sequence[int] = PUBLISHED_LENGTHS,
    trials: int = PUBLISHED_TRIALS,
    *,
    reply: int = REPLY_TOKENS,
) -> list[PlannedQuestion]:
    """Return the published questions: seeds 0 .. ``trials`` - 1 at each nominal length, which has no room for the
    ``reply`` tokens."""
    characters = {length: int(3.75 * length) // 1024 * 1024 for length in lengths}

    def ask(length: int, seed: int) -> PasskeyQuestion:
        # numpy's older generator, the place before the key, and keys below 50,000: as published
        random = np.random.RandomState(seed)
        before = int(random.randint(0, characters[length]))
        key = int(random.randint(1, LARGEST_KEY))
        prompt = text("longlora", before, characters[length] - before, key)
        ids = tuple(prompt_ids(prompt, tokenizer))
        return PasskeyQuestion(length, seed, key, before / characters[length], prompt, ids, reply)

    problems = _too_few(trials)
    for length in lengths:
        if characters[length] == 0:
            reason = "3.75 characters a token, rounded down to a multiple of 1,024, leave no filler"
            problems.append(Problem("lengths", length, reason, "give 274 or more"))
    raise_if_any(problems)
    return [
        PlannedQuestion(length, None, trial, partial(ask, length, trial))
        for length in lengths
        for trial in range(trials)
    ]


def write(
    tokenizer: "PreTrainedTokenizerBase",
    length: int,
    key: int,
    depth: float,
    form: str = "longlora",
    trial: int = 0,
    reply: int = 0,
) -> PasskeyQuestion:
    """Return the question with the longest prompt of at most ``length - reply`` tokens; depth 0 puts the key before the
    filler, 1 after it.
    """
    # low: units of filler that fit
    units = low = 0
    # units that do not
    high: int | None = None
    while high is None or high - low > 1:
        before = round(depth * units)
        prompt = text(form, before, units - before, key)
        ids = prompt_ids(prompt, tokenizer)
        if len(ids) + reply <= length:
            low = units
            best = PasskeyQuestion(length, trial, key, depth, prompt, tuple(ids), reply)
        elif units == 0:
            wrong = f"without any filler prompt and reply have {len(ids) + reply} tokens"
            raise UserError(
                Problem("passkey_lengths", length, wrong, f"give {len(ids) + reply} or more")
            )
        else:
            high = units
        units = max(1, 2 * low) if high is None else (low + high) // 2
    return best


def text(form: str, before: int, after: int, key: int) -> str:
    """Return the five lines, with ``before`` and ``after`` units of filler around the key."""
    if form not in FORMS:
        raise UserError(Problem("passkey_form", form, "no such form", did_you_mean(form, FORMS)))
    filler = FORMS[form]
    return "\n".join((TASK, filler(before), _KEY.format(key=key), filler(after), _QUESTION))


def answer_ids(tokenizer: "PreTrainedTokenizerBase", key: int) -> tuple[int, ...] | None:
    """Return the ids of ``key`` where it follows the question; None for a tokenizer that joins the two."""
    question, answered = (
        prompt_ids(words, tokenizer) for words in (_QUESTION, f"{_QUESTION} {key}")
    )
    if answered[: len(question)] == question:
        return tuple(answered[len(question) :])
    return None


def same_ids(tokenizer: "PreTrainedTokenizerBase", reply: str, key: int) -> bool:
    """Return whether a reply begins with the key's token ids, LongLoRA's rule, for a reply known as text only; False
    where :func:`answer_ids` has none."""
    answer = answer_ids(tokenizer, key)
    if answer is None:
        return False
    start = len(prompt_ids(_QUESTION, tokenizer))
    ids = prompt_ids(f"{_QUESTION} {reply.lstrip(' ')}", tokenizer)
    return tuple(ids[start : start + len(answer)]) == answer


def fingerprint(form: str) -> str:
    return hashlib.sha256(text(form, 100, 100, LARGEST_KEY).encode()).hexdigest()


def _too_few(trials: int) -> list[Problem]:
    if trials < 1:
        return [Problem("trials", trials, "too few", "give 1 or more")]
    return []
