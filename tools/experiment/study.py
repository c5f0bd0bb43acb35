"""What runs say together: each arm's figures over its seeds, and every arm against the reference.

An arm is better or worse only by its primary figure, which is named beforehand: by the sign-flip test of its
differences seed by seed, corrected for the number of arms (Holm). Everything else is description.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from tape_ds.errors import Problem, UserError
from tape_ds.markdown_table import markdown_table
from tape_ds.numbers import NOT_AVAILABLE, number
from tools.experiment import readings, statistics
from tools.experiment.published import Quantity
from tools.experiment.readings import BY_UPDATES
from tools.experiment.statistics import Sample

ALPHA = 1 - statistics.CONFIDENCE
PERCENT = ("accuracy", "exact_match", "f1", "rouge")
"""What metrics begin with that are per cents, of which more is better."""
COSTS = ("parameters", "seconds")
LESS_IS_BETTER = ("loss", "perplexity", "bits_per_byte", "layer", "time", "gflop", "gmac", *COSTS)
"""What the names of figures hold of which less is better; of per cents more is."""
ITSELF = "itself with updates off"


@dataclass(frozen=True)
class Measure:
    """A figure that runs have, and how it is written."""

    quantity: Quantity

    @property
    def name(self) -> str:
        """As a file's ``primary`` calls it, with or without the task in front."""
        parts = (self.quantity.task, self.quantity.metric, self.quantity.length)
        return "_".join(str(part).replace(" ", "_") for part in parts if part not in ("", None))

    @property
    def title(self) -> str:
        """As tables and sentences call it."""
        return str(self.quantity).replace("_", " ").strip()

    @property
    def is_share(self) -> bool:
        """Whether it is per cents: then more is better, and differences are points."""
        return self.quantity.metric.startswith(PERCENT)

    @property
    def is_difference(self) -> bool:
        """Whether it says by itself how far each arm is from its own reference."""
        return self.quantity.metric.startswith(BY_UPDATES)

    def plain(self, value: float | None) -> str:
        """Return the number alone."""
        metric = self.quantity.metric
        digits = 0 if metric in COSTS else 1 if self.is_share else 3 if "loss" in metric else 2
        return number(value, f",.{digits}f")

    def write(self, value: float | None) -> str:
        """Return one value, as tables write it."""
        return self.plain(value) + "%" * (self.is_share and value is not None)

    def write_sample(self, found: Sample | None) -> str:
        """Return a mean, with half the width of its interval where it has one."""
        if found is None or found.half_width is None or self.quantity.metric in COSTS:
            return self.write(None if found is None else found.mean)
        return f"{self.plain(found.mean)} ± {self.plain(found.half_width)}" + "%" * self.is_share

    def signed(self, value: float) -> str:
        """Return a difference of two values."""
        return ("+" if value > 0 else "") + self.plain(value)


@dataclass(frozen=True)
class StudyRow:
    """What one run came to."""

    arm: str
    seed: int | None
    """None: of a model that nothing was done to."""
    figures: Mapping[Quantity, float]


@dataclass(frozen=True)
class Claim:
    """One arm against the reference."""

    arm: str
    differences: dict[int, float]
    """Of the primary figure, arm less reference, by seed."""
    found: Sample | None
    """Of the differences; None where the two share no seed."""
    p: float | None = None
    """Of the sign-flip test: 1 where a difference is not finite, None for less than two differences."""
    p_holm: float | None = None
    """The same, adjusted for all claims that have one."""


