"""Weights of data sources: their shares of the tokens of the training sequences.

A list of data is plain, ``["stdlib", "text:a.txt"]``, and everything is read equally often; or each of its entries has
a weight, ``[{"source": "stdlib", "weight": 3}, {"source": "text:a.txt", "weight": 1}]``, and three quarters of the
tokens are from the first, whatever their sizes. Only the proportions of weights matter.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tape_ds.errors import Problem

# a data spec, or {"source": SPEC, "weight": NUMBER}
Entry = str | Mapping[str, Any]

# far below where a sum of weights would overflow
LARGEST = 2**63


def specs_of(entries: Sequence[Entry]) -> list[str]:
    """Return the data specs of a list, weighted or not; entries without one are left out."""
    specs = []
    for entry in entries:
        spec = entry.get("source") if isinstance(entry, Mapping) else entry
        # the check refuses other values than texts
        if isinstance(spec, str):
            specs.append(spec)
    return specs


def shares_of(entries: Sequence[Entry]) -> list[float] | None:
    """Return each source's share of all tokens in a checked list, with sum 1; None for a plain list."""
    weights = [entry["weight"] for entry in entries if isinstance(entry, Mapping)]
    return [weight / sum(weights) for weight in weights] or None


def described(entries: Sequence[Entry]) -> str:
    """Describe a checked list: ``70 % text:a, 30 % stdlib``."""
    specs = specs_of(entries)
    shares = shares_of(entries)
    if shares is None:
        return ", ".join(specs)
    parts = [f"{percent(share)} {spec}" for share, spec in zip(shares, specs, strict=True)]
    return ", ".join(parts)


def percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def is_weighted(entries: Sequence[Entry]) -> bool:
    return any(isinstance(entry, Mapping) for entry in entries)


def check(entries: Sequence[Entry], field: str) -> Iterator[Problem]:
    if not is_weighted(entries):
        return
    for entry in entries:
        if not isinstance(entry, Mapping):
            reason = "no weight, and other sources have one"
            remedy = f"write {{source: {entry}, weight: NUMBER}}, or give none a weight"
            yield Problem(field, entry, reason, remedy)
            continue
        weight = entry.get("weight")
        if entry.keys() != {"source", "weight"} or not isinstance(entry["source"], str):
            remedy = "write {source: SPEC, weight: NUMBER}"
            yield Problem(field, entry, "not a source with a weight", remedy)
        # True is no number here
        elif not isinstance(weight, int | float) or weight is True or not 0 < weight < LARGEST:
            remedy = "give a number such as 0.3; to read nothing of a source, remove it"
            yield Problem(field, entry, "its weight is not a number above 0", remedy)
    for spec, count in Counter(specs_of(entries)).items():
        if count > 1:
            remedy = "give it once, with the sum of the weights"
            yield Problem(field, spec, "listed more than once", remedy)


def check_steps(entries: Sequence[Entry], max_steps: int) -> Iterator[Problem]:
    """Yield a problem if the number of steps is unknown: sources with weights have separate epochs."""
    if max_steps <= 0 and is_weighted(entries):
        reason = "sources with weights in train_data have no epoch in common"
        yield Problem("max_steps", max_steps, reason, "give the number of steps")
