"""lm-eval's generators of RULER (``lm_eval.tasks.ruler``, a port of NVIDIA's), called without the network.

The modules are executed as private copies, for three reasons: at import one of them fetches NLTK's sentence splitter,
and makes a list of six million words; their numbers of samples are fixed at 500; and one keeps a generator of random
numbers, so that its texts depend on what was drawn before. Nothing of lm-eval in this process is changed.
"""

import contextlib
import importlib.util
import json
import math
import operator
import random
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import product, starmap
from operator import itemgetter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tape_ds.errors import Problem

PACKAGE = "lm_eval.tasks.ruler"
SAMPLES = 500
"""Questions of a task at a length, as published; no more can be drawn."""
SHORTEST = 1024
"""Tokens of the shortest text: the example that variable tracking shows may have 500 alone."""
SEEDS = {"random": 0, "numpy": 1234}
"""lm-eval's own, by generator of random numbers."""
DRAWING = {
    "niah_utils": "generate_samples",
    "vt_utils": "sys_vartrack_w_noise_random",
    "cwe_utils": "sys_word_pair_random",
    "fwe_utils": "sys_kwext",
    "qa_utils": "generate_samples",
}
"""The function of each module that draws a number of samples."""
QA_FILES = {"qa_squad": "squad", "qa_hotpot": "hotpot"}
"""Tasks that read a file, and what the file is called here."""
PUBLISHED_QA = {"squad": "dev-v2.0.json", "hotpot": "hotpot_dev_distractor_v1.json"}
_LISTS_ALL_WORDS = (
    'words = [f"{adj}-{noun}" for adj in adjs for noun in nouns]\nWORDS = sorted(set(words))'
)


class NoQuestionError(ValueError):
    """No question of this task has so few tokens."""


class MeasuringTokenizer:
    """A tokenizer as the generators use it: ``tokenizer(text).input_ids`` has as many ids as a prompt of that text.

    The generators shorten a text until it fits, some without end. After ``patience`` texts it refuses all others.

    Args:
        tokenizer: of transformers.
        room: tokens that a prompt has and its text has not: the answer's prefix, a chat's marks.
        patience: number of texts.
    """

    def __init__(self, tokenizer: Any, room: int, patience: int):
        self.tokenizer = tokenizer
        self.room = room
        self.patience = patience
        self.measured = 0

    def __call__(self, text: str) -> SimpleNamespace:
        self.measured += 1
        if self.gave_up and not text:
            return SimpleNamespace(input_ids=range(0))
        if self.gave_up:
            raise NoQuestionError("its shortest text has more tokens")
        ids = self.tokenizer(text, verbose=False)["input_ids"]
        return SimpleNamespace(input_ids=range(len(ids) + self.room))

    @property
    def gave_up(self) -> bool:
        return self.measured > self.patience


class SortedPairs(Sequence[str]):
    """``sorted({f"{first}-{second}" ...})`` of all pairs, each made when it is asked for.

    Pairs are ordered by their first words, except where one first word continues another at a hyphen (``well``,
    ``well-off``): such words are one block, whose pairs are listed.
    """

    def __init__(self, firsts: Iterable[str], seconds: Iterable[str]):
        self._seconds = sorted(set(seconds))
        blocks: list[list[str]] = []
        for begin in sorted({f"{first}-" for first in firsts}):
            if blocks and begin.startswith(blocks[-1][0]):
                blocks[-1].append(begin)
            else:
                blocks.append([begin])
        # beginning of its pairs, or the pairs
        self._blocks: list[tuple[str, list[str] | None]] = []
        self._starts = [0]
        for begins in blocks:
            listed = None
            size = len(self._seconds)
            if len(begins) > 1:
                listed = sorted(set(starmap(operator.add, product(begins, self._seconds))))
                # two words may make the same pair
                size = len(listed)
            self._blocks.append((begins[0], listed))
            self._starts.append(self._starts[-1] + size)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        block = bisect_right(self._starts, index) - 1
        begin, listed = self._blocks[block]
        place = index - self._starts[block]
        if listed is None:
            return begin + self._seconds[place]
        return listed[place]


