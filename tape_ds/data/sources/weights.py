"""Weights of data sources: which share of the tokens of the training sequences each of them gives.

A list of data is plain, ``["stdlib", "text:a.txt"]``: everything is read as often as everything else. Or each of its
entries has a weight, ``[{"source": "stdlib", "weight": 3}, {"source": "text:a.txt", "weight": 1}]``: three quarters of
the tokens are of the first, however large the two are. Only the proportions of weights count.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tape_ds.errors import Problem, did_you_mean

Entry = str | Mapping[str, Any]
"""A data spec, or ``{"source": SPEC, "weight": NUMBER}``."""

KEYS = ("source", "weight")
LARGEST = 2**63
"""Far beyond what anybody means, and far below where a sum of weights would overflow."""


def specs_of(entries: Sequence[Entry]) -> list[str]:
    """Return the data specs of a list, weighted or not; entries that have none are left out."""
    found = [entry.get("source") if isinstance(entry, Mapping) else entry for entry in entries]
    return [spec for spec in found if isinstance(spec, str)]


def shares_of(entries: Sequence[Entry]) -> list[float] | None:
    """Return the share of all tokens of each source of a checked list, in its order, 1 together; None: it is plain."""
    weights = [entry["weight"] for entry in entries if isinstance(entry, Mapping)]
    return [weight / sum(weights) for weight in weights] or None


def described(entries: Sequence[Entry]) -> str:
    """Return the sources of a checked list in words, each with its share: ``70 % text:a, 30 % stdlib``."""
    specs, shares = specs_of(entries), shares_of(entries)
    if shares is None:
        return ", ".join(specs)
    return ", ".join(f"{percent(share)} {spec}" for spec, share in zip(specs, shares, strict=True))


def percent(share: float) -> str:
    """Return a share in words: ``33.33 %``."""
    return f"{100 * share:.4g} %"


def check(entries: Sequence[Entry], field: str) -> Iterator[Problem]:
    """Why a list cannot be read as sources with weights; a plain one can always."""
    if not any(isinstance(entry, Mapping) for entry in entries):
        return
    for entry in entries:
        if not isinstance(entry, Mapping):
            wrong = "no weight, and other sources have one"
            yield Problem(field, entry, wrong, f"write {{source: {entry}, weight: NUMBER}}, or give none a weight")
            continue
        for name in entry.keys() - set(KEYS):
            yield Problem(field, entry, f"unknown key {name!r}", did_you_mean(name, KEYS))
        if not isinstance(entry.get("source"), str):
            yield Problem(field, entry, "no source, which is a data spec", "write {source: SPEC, weight: NUMBER}")
        weight = entry.get("weight")
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 < weight < LARGEST:
            wrong = "no weight" if "weight" not in entry else "its weight is not a number above 0"
            yield Problem(field, entry, wrong, "give a number such as 0.3; to read nothing of a source, remove it")
    specs = specs_of(entries)
    for spec in dict.fromkeys(spec for spec in specs if specs.count(spec) > 1):
        yield Problem(field, spec, "stands there more than once", "give it once, with the sum of the weights")
    if len(entries) == 1 and specs:
        wrong = "a weight, and no other source to weigh it against"
        yield Problem(field, entries[0], wrong, f'write ["{specs[0]}"], or add a source')


def check_steps(entries: Sequence[Entry], max_steps: int) -> Iterator[Problem]:
    """Whether the number of steps is known: sources with weights go through epochs of their own, and share none."""
    if max_steps <= 0 and any(isinstance(entry, Mapping) for entry in entries):
        wrong = "sources with weights in train_data have no epoch in common"
        yield Problem("max_steps", max_steps, wrong, "say how many steps to train")
