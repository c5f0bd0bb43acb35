"""Several keys in one long text, each asked for by its name: passkey retrieval where a wrong key is at hand.

After RULER's multikey task (Hsieh et al. 2024, arXiv:2404.06654), with the filler of the passkey prompts. A shorter
text is the beginning of the longest, so a model with a cache reads that once, and each question adds only its own
tokens.

Texts are a function of tokenizer, lengths, trials and seed.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tape_ds.data.passkey import FILLER, LARGEST_KEY, TASK
from tape_ds.data.prompting import prompt_ids
from tape_ds.errors import Problem, raise_if_any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEYS = 10
"""Of each text, all within the shortest length; RULER's text has 4."""
_NAMES = (
    "apple bread butter cheese coffee honey lemon onion pepper potato rice salt soup sugar tea tomato water wine "
    "milk egg lion tiger bear wolf fox horse cow sheep goat pig dog cat mouse rabbit deer eagle owl swan duck "
    "shark whale frog snake spider piano guitar violin drum trumpet flute bell song dance film book letter novel "
    "poem story map picture camera mirror clock chair table bed lamp door window roof wall floor kitchen garden "
    "tower bridge castle church school hospital market museum theatre river lake ocean island forest mountain "
    "valley desert beach storm cloud rain snow wind fire moon star planet stone sand hammer knife needle rope "
    "ladder wheel engine bicycle train ship rocket bus truck tractor plane helmet ticket coin wallet ring doctor "
    "teacher farmer pilot soldier judge king queen baker painter writer sailor hunter nurse singer driver lawyer "
    "priest monk thief shirt shoe hat coat glove scarf belt button pocket blanket pillow towel candle basket "
    "bottle bucket spoon fork plate bowl gold silver iron copper glass paper leather cotton"
)
_KEY = " The pass key of the {name} is {key}. Remember it. {key} is the pass key of the {name}."
_QUESTION = "\nWhat is the pass key of the {name}? The pass key of the {name} is"


@dataclass(frozen=True)
class KeyedQuestion:
    """One question about a text."""

    trial: int
    """Its number among the questions of its length."""
    key: int
    """The answer."""
    depth: float
    """Share of the text before the key, 0 to 1."""
    start: int
    """Tokens of the text before the question."""
    ids: tuple[int, ...]
    """The question's tokens."""


@dataclass(frozen=True)
class KeyedText:
    """A text and its questions by length, ascending."""

    ids: tuple[int, ...]
    questions: dict[int, list[KeyedQuestion]]


def draw(
    tokenizer: "PreTrainedTokenizerBase", lengths: Sequence[int], trials: int, *, seed: int, reply: int
) -> list[KeyedText]:
    """Return texts that together have ``trials`` questions at each length.

    Text, question and ``reply`` tokens together have the length. A text's keys are spread over the shortest length, so
    that the same keys are asked for at each, from further away.

    Raises:
        UserError: a number of trials that leaves a text with fewer questions, a length without room for the keys.
    """
    problems = []
    if trials < 1 or trials % KEYS:
        problems.append(Problem("trials", trials, f"each text has {KEYS} keys", f"give a multiple of {KEYS}"))
    least = max(len(_write(tokenizer, [0], seed, text, reply).ids) for text in range(max(1, trials // KEYS)))
    if min(lengths) < 2 * least:  # filler before each key
        problems.append(Problem("lengths", min(lengths), "no room for the keys", f"give {2 * least} or more"))
    raise_if_any(problems)
    return [_write(tokenizer, sorted(lengths), seed, text, reply) for text in range(trials // KEYS)]


def _write(tokenizer: "PreTrainedTokenizerBase", lengths: Sequence[int], seed: int, text: int, reply: int) -> KeyedText:
    def ids_of(words: str) -> list[int]:
        return list(tokenizer(words, add_special_tokens=False)["input_ids"])

    generator = np.random.Generator(np.random.PCG64((seed, text)))
    names = generator.choice(_NAMES.split(), size=KEYS, replace=False).tolist()
    keys = generator.choice(np.arange(10_000, LARGEST_KEY), size=KEYS, replace=False).tolist()
    sentences = [ids_of(_KEY.format(name=name, key=key)) for name, key in zip(names, keys, strict=True)]
    questions = [ids_of(_QUESTION.format(name=name)) for name in names]
    kept_free = max(map(len, questions)) + reply

    ids = list(prompt_ids(f"{TASK}\n", tokenizer))
    # the filler of the shortest length, cut at random places into as many pieces as there are keys and one more
    spare = max(0, min(lengths) - kept_free - len(ids) - sum(map(len, sentences)))
    cuts = [int((index + generator.random()) * spare / KEYS) for index in range(KEYS)]
    filler, places, used = ids_of(f" {FILLER}"), [], 0
    for cut, sentence in zip(cuts, sentences, strict=True):
        ids += _repeated(filler, cut - used)
        used = cut
        places.append(len(ids))
        ids += sentence
    ids += _repeated(filler, max(lengths) - kept_free - len(ids))

    asked = {}
    for length in lengths:
        start = length - kept_free
        asked[length] = [
            KeyedQuestion(text * KEYS + index, keys[index], places[index] / max(1, start), start, tuple(question))
            for index, question in enumerate(questions)
        ]
    return KeyedText(tuple(ids), asked)


def _repeated(ids: list[int], count: int) -> list[int]:
    """Return the first tokens of an endless repetition; none for a count below 0."""
    return (ids * (count // len(ids) + 1))[:count] if count > 0 else []


def fingerprint() -> str:
    """SHA-256 of the words of a text."""
    words = [TASK, FILLER, _KEY, _QUESTION, _NAMES]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()
