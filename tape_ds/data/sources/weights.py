"""Weights of data sources: their shares of the tokens of the training sequences.

A list of data is plain, ``["stdlib", "text:a.txt"]``, and everything is read equally often; or each of its entries has
a weight, ``[{"source": "stdlib", "weight": 3}, {"source": "text:a.txt", "weight": 1}]``, and three quarters of the
tokens are from the first, whatever their sizes. Only the proportions of weights matter.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tape_ds.errors import Problem

# a data spec, or {"source": SPEC, "weight": NUMBER}
Entry = str | Mapping[str, Any]

# far below where a sum of weights would overflow
LARGEST = 2**63


def specs_of(entries: Sequence[Entry]) -> list[str]:
    """Return the data specs of a list, weighted or not; entries without one are left out."""
    specs = [entry.get("source") if isinstance(entry, Mapping) else entry for entry in entries]
    return [spec for spec in specs if isinstance(spec, str)]


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
    return ", ".join(f"{percent(share)} {spec}" for spec, share in zip(specs, shares, strict=True))


def percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def check(entries: Sequence[Entry], field: str) -> Iterator[Problem]:
    if not any(isinstance(entry, Mapping) for entry in entries):
        return
    for entry in entries:
        if not isinstance(entry, Mapping):
            wrong = "no weight, and other sources have one"
            yield Problem(
                field,
                entry,
                wrong,
                f"write {{source: {entry}, weight: NUMBER}}, or give none a weight",
            )
            continue
        weight = entry.get("weight")
        if entry.keys() != {"source", "weight"} or not isinstance(entry["source"], str):
            yield Problem(
                field, entry, "not a source with a weight", "write {source: SPEC, weight: NUMBER}"
            )
        elif (
            not isinstance(weight, int | float)
            or isinstance(weight, bool)
            or not 0 < weight < LARGEST
        ):
            remedy = "give a number such as 0.3; to read nothing of a source, remove it"
            yield Problem(field, entry, "its weight is not a number above 0", remedy)
    specs = specs_of(entries)
    for spec in dict.fromkeys(spec for spec in specs if specs.count(spec) > 1):
        yield Problem(
            field, spec, "listed more than once", "give it once, with the sum of the weights"
        )


def check_steps(entries: Sequence[Entry], max_steps: int) -> Iterator[Problem]:
    """Yield a problem if the number of steps is unknown: sources with weights have separate epochs."""
    if max_steps <= 0 and any(isinstance(entry, Mapping) for entry in entries):
        wrong = "sources with weights in train_data have no epoch in common"
        yield Problem("max_steps", max_steps, wrong, "give the number of steps")