@dataclass(frozen=True)
class Study:
    """The complete runs of an experiment."""

    rows: Sequence[StudyRow]
    reference: str
    asked: str = ""
    """Name of the primary figure; none: the first."""

    @cached_property
    def measures(self) -> list[Measure]:
        """All figures; cost comes last."""
        found = readings.ordered(row.figures for row in self.rows)
        return [Measure(each) for each in sorted(found, key=lambda each: each.metric in ("train_loss", *COSTS))]

    @cached_property
    def primary(self) -> Measure:
        """The figure that decides.

        Raises:
            UserError: there is no such figure.
        """
        if not self.asked:
            return self.measures[0]
        fits = [each for each in self.measures if f"_{each.name}".endswith(f"_{self.asked}")]
        if len(fits) != 1:
            named = ", ".join(each.name for each in self.measures)
            raise UserError(Problem("primary", self.asked, f"names {len(fits)} figures", f"one of: {named}"))
        if not fits[0].is_share and not any(word in fits[0].quantity.metric for word in LESS_IS_BETTER):
            wrong = "whether more or less of it is better is not known here"
            raise UserError(Problem("primary", self.asked, wrong, "name an accuracy, a score, a loss or a perplexity"))
        return fits[0]

    @property
    def against(self) -> str:
        """What every arm is compared with: the reference, or itself where the primary figure is such a difference."""
        return ITSELF if self.primary.is_difference else self.reference

    @cached_property
    def arms(self) -> dict[str, list[StudyRow]]:
        """The runs of each arm."""
        found: dict[str, list[StudyRow]] = {}
        for row in self.rows:
            found.setdefault(row.arm, []).append(row)
        return found

    @property
    def seeds(self) -> list[int]:
        """All that an arm was trained with."""
        return sorted({row.seed for row in self.rows if row.seed is not None})

    def values(self, arm: str, measure: Measure) -> dict[int, float]:
        """Return a figure of an arm by seed, where it has one."""
        own = [row for row in self.arms.get(arm, []) if measure.quantity in row.figures]
        return {row.seed: row.figures[measure.quantity] for row in own if row.seed is not None}

    def sample(self, arm: str, measure: Measure) -> Sample | None:
        """Return a figure of an arm over its runs; None where it has none."""
        own = [row.figures[measure.quantity] for row in self.arms[arm] if measure.quantity in row.figures]
        return statistics.sample(own) if own else None

    @cached_property
    def claims(self) -> list[Claim]:
        """Every arm with a seed against the reference; where the primary figure is a difference, those that have it."""
        theirs = self.values(self.reference, self.primary)
        others = [arm for arm, rows in self.arms.items() if arm != self.reference and rows[0].seed is not None]
        if self.primary.is_difference:
            theirs = dict.fromkeys(self.seeds, 0.0)
            others = [arm for arm in self.arms if self.values(arm, self.primary)]
        paired = {arm: statistics.paired(self.values(arm, self.primary), theirs) for arm in others}
        found = {arm: statistics.sample(list(each.values())) if each else None for arm, each in paired.items()}
        # an arm that diverged is a claim of the page as well, and one that nothing confirms
        ps = {
            arm: 1.0 if each.half_width is None else statistics.sign_flip(list(paired[arm].values()))
            for arm, each in found.items()
            if each is not None and each.n > 1
        }
        adjusted = dict(zip(ps, zip(ps.values(), statistics.holm([*ps.values()]), strict=True), strict=True))
        return [Claim(arm, paired[arm], found[arm], *adjusted.get(arm, (None, None))) for arm in others]

    def figures(self) -> dict[str, Any]:
        """Return all of it, for the stored result; a spread or an interval is None for a single run."""
        samples = {
            arm: {m.name: (m, found) for m in self.measures if (found := self.sample(arm, m))} for arm in self.arms
        }
        return {
            "reference": self.against,
            "primary": self.primary.name,
            "seeds": self.seeds,
            "runs": [
                {"arm": each.arm, "seed": each.seed}
                | {"figures": {Measure(quantity).name: value for quantity, value in each.figures.items()}}
                for each in self.rows
            ],
            "arms": {
                arm: {name: asdict(found) | {"values": self.values(arm, m)} for name, (m, found) in own.items()}
                for arm, own in samples.items()
            },
            "claims": [
                asdict(each) | {"interval": each.found.interval if each.found else None, "verdict": verdict(self, each)}
                for each in self.claims
            ],
        }