class Generators:
    """The generators with one haystack.

    Args:
        haystack: returns the texts of the essays' place; called when a task needs them.
        qa_files: SQuAD's and HotpotQA's files, by the names of :data:`QA_FILES`.
    """

    def __init__(
        self, haystack: Callable[[], list[str]], qa_files: Mapping[str, Path] | None = None
    ):
        self.haystack = haystack
        self.qa_files = qa_files or {}

    def draw(
        self,
        task: str,
        tokenizer: Any,
        length: int,
        samples: int,
        *,
        room: int,
        seed: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return lm-eval's documents of a task: ``input``, ``outputs`` (the answers), ``gen_prefix`` and more.

        They are the first of those that lm-eval draws for this task and length alone, from its own seeds, or from
        ``seed``.

        Args:
            task: of :func:`tasks`.
            length: tokens of text, ``room`` and reply.

        Raises:
            NoQuestionError: none fits.
        """
        path = str(configuration(task)["custom_dataset"])
        module_name, _, function = Path(path).name.partition(".")
        module = self._module(module_name)
        # the search for the size of a text, and some attempts for each sample
        measuring = MeasuringTokenizer(tokenizer, room, patience=1000 + length // 4 + 20 * samples)
        # things that the module would load, show and print
        module["get_tokenizer"] = lambda *_, **__: measuring
        module["tqdm"] = lambda items, **_: items
        module["print"] = lambda *_, **__: None
        own_draw = module[DRAWING[module_name]]

        def draw_fewer(*arguments: Any, **options: Any) -> Any:
            # lm-eval asks for all of them
            options["num_samples"] = min(options.get("num_samples", SAMPLES), samples)
            return own_draw(*arguments, **options)

        module[DRAWING[module_name]] = draw_fewer
        # the values that their attempts return
        empty = {"vt_utils": 2, "cwe_utils": 3}.get(module_name)
        if "generate_input_output" in module and empty is not None:
            _end_attempts(module, measuring, empty)
        try:
            with _seeded(seed):
                drawn = module[function](max_seq_lengths=[length])
                documents: list[dict[str, Any]] = drawn["test"].to_list()
        except (ValueError, IndexError, ZeroDivisionError) as error:
            raise NoQuestionError(" ".join(str(error).split())) from error
        if measuring.gave_up:
            raise NoQuestionError("its shortest text has more tokens")
        if len(documents) < samples or not all(map(itemgetter("outputs"), documents)):
            raise NoQuestionError("not all of its questions fit")
        return documents

    def _module(self, name: str) -> dict[str, Any]:
        """Return the names of a new copy of a module."""
        replaced = {"wonderwords": _words_of_wonderwords()}
        if name == "niah_utils":
            replaced[f"{PACKAGE}.prepare_niah"] = self._prepare_niah
        module = _execute(name, replaced)
        if name == "qa_utils":
            module.download_json = self._read_json  # type: ignore[attr-defined]
        return vars(module)

    @cached_property
    def _prepare_niah(self) -> ModuleType:
        words = _words_of_wonderwords()
        lists_all = _LISTS_ALL_WORDS in Path(_file("prepare_niah")).read_text(encoding="utf-8")
        # where this line is another one, the module makes its own list, whatever that costs
        imported = words
        if lists_all:
            imported = _words_of_wonderwords(empty=True)
        nltk = ModuleType("nltk")
        nltk.data = SimpleNamespace(find=lambda _: None)  # type: ignore[attr-defined]
        # found when it is called, so that importing this module needs no data
        nltk.sent_tokenize = lambda text: sentence_splitter()[1](text)  # type: ignore[attr-defined]
        module = _execute("prepare_niah", {"wonderwords": imported, "nltk": nltk})
        if lists_all:
            categories = words.RandomWord()._categories
            module.WORDS = SortedPairs(categories["adjectives"], categories["nouns"])  # type: ignore[attr-defined]
        module.tqdm = lambda items, **_: items  # type: ignore[attr-defined]
        essays = SimpleNamespace(load_dataset=lambda *_, **__: {"text": self.haystack()})
        module.datasets = essays  # type: ignore[attr-defined]
        return module

    @property
    def needle(self) -> str:
        """lm-eval's sentence of a needle, with ``{type_needle_v}``, ``{key}`` and ``{value}``."""
        return str(self._prepare_niah.NEEDLE)

    def check_qa(self) -> list[Problem]:
        """Return a problem for each file of questions that lm-eval's reader does not take."""
        problems = []
        for task, name in QA_FILES.items():
            if name not in self.qa_files:
                continue
            file = self.qa_files[name]
            module = self._module("qa_utils")
            reader = next(module[word] for word in module if word.startswith(f"read_{name}"))
            reason = ""
            try:
                questions, _ = reader()
                if not questions:
                    reason = "it has no question"
            except (OSError, ValueError) as error:
                reason = f"it cannot be read as JSON ({' '.join(str(error).split())})"
            except (KeyError, TypeError, IndexError) as error:
                reason = f"it has another form than {task}'s published file ({type(error).__name__}: {error})"
            if reason:
                remedy = f"give {PUBLISHED_QA[name]}, as it was published"
                problems.append(Problem(f"--{name}", str(file), reason, remedy))
        return problems

    def _read_json(self, url: str) -> Any:
        name = next(name for name in QA_FILES.values() if name in url.lower())
        return json.loads(self.qa_files[name].read_text(encoding="utf-8"))


@cache
def tasks() -> tuple[str, ...]:
    """Return the names of RULER's tasks in lm-eval's order, without its ``ruler_``."""
    listed = _yaml("ruler")["task"]
    return tuple(name.removeprefix("ruler_") for name in listed)


@cache
def configuration(task: str) -> dict[str, Any]:
    """Return lm-eval's configuration of a task; functions are the paths of their modules, ``FOLDER/MODULE.NAME``."""
    for file in sorted(Path(_file("common_utils")).parent.glob("*.yaml")):
        found = _yaml(file.stem)
        if found.get("task") in (task, f"ruler_{task}"):
            return found
    raise KeyError(task)


@cache
def needles(task: str) -> Mapping[str, Any] | None:
    """Return how a task hides its needles: the options of lm-eval's ``generate_samples``; None if it hides none."""
    module_name, _, function = Path(str(configuration(task)["custom_dataset"])).name.partition(".")
    if module_name != "niah_utils":
        return None
    recorded: list[dict[str, Any]] = []

    def record(*_: Any, **options: Any) -> list[Any]:
        recorded.append(options)
        return []

    recorder = ModuleType("prepare_niah")
    # the options are what is asked for; no text is made of them
    recorder.get_haystack = lambda **_: ""  # type: ignore[attr-defined]
    recorder.generate_samples = record  # type: ignore[attr-defined]
    module = vars(_execute(module_name, {f"{PACKAGE}.prepare_niah": recorder}))
    module["get_tokenizer"] = lambda *_, **__: None
    module["download_dataset"] = lambda samples: list(map(list, samples))
    module[function](max_seq_lengths=[SHORTEST])
    return recorded[0]


def hides_in_essays(task: str) -> bool:
    """Return whether a task hides its needles in essays."""
    hidden = needles(task)
    return hidden is not None and hidden["type_haystack"] == "essay"


def keys_in_text(task: str) -> float:
    """Return how many keys a text of the task holds that its question can be about, one by one; infinity where that
    depends on the text's length."""
    hidden = needles(task)
    if hidden is None or hidden.get("num_needle_q", 1) * hidden.get("num_needle_v", 1) > 1:
        return 1
    if hidden["type_haystack"] == "needle":
        return math.inf
    return int(hidden.get("num_needle_k", 1))


@cache
def sentence_splitter() -> tuple[str, Callable[[str], list[str]]]:
    """Return name and function of what splits essays into sentences, between which needles are put: NLTK's for English,
    as lm-eval does, if its data are installed; else NLTK's without what was learnt from English texts."""
    import nltk
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    try:
        nltk.data.find("tokenizers/punkt_tab")
    except LookupError:
        return "untrained Punkt", PunktSentenceTokenizer().tokenize
    return "punkt_tab", nltk.sent_tokenize


def _yaml(stem: str) -> dict[str, Any]:
    from lm_eval.tasks._yaml_loader import load_yaml

    return dict(
        load_yaml(Path(_file("common_utils")).with_name(f"{stem}.yaml"), resolve_func=False)
    )


def _file(name: str) -> str:
    found = importlib.util.find_spec(f"{PACKAGE}.{name}")
    assert found is not None and found.origin is not None
    return found.origin


def _execute(name: str, replaced: Mapping[str, ModuleType]) -> ModuleType:
    """Return a new copy of a module, which finds ``replaced`` when it imports."""
    spec = importlib.util.spec_from_file_location(f"{__name__}.{name}", _file(name))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = {imported: sys.modules.get(imported) for imported in replaced}
    sys.modules.update(replaced)
    try:
        spec.loader.exec_module(module)
    finally:
        # names that others import are theirs again
        for imported, theirs in before.items():
            if theirs is None:
                del sys.modules[imported]
            else:
                sys.modules[imported] = theirs
    return module


@cache
def _words_of_wonderwords(empty: bool = False) -> ModuleType:
    """Return a module with wonderwords' lists, which its own reads from files whenever it is asked."""
    import wonderwords

    categories = wonderwords.RandomWord()._categories
    if empty:
        categories = {name: [] for name in categories}
    module = ModuleType("wonderwords")
    module.RandomWord = lambda: SimpleNamespace(_categories=categories)  # type: ignore[attr-defined]
    return module


def _end_attempts(module: dict[str, Any], measuring: MeasuringTokenizer, empty: int) -> None:
    """End a generator that would try again without end, since it takes every error for a text that is too long.

    After the tokenizer gave up, every second attempt fails, which ends the search for a size; the others give ``empty``
    values, which fit.
    """
    own = module["generate_input_output"]
    failed = [False]

    def attempt(*arguments: Any, **options: Any) -> Any:
        measuring.measured += 1
        if not measuring.gave_up:
            return own(*arguments, **options)
        failed[0] = not failed[0]
        if failed[0]:
            raise NoQuestionError("its shortest text has more tokens")
        return (*[""] * (empty - 1), [])

    module["generate_input_output"] = attempt


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Seed the generators of random numbers that lm-eval seeds; afterwards restore them."""
    state = random.getstate()
    state_of_numpy = np.random.get_state()
    seeds = SEEDS if seed is None else dict.fromkeys(SEEDS, seed)
    random.seed(seeds["random"])
    np.random.seed(seeds["numpy"])
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(state_of_numpy)
