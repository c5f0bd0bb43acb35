"""Several questions about one of RULER's texts, so that a model reads the text once.

lm-eval asks one question about each text. In three of its tasks the text holds more keys, each with its own value
(:func:`tape_ds.scoring.ruler_generators.keys_in_text`), and a question about another key is lm-eval's own question with
that key in its place.
"""

import random
import re
from collections import Counter
from collections.abc import Mapping
from operator import itemgetter
from typing import Any


class TooFewKeysError(ValueError):
    """A text holds fewer keys than questions are asked about it."""

    def __init__(self, keys: int):
        super().__init__(f"a text of it holds {keys} keys")
        self.keys = keys


def questions_about(
    document: Mapping[str, Any], needle: str, count: int, seed: str
) -> list[dict[str, Any]]:
    """Return ``count`` documents with the text of one, each about another of its keys; the first is the document.

    Args:
        document: of a task whose question is about one key.
        needle: lm-eval's sentence, with ``{key}`` and ``{value}``.
        seed: of the choice among the other keys.

    Raises:
        TooFewKeysError: the text holds fewer.
    """
    text, _, question = document["input"].rpartition("\n")
    needles = find_needles(text, needle)
    times = Counter(map(itemgetter(0), needles))
    (answer,) = document["outputs"]
    own_key = None
    others = []
    for key, value in needles:
        if own_key is None and value == answer and key in question:
            own_key = key
        # of a key that stands there twice either value is right
        elif times[key] == 1:
            others.append((key, value))
    if own_key is None:
        raise TooFewKeysError(0)
    if len(others) < count - 1:
        raise TooFewKeysError(len(others) + 1)
    documents = [dict(document)]
    for key, value in random.Random(seed).sample(others, count - 1):
        changed = {
            "input": f"{text}\n{question.replace(own_key, key)}",
            "gen_prefix": document["gen_prefix"].replace(own_key, key),
            "outputs": [value],
        }
        documents.append({**document, **changed})
    return documents


def find_needles(text: str, needle: str) -> list[tuple[str, str]]:
    """Return key and value of every needle in a text, in order."""
    fields = {"{type_needle_v}": r"\w+", "{key}": r"(?P<key>.+?)", "{value}": r"(?P<value>\S+?)"}
    pattern = re.escape(needle)
    for name, form in fields.items():
        pattern = pattern.replace(re.escape(name), form)
    return list(map(itemgetter("key", "value"), re.finditer(pattern, text)))