def verdict(study: Study, claim: Claim) -> str:
    """Return one plain sentence on one claim."""
    found, measure, reference = claim.found, study.primary, study.against
    if found is None:
        return f"{claim.arm}: shares no seed with {reference} in which both have this figure."
    if not math.isfinite(found.mean):
        lost = ", ".join(str(seed) for seed, value in claim.differences.items() if not math.isfinite(value))
        return f"{claim.arm}: no verdict, a figure of seed {lost} is not finite."
    gain = found.mean if measure.is_share else -found.mean
    size = measure.plain(abs(found.mean)) + " points" * measure.is_share
    apart = f"{'better' if gain > 0 else 'worse'} than {reference} by {size}" if gain else f"the same as {reference}"
    if found.interval is None:
        return f"{claim.arm}: {apart} in a single run: no interval."
    assert claim.p_holm is not None, "there is an interval, so there is a test"
    low, high = sorted(end if found.mean >= 0 else -end for end in found.interval)
    estimate = f"{apart} (95 %: {measure.plain(low)} to {measure.plain(high)}, n = {found.n})"
    if low <= 0:
        return f"{claim.arm}: not told apart from {reference}; on average {estimate}."
    if claim.p_holm <= ALPHA:
        return f"{claim.arm}: {estimate}."
    least = min(1.0, len(study.claims) * 2.0 ** (1 - found.n))  # as Holm's p is
    few = f"; {found.n} seeds cannot give a lower one than {least:.2g} here" if least > ALPHA else ""
    return f"{claim.arm}: {estimate}, but the sign-flip test does not confirm it (Holm's p {claim.p_holm:.2g}{few})."


def text(study: Study) -> str:
    """Return the table of arms, what decides seed by seed, and every arm against the reference."""
    parts = [_arms(study)]
    if len(study.seeds) > 1:
        parts += [_decides(study), _by_seed(study), *([_differences(study)] if study.claims else [])]
    elif study.claims:
        parts.append("A single run for each: no interval.")
    if study.claims:
        parts.append("\n".join(f"- {verdict(study, claim)}" for claim in study.claims))
    return "\n\n".join(parts)


def _arms(study: Study) -> str:
    """Return a line for each arm, means over its runs."""
    lines = [
        [arm, str(len(rows)), *(each.write_sample(study.sample(arm, each)) for each in study.measures)]
        for arm, rows in study.arms.items()
    ]
    return markdown_table(["arm", "runs", *(each.title for each in study.measures)], lines)


def _decides(study: Study) -> str:
    better = "higher" if study.primary.is_share else "lower"
    return (
        "± is half the width of Student's 95 % interval over seeds. What decides is "
        f"**{study.primary.title}** ({better} is better), every arm against `{study.against}` on the same seeds. "
        "p is that of the exact two-sided sign-flip test; Holm's is adjusted for all claims of this page, and one of "
        "0.05 or less makes an arm better or worse."
    )


def _by_seed(study: Study) -> str:
    values = {arm: study.values(arm, study.primary) for arm in study.arms}
    lines = [
        [arm, *(study.primary.write(found.get(seed)) for seed in study.seeds)] for arm, found in values.items() if found
    ]
    return markdown_table([f"{study.primary.title}, by seed", *map(str, study.seeds)], lines)


def _differences(study: Study) -> str:
    signed, lines = study.primary.signed, []
    for claim in study.claims:
        mean, interval = (claim.found.mean, claim.found.interval) if claim.found is not None else (None, None)
        shown = NOT_AVAILABLE if mean is None else signed(mean)
        ends = NOT_AVAILABLE if interval is None else " to ".join(map(signed, interval))
        count = str(len(claim.differences))
        lines.append([claim.arm, shown, ends, count, number(claim.p, ".3g"), number(claim.p_holm, ".3g")])
    unit = ", points" if study.primary.is_share else ""
    return markdown_table([f"less {study.against}{unit}", "mean", "95 % interval", "seeds", "p", "p, Holm's"], lines)
