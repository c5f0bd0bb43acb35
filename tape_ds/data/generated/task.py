"""The protocol of a generated task: its vocabulary, the sequences it draws, and the sizes they are trained and tested
at."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# the first tokens of every vocabulary
SPECIAL = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
# their ids; sequences have no BOS, as published
PAD, UNK, BOS, EOS = range(4)

# how long a sequence is: (length,), or a number for each of two operands
Size = tuple[int, ...]


@dataclass(frozen=True)
class GeneratedSample:
    """A sequence including its answers."""

    # a token each
    words: tuple[str, ...]
    # indices of the answers, rising; each follows from the words before it
    answers: tuple[int, ...]


class Task(ABC):
    """A kind of sequence; the fields that ``bounds`` names are its options in a recipe."""

    name: str
    # the meaning of each number of a size
    sizes: tuple[str, ...]
    # tokens in the order of their ids, `SPECIAL` first
    vocabulary: tuple[str, ...]
    # every character of a text is a token; otherwise spaces separate the tokens
    by_character: bool = False
    # words that end a segment, for encodings that have segments
    signs: Sequence[str]
    chance: float | None = None
    """Share of right answers of a uniform guess among all possible answers; None: not counted."""
    bounds: Mapping[str, tuple[float, float | str]] = {}
    """The smallest and the largest value of each option; a name instead of a value: that option's."""

    @property
    def options(self) -> dict[str, int | float]:
        return {name: getattr(self, name) for name in self.bounds}

    @abstractmethod
    def draw(self, generator: random.Random, size: Size, *, test: bool) -> GeneratedSample:
        """Draw a sequence of this size among those held out for tests, or among all others."""

    @abstractmethod
    def held_out(self, size: Size, count: int, seed: int) -> list[GeneratedSample]:
        """Return at most ``count`` sequences of a test, which depend on task, size and seed alone."""

    @abstractmethod
    def training_size(self, trained: Size, generator: random.Random, step_seed: str) -> Size:
        """Draw the size of a training sequence.

        Args:
            trained: of a recipe: the largest of each size, or the shortest and the longest length.
            generator: of this sequence.
            step_seed: the same for all sequences of a step.
        """

    @abstractmethod
    def tokens(self, size: Sequence[int]) -> int:
        """Return the most tokens of a sequence of this size (of addressing, of any of these lengths), answers
        included."""

    @abstractmethod
    def tests(self, tested: Sequence[int]) -> list["Test"]:
        """Return the tests up to the sizes, or at the lengths, ``tested``."""

    @abstractmethod
    def fingerprint(self, sizes: Sequence[int]) -> str:
        """Hash what decides the sequences of these sizes."""


@dataclass(frozen=True)
class Test:
    """Held-out sequences of one size and kind."""

    task: Task
    size: Size
    # how they differ from training sequences, apart from their size
    kind: str = ""

    @property
    def tokens(self) -> int:
        return self.task.tokens(self.size)

    def __str__(self) -> str:
        return label(self.size, self.kind)


def label(size: Size, kind: str) -> str:
    length = " x ".join(f"{number:,}" for number in size)
    return f"length {length}{', ' if kind else ''}{kind}"


def ids_of(vocabulary: Sequence[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(vocabulary)}


def tokenizer_of(task: Task) -> "PreTrainedTokenizerFast":
    """Return the tokenizer of a task; ``AutoTokenizer`` loads the folder that it is saved in.

    It adds nothing to a text: training sequences have their task's EOS, and prompts are encoded as they are.
    """
    # here: recipes import this file
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pad, unk, bos, eos = SPECIAL
    backend = Tokenizer(models.WordLevel(ids_of(task.vocabulary), unk_token=unk))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if task.by_character:
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        unk_token=unk,
        bos_token=bos,
        eos_token=eos,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
