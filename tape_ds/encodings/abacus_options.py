"""What is said of ``abacus: true`` before a model is built, see :mod:`tape_ds.encodings.abacus`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from tape_ds.encodings.options import Options
from tape_ds.errors import Problem

if TYPE_CHECKING:
    from tape_ds.models.sizes import Fields

DIGITS = "0123456789"
_PREFIX = "abacus_"


def problems(options: Options) -> list[Problem]:
    """What contradicts itself among the options whose names begin with ``abacus``."""
    if not options.abacus:
        own = (field for field in fields(options) if field.name.startswith(_PREFIX))
        given = [field.name for field in own if getattr(options, field.name) != field.default]
        return [
            options.problem(name, "an option of abacus, which is off", "add abacus: true, or remove it")
            for name in given
        ]
    found = []
    if options.abacus_digits is not None and (not options.abacus_digits or min(options.abacus_digits) < 0):
        found.append(options.problem("abacus_digits", "no token ids", "give one token id or more, each 0 or more"))
    if options.abacus_places < 1:
        found.append(options.problem("abacus_places", "too small", "give 1 or more"))
    if options.abacus_shift < 0:
        found.append(options.problem("abacus_shift", "negative", "give 0 or more"))
    elif options.abacus_shift >= options.abacus_places >= 1:
        wrong = f"some offsets leave no place of the {options.abacus_places} that have an embedding"
        found.append(options.problem("abacus_shift", wrong, "give less, or more abacus_places"))
    return found


def problems_with(options: Options, config: Fields) -> list[Problem]:
    """The ids of the digits are known, and within the vocabulary."""
    if not options.abacus:
        return []
    if options.abacus_digits is None:
        remedy = "give the ids of the tokens that are one digit each (a tokenizer that joins digits does not name them)"
        return [options.problem("abacus_digits", "not known", remedy)]
    if max(options.abacus_digits) >= config.vocab_size:
        wrong = f"beyond the vocabulary of {config.vocab_size}"
        return [options.problem("abacus_digits", wrong, "give ids of this model")]
    return []


def for_tokenizer(options: Options, tokenizer: Any) -> Options:
    """Return the options with the ids of the tokenizer's digits, where nobody gave any.

    A tokenizer that also has tokens of several digits leaves them unknown: it would hide places within them.
    """
    if not options.abacus or options.abacus_digits is not None:
        return options
    vocabulary = tokenizer.get_vocab()
    digits = sorted(vocabulary[digit] for digit in DIGITS if digit in vocabulary)
    joined = any(len(word) > 1 and set(word) <= set(DIGITS) for word in vocabulary)
    return replace(options, abacus_digits=digits) if digits and not joined else options
