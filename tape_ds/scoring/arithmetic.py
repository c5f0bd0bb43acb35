"""Answers to sums, all right or wrong: how many of each pair of operand lengths, and what that comes to.

A reply is greedy, and right when it is the whole answer and then the end of text. Lengths form a grid, and a mean over
it says little without the part of it that was trained: of a grid of twice the trained lengths a quarter is, so a model
that has learned its sequences and nothing beyond them already reaches 25 %. Hence the means stand side by side.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tape_ds.data.arithmetic import split
from tape_ds.data.arithmetic.tasks import ArithmeticTask
from tape_ds.errors import Problem

if TYPE_CHECKING:
    from torch import nn

EXAMPLES = 3
"""Wrong answers of a cell that are kept."""
Pair = tuple[int, int]


def check_sizes(field: str, given: Sequence[int] | None) -> list[Problem]:
    """Return what is wrong with lengths as a user types them: one for both operands, or one for each; None: not
    given."""
    if given is None or (1 <= len(given) <= 2 and min(given) >= 1):
        return []
    return [Problem(field, " ".join(map(str, given)), "not one or two lengths", "give for example 12, or 12 8")]


def check_reach(field: str, last: Pair, task: ArithmeticTask) -> list[Problem]:
    """Whether the task has problems as long as the grid is."""
    return [
        Problem(field, size, f"{task.name} has at most {most:,} {name}", "give less")
        for size, most, name in zip(last, task.largest, task.sizes, strict=True)
        if size > most
    ]


def check_counts(dashes: str, samples: int, batch_size: int) -> list[Problem]:
    """Return what is wrong with how many are asked, of each cell and at once; ``dashes`` stand before a field's
    name."""
    problems = []
    if not 1 <= samples <= split.MOST:
        problems.append(Problem(f"{dashes}samples", samples, "out of range", f"give 1 to {split.MOST:,}"))
    if batch_size < 1:
        problems.append(Problem(f"{dashes}batch_size", batch_size, "too few", "give 1 or more"))
    return problems


def drawn_too_short(config: Any, task: ArithmeticTask, last: Pair) -> str | None:
    """Return what to know of a model that spreads its positions over texts of a length of their own (``randpe``), where
    the grid's are longer; None: nothing."""
    spread = (getattr(config, "position_options", None) or {}).get("evaluation_length")
    longest = task.longest(*last)
    if spread is None or spread >= longest:
        return None
    return (
        f"its positions are spread over texts of {spread} tokens (position_options.evaluation_length) and the grid's "
        f"longest have {longest}: beyond, they count on by steps that training has never seen"
    )


def both(given: Sequence[int]) -> Pair:
    """Return one length for each operand, from what :func:`check_sizes` lets pass."""
    return given[0], given[-1]


@dataclass(frozen=True)
class ArithmeticQuestion:
    """A prompt and its answer, in token ids; the end of text is in neither."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def replies(
    model: "nn.Module", questions: Sequence[ArithmeticQuestion], *, end: int, batch_size: int, use_cache: bool = True
) -> list[tuple[int, ...]]:
    """Return what ``model`` writes behind each prompt, up to the end of text.

    Args:
        model: as :func:`tape_ds.scoring.generation.continue_prompts` takes it.
        questions: their prompts are padded on the left where they are not equally long.
        end: id of the token that ends a text.
        batch_size: questions that are asked at once.
        use_cache: off, the whole text is read again for every new token.

    Returns:
        Token ids without the end. A reply has room for the longest answer of its batch and for the end, so one that
        equals its answer has ended there.

    Raises:
        ValueError: an empty prompt, ``batch_size`` below 1.
    """
    from tape_ds.scoring.generation import continue_prompts

    found: list[tuple[int, ...]] = []
    for start in range(0, len(questions), batch_size):
        asked = questions[start : start + batch_size]
        room = 1 + max(len(question.answer) for question in asked)
        written = continue_prompts(
            model, [question.prompt for question in asked], new_tokens=room, ends=[end], use_cache=use_cache
        )
        found += [tuple(ids) for ids in written]
    return found


@dataclass(frozen=True)
class Mean:
    """Exact match over a part of the grid, every cell counting alike, whatever was asked of it."""

    value: float | None
    """0 to 1; None where the part has no cell."""
    cells: int
    """That anything was asked of."""


def means(cells: Iterable[Mapping[str, Any]], trained: Pair) -> dict[str, Mean]:
    """Return the means of a grid whose training sequences had operands of up to ``trained`` tokens.

    A cell has the lengths of its operands, ``first`` and ``second``, its ``samples`` (none: it does not count), and how
    many of them were ``correct``.

    ``whole``: of every cell. ``trained``: neither operand longer than trained. ``beyond``: either longer, the grid
    without its trained part. ``both_beyond``: both longer. ``twice``: the published convention, up to twice the trained
    lengths, trained part and all; without a value where the grid ends before.
    """
    found = [cell for cell in cells if cell["samples"]]
    first, second = trained
    beyond = [(cell["first"] > first) + (cell["second"] > second) for cell in found]
    twice = [cell for cell in found if cell["first"] <= 2 * first and cell["second"] <= 2 * second]
    reached = any(c["first"] >= 2 * first for c in found) and any(c["second"] >= 2 * second for c in found)
    parts = {
        "whole": found,
        "trained": [cell for cell, longer in zip(found, beyond, strict=True) if longer == 0],
        "beyond": [cell for cell, longer in zip(found, beyond, strict=True) if longer > 0],
        "both_beyond": [cell for cell, longer in zip(found, beyond, strict=True) if longer == 2],
        "twice": twice if reached else [],
    }
    return {name: _mean(part) for name, part in parts.items()}


def _mean(cells: Sequence[Mapping[str, Any]]) -> Mean:
    rates = [cell["correct"] / cell["samples"] for cell in cells]
    return Mean(statistics.fmean(rates) if rates else None, len(rates))
