"""``generated``: documents that are made for training, ``generated:retrieval`` (docs/retrieval.md).

Nothing is stored: a run draws each of its sequences from its seed (:mod:`tape_ds.data.retrieval.sequences`), so such a
source has no end, and no documents to be read one after another. Chat tuning makes a number of conversations instead.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import ClassVar

from tape_ds.data import retrieval_options
from tape_ds.data.sources.base import Shard, Source
from tape_ds.data.sources.weights import Entry, is_weighted, specs_of
from tape_ds.errors import Problem, UserError, did_you_mean

FORMAT = 1
"""Part of every fingerprint: raise it when other documents are drawn for the same options."""
RETRIEVAL = "retrieval"
FIELD = "train_data"


class GeneratedDocuments(Source):
    """``generated:retrieval[#OPTION&OPTION...&text=SPEC]``, see :class:`tape_ds.data.retrieval_options`."""

    kind = "generated"
    form = "generated:retrieval[#OPTIONS]"
    mark: ClassVar[str] = "generated:"

    def __init__(self, spec: str, field: str = "data"):
        super().__init__(spec, field)
        self.name, _, given = self.rest.partition("#")
        self.options, self.wrong = retrieval_options.read(given)

    @property
    def text(self) -> Source | None:
        """The source of the text that records are put into. Raises :class:`UserError`."""
        if self.options.text is None:
            return None
        # here: it lists this class
        from tape_ds.data.sources import parse

        return parse(self.options.text, self.field)

    def check(self) -> list[Problem]:
        problems = []
        if self.field != FIELD:
            wrong = "its documents are made for training, each when it is needed"
            problems.append(self.problem(wrong, f"name it in {FIELD} of a recipe, and text here"))
        if self.name != RETRIEVAL:
            problems.append(
                self.problem(
                    f"there is no {self.name!r} to generate", did_you_mean(self.name, [RETRIEVAL])
                )
            )
        problems += [self.problem(wrong, remedy) for wrong, remedy in self.wrong]
        if problems:
            return problems
        try:
            text = self.text
        except UserError as error:
            return error.problems
        if text is None:
            return []
        if isinstance(text, GeneratedDocuments):
            return [
                self.problem(
                    "its text is generated, too", "write text=SPEC with data that hold text"
                )
            ]
        return text.check()

    def shards(self, split: str) -> list[Shard]:
        raise TypeError(f"{self.spec} has no end")

    def fingerprint(self) -> str:
        """Hash the options, and the text's fingerprint."""
        text = self.text
        settings = asdict(replace(self.options, text=None))
        parts = [self.kind, self.name, str(FORMAT), repr(sorted(settings.items()))]
        parts.append("" if text is None else text.fingerprint())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def identities(self, split: str) -> set[str]:
        """Return those of the text: what it reads is trained on."""
        text = self.text
        if text is None:
            return set()
        return text.identities(split)


def is_generated(spec: str) -> bool:
    return spec.startswith(GeneratedDocuments.mark)


def only_one(specs: Sequence[str]) -> GeneratedDocuments | None:
    """Return the source if the specs are one that is generated; None if they are others."""
    if len(specs) != 1 or not is_generated(specs[0]):
        return None
    return GeneratedDocuments(specs[0], FIELD)


def written_text(specs: Sequence[str]) -> list[str]:
    """Return the specs of text among these, each once: of a generated one, the text that records are put into."""
    found: dict[str, None] = {}
    for spec in specs:
        text = GeneratedDocuments(spec).options.text if is_generated(spec) else spec
        if text is not None:
            found[text] = None
    return list(found)


def _right(specs: Sequence[str]) -> list[GeneratedDocuments]:
    """Return the generated sources whose options can be read; the others are reported by their check."""
    found = [GeneratedDocuments(spec, FIELD) for spec in specs if is_generated(spec)]
    return [source for source in found if not source.wrong]


def check_drawn(entries: Sequence[Entry], window: int, max_steps: int) -> Iterator[Problem]:
    """Yield what is wrong with generated sources of a run that draws as many sequences of ``window`` tokens as it
    needs."""
    specs = specs_of(entries)
    for source in _right(specs):
        if source.options.documents is not None:
            reason = f"it is drawn without end, and documents={source.options.documents} is of conversations"
            yield source.problem(reason, f"remove documents={source.options.documents}")
        if len(specs) > 1 and not is_weighted(entries):
            remedy = "give every source a weight: {source: SPEC, weight: NUMBER}"
            yield source.problem("it has no end, and the sources have no weights", remedy)
        elif len(specs) == 1 and max_steps <= 0:
            yield Problem(
                "max_steps",
                max_steps,
                f"{source.kind} data have no end",
                "give the number of steps",
            )
        tokens = source.options.tokens
        if tokens is not None and tokens[1] > window:
            reason = f"its documents have up to {tokens[1]:,} tokens, and a sequence has {window:,} (window)"
            least = min(tokens[0], window)
            yield source.problem(reason, f"write tokens={least}-{window}, or give a longer window")


def check_conversations(specs: Sequence[str], max_tokens: int) -> Iterator[Problem]:
    """Yield what is wrong with generated sources of a run that reads a number of conversations."""
    for source in _right(specs):
        tokens = source.options.tokens
        if source.options.documents is None:
            yield source.problem(
                "it has no end", "write how many conversations to make: documents=1000"
            )
        if tokens is None:
            yield source.problem(
                "nothing says how long its conversations are",
                f"write tokens={max_tokens}, or a range",
            )
        elif tokens[1] > max_tokens:
            wrong = f"its conversations have up to {tokens[1]:,} tokens, and would lose their questions at max_tokens"
            least = min(tokens[0], max_tokens)
            yield source.problem(wrong, f"write tokens={least}-{max_tokens}, or raise max_tokens")
        if source.options.targets != "answers":
            wrong = "the targets of a conversation are its answers"
            yield source.problem(wrong, f"remove targets={source.options.targets}")
