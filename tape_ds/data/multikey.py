"""Texts with several keys, each asked for by its name: passkey retrieval among wrong keys.

After RULER's multikey task (Hsieh et al. 2024, arXiv:2404.06654), with the filler of the passkey prompts. A shorter
text is the beginning of the longest, so a model with a cache reads that once, and then each question alone.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tape_ds.data.passkey import FILLER, LARGEST_KEY, TASK
from tape_ds.data.prompting import middle_ids, prompt_ids
from tape_ds.errors import Problem, raise_if_any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEYS = 10  # of each text; RULER's has 4
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

    trial: int  # its number among the questions of its length
    key: int  # the answer
    depth: float  # share of the text before the key, 0 to 1
    start: int  # tokens of the text before the question
    ids: tuple[int, ...]  # the question's tokens


@dataclass(frozen=True)
class KeyedText:
    """A text and its questions by length, ascending."""

    ids: tuple[int, ...]
    questions: dict[int, list[KeyedQuestion]]


def draw(
    tokenizer: "PreTrainedTokenizerBase", lengths: Sequence[int], trials: int, *, seed: int, reply: int
) -> list[KeyedText]:
    """Return texts that together have ``trials`` questions at each length; the same for the same arguments.

    Text, question and ``reply`` tokens together have the length. A text's keys are spread over the shortest length, so
    that the same keys are asked for at each length, from further away.
    """
    problems = []
    if trials < 1 or trials % KEYS:
        problems.append(Problem("trials", trials, f"each text has {KEYS} keys", f"give a multiple of {KEYS}"))
    if seed < 0:
        problems.append(Problem("seed", seed, "below 0", "give 0 or more"))
    raise_if_any(problems)

    shortest, longest = min(lengths), max(lengths)
    task, filler = list(prompt_ids(f"{TASK}\n", tokenizer)), middle_ids(f" {FILLER}", tokenizer)
    filler *= longest // len(filler) + 1
    texts, least = [], 0
    for number in range(trials // KEYS):
        generator = np.random.Generator(np.random.PCG64((seed, number)))
        names = generator.choice(_NAMES.split(), size=KEYS, replace=False).tolist()
        keys = generator.choice(np.arange(10_000, LARGEST_KEY), size=KEYS, replace=False).tolist()
        sentences = [
            middle_ids(_KEY.format(name=name, key=key), tokenizer) for name, key in zip(names, keys, strict=True)
        ]
        questions = [tuple(middle_ids(_QUESTION.format(name=name), tokenizer)) for name in names]
        room = max(map(len, questions)) + reply
        without_filler = len(task) + sum(map(len, sentences))
        least = max(least, 2 * without_filler)  # as much filler as keys

        # the shortest length's filler, in equal parts: a key at a random place of each
        spare = max(0, shortest - room - without_filler)
        ids, places, used = list(task), [], 0
        for index, sentence in enumerate(sentences):
            place = int((index + generator.random()) * spare / KEYS)
            ids += filler[: place - used]
            used = place
            places.append(len(ids))
            ids += sentence
        ids += filler[: max(0, longest - room - len(ids))]

        asked = {}
        for length in sorted(lengths):
            start = length - room
            asked[length] = [
                KeyedQuestion(number * KEYS + index, keys[index], places[index] / max(1, start), start, question)
                for index, question in enumerate(questions)
            ]
        texts.append(KeyedText(tuple(ids), asked))
    if shortest < least:
        raise_if_any([Problem("lengths", shortest, "no room for the keys", f"give {least} or more")])
    return texts


def fingerprint() -> str:
    """Return the SHA-256 of the words of a text."""
    return hashlib.sha256("\0".join([TASK, FILLER, _KEY, _QUESTION, _NAMES]).encode()).hexdigest()
