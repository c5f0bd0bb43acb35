"""Which passkey prompts an evaluation asks.

- :func:`grid`: every length with the key at every depth, some keys each. What a heat map shows.
- :func:`published`: the prompts of LongLoRA's and TAPE's evaluation (LongLoRA's ``passkey_retrivial.py``, TAPE's
  ``eval_retrieval.py``), the same filler, keys and places. There a nominal length decides a number of characters, 3.75
  a token, rounded down to a multiple of 1,024; the tokens that come of it are counted, not chosen (Llama's tokenizer
  makes 891 to 7,990 of the eight nominal lengths).

A question is a recipe for a prompt: to write a long one takes many passes of the tokenizer, so each is written where,
and when, it is asked.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tape_ds.data.passkey import LARGEST_KEY, PasskeyPrompt, shortest, text, tokens, write
from tape_ds.errors import Problem, raise_if_any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PUBLISHED_LENGTHS = tuple(range(1000, 9000, 1000))
"""Nominal tokens."""
PUBLISHED_TRIALS = 20
"""Prompts of a length; their seeds are 0 to 19."""


@dataclass(frozen=True)
class PasskeyQuestion:
    """One prompt of an evaluation."""

    length: int
    """Tokens: what prompt and reply may have together, or the nominal length of a published prompt."""
    depth: float | None
    """Share of the filler that stands before the key; None where the protocol draws it."""
    trial: int
    write: Callable[[], PasskeyPrompt]

    @property
    def name(self) -> str:
        """What tells it from the others of its evaluation."""
        depth = "" if self.depth is None else f" depth {self.depth}"
        return f"length {self.length}{depth} trial {self.trial}"


def grid(
    tokenizer: "PreTrainedTokenizerBase",
    lengths: Sequence[int],
    depths: Sequence[float],
    trials: int,
    *,
    seed: int,
    form: str,
    reply: int,
) -> list[PasskeyQuestion]:
    """``trials`` questions at every length and depth; a key follows from (seed, trial, length, depth) alone.

    A length is that of a prompt and its ``reply`` tokens; ``form`` is a name of :data:`tape_ds.data.passkey.FORMS`.

    Raises:
        UserError: no trials, depths or a seed that cannot be, lengths that have no room for what is no filler.
    """
    problems = [Problem("trials", trials, "too few", "give 1 or more")] if trials < 1 else []
    problems += [Problem("depths", each, "outside 0 to 1", "give shares") for each in depths if not 0 <= each <= 1]
    if seed < 0:
        problems.append(Problem("seed", seed, "below 0", "give 0 or more"))
    raise_if_any(problems)
    asked = [
        (length, depth, trial, _key(seed, trial, length, depth))
        for length in lengths
        for depth in depths
        for trial in range(trials)
    ]
    least = dict.fromkeys(lengths, 0)
    for length, _, _, key in asked:
        least[length] = max(least[length], shortest(tokenizer, key, form) + reply)
    wrong = "without any filler, prompt and reply have {} tokens"
    short = [(length, needed) for length, needed in least.items() if length < needed]
    raise_if_any([Problem("lengths", each, wrong.format(need), f"give {need} or more") for each, need in short])
    return [
        PasskeyQuestion(length, depth, trial, partial(write, tokenizer, length, key, depth, form, trial, reply))
        for length, depth, trial, key in asked
    ]


def _key(seed: int, trial: int, length: int, depth: float) -> int:
    """Uniform in 1 .. 50,000."""
    generator = np.random.Generator(np.random.PCG64((seed, trial, length, round(depth * 1_000_000))))
    return int(generator.integers(1, LARGEST_KEY, endpoint=True))


def published(
    tokenizer: "PreTrainedTokenizerBase",
    lengths: Sequence[int] = PUBLISHED_LENGTHS,
    trials: int = PUBLISHED_TRIALS,
) -> list[PasskeyQuestion]:
    """Return the published questions: seeds 0 .. ``trials`` - 1 at each nominal length, the same seeds at all.

    Raises:
        UserError: no trials, lengths that get no filler.
    """
    problems = [Problem("trials", trials, "too few", "give 1 or more")] if trials < 1 else []
    wrong = "3.75 characters a token, rounded down to a multiple of 1,024, leave no filler"
    problems += [Problem("lengths", each, wrong, "give 274 or more") for each in lengths if _characters(each) == 0]
    raise_if_any(problems)
    return [
        PasskeyQuestion(length, None, trial, partial(_published, tokenizer, length, trial))
        for length in lengths
        for trial in range(trials)
    ]


def _characters(length: int) -> int:
    """Of filler, as published."""
    return int(3.75 * length) // 1024 * 1024


def _published(tokenizer: "PreTrainedTokenizerBase", length: int, seed: int) -> PasskeyPrompt:
    """Return the prompt of one seed: first its place is drawn, then its key (below 50,000), by numpy's older
    generator."""
    characters = _characters(length)
    random = np.random.RandomState(seed)
    before = int(random.randint(0, characters))
    key = int(random.randint(1, LARGEST_KEY))
    asked = text("longlora", before, characters - before, key)
    return PasskeyPrompt(length, seed, key, before / characters, asked, tokens(tokenizer, asked))


def fingerprint(form: str) -> str:
    """SHA-256 of a form's words: what it is about, filler, key and question."""
    return hashlib.sha256(text(form, 100, 100, LARGEST_KEY).encode()).hexdigest()
