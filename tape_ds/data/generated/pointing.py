"""Look-back and look-ahead: the letter k places before, or after, a marker.

The marker is found by its content and the letter by its distance from it, so neither content nor the distance from the
query alone gives the answer.
"""

import random
import string
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from tape_ds.data.generated.addressing import AddressingTask
from tape_ds.data.generated.task import GeneratedSample, Size


@dataclass(frozen=True)
class Pointing(AddressingTask):
    """``x b ^1 q f ... ?1 2 x``: letters, markers among them, and at the end a marker's question, k, and the letter.

    Letters are uniform and independent, and so are the places of markers among those from which every k can be asked.
    What is asked is uniform among all pairs of a marker and a k.
    """

    letters: int = 26
    """Of the alphabet."""
    most: int = 16
    """The largest k; the smallest is 1."""
    markers: int = 1
    """In each text, all of them different; a question names one."""
    queries: int = 1
    """After each text."""

    sizes = ("tokens of the text before the question",)

    @property
    def words(self) -> tuple[str, ...]:
        questions = (f"?{each}" for each in range(1, self.markers + 1))
        return (*self._alphabet, *self.signs, *questions, *map(str, range(1, self.most + 1)))

    @property
    def signs(self) -> tuple[str, ...]:
        return tuple(f"^{each}" for each in range(1, self.markers + 1))

    @property
    def chance(self) -> float:
        return 1 / self.letters

    @property
    def shortest(self) -> int:
        return max(16, self.most + 2 * self.markers)  # room for all markers where every k can be asked

    def tokens(self, size: Size) -> int:
        (length,) = size
        return length + 3 * self.queries

    @abstractmethod
    def places(self, length: int) -> range:
        """Return the possible places of a marker: every k can be asked from there."""

    @abstractmethod
    def target(self, place: int, k: int) -> int:
        """Return the place that is asked for, from a marker's place and k."""

    def sequence(self, generator: random.Random, length: int) -> GeneratedSample:
        """Draw a sequence; no question is for a marker's place, and none is asked twice."""
        markers = range(1, self.markers + 1)
        places = dict(zip(markers, generator.sample(self.places(length), self.markers), strict=True))
        words = generator.choices(self._alphabet, k=length)
        for marker, place in places.items():
            words[place] = f"^{marker}"
        taken = set(places.values())
        can_be_asked = [
            (marker, k)
            for marker, place in places.items()
            for k in range(1, self.most + 1)
            if self.target(place, k) not in taken
        ]
        asked = generator.sample(can_be_asked, self.queries)
        for marker, k in asked:
            words += (f"?{marker}", str(k), words[self.target(places[marker], k)])
        return GeneratedSample(tuple(words), tuple(range(length + 2, len(words), 3)))

    def bounds(self) -> Mapping[str, tuple[float, float]]:
        return {
            "letters": (2, len(string.ascii_letters)),
            "most": (1, 1024),
            "markers": (1, 64),
            "queries": (1, self.most),
        }

    @property
    def _alphabet(self) -> str:
        return string.ascii_letters[: self.letters]


class LookBack(Pointing):
    """The letter k places before the marker."""

    name = "look_back"

    def places(self, length: int) -> range:
        return range(self.most, length)

    def target(self, place: int, k: int) -> int:
        return place - k


class LookAhead(Pointing):
    """The letter k places after the marker."""

    name = "look_ahead"

    def places(self, length: int) -> range:
        return range(length - self.most)

    def target(self, place: int, k: int) -> int:
        return place + k
