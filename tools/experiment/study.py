"""Compare the arms of an experiment: each arm's figures over its seeds, and every arm with the reference.

Only the primary figure, named beforehand, makes an arm better or worse: by the sign-flip test of its differences by
seed, corrected for the number of arms (Holm). Everything else is description.
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
"""Beginnings of metrics in per cent, of which more is better."""
COSTS = ("parameters", "seconds")
LESS_IS_BETTER = ("loss", "perplexity", "bits_per_byte", "layer", "time", "gflop", "gmac", *COSTS)
"""Parts of the names of other metrics of which less is better."""
ITSELF = "itself with updates off"


@dataclass(frozen=True)
class Measure:
    """A figure that runs have, and how it is written."""

    quantity: Quantity

    @property
    def name(self) -> str:
        """The name in results, and in a file's ``primary``, where the task can be left out."""
        parts = (self.quantity.task, self.quantity.metric, self.quantity.length)
        return "_".join(str(part).replace(" ", "_") for part in parts if part not in ("", None))

    @property
    def title(self) -> str:
        """The name in tables and sentences."""
        return str(self.quantity).replace("_", " ").strip()

    @property
    def is_share(self) -> bool:
        """Whether it is in per cent: then more is better, and differences are points."""
        return self.quantity.metric.startswith(PERCENT)

    @property
    def is_difference(self) -> bool:
        """Whether it is the difference of an arm from another variant of the arm."""
        return self.quantity.metric.startswith(BY_UPDATES)

    def plain(self, value: float | None) -> str:
        metric = self.quantity.metric
        digits = 0 if metric in COSTS else 1 if self.is_share else 3 if "loss" in metric else 2
        return number(value, f",.{digits}f")

    def write(self, value: float | None) -> str:
        return self.plain(value) + "%" * (self.is_share and value is not None)

    def write_sample(self, sample: Sample | None) -> str:
        """Write a mean, with half the width of its interval if it has one."""
        if sample is None or sample.half_width is None or self.quantity.metric in COSTS:
            return self.write(None if sample is None else sample.mean)
        return f"{self.plain(sample.mean)} ± {self.plain(sample.half_width)}" + "%" * self.is_share

    def signed(self, value: float) -> str:
        return ("+" if value > 0 else "") + self.plain(value)


@dataclass(frozen=True)
class StudyRow:
    """The figures of one run."""

    arm: str
    seed: int | None
    """None: of the untouched model."""
    figures: Mapping[Quantity, float]


@dataclass(frozen=True)
class Claim:
    """Comparison of one arm with the reference."""

    arm: str
    differences: dict[int, float]
    """Arm minus reference in the primary figure, by seed."""
    found: Sample | None
    """Of the differences; None if the two share no seed."""
    p: float | None = None
    """Of the sign-flip test: 1 if a difference is not finite, None for fewer than two differences."""
    p_holm: float | None = None
    """The same, adjusted for all claims that have one."""


@dataclass(frozen=True)
class Study:
    """The complete runs of an experiment."""

    rows: Sequence[StudyRow]
    reference: str
    asked: str = ""
    """Name of the primary figure; default: the first."""

    @cached_property
    def measures(self) -> list[Measure]:
        """All figures, costs last."""
        found = readings.ordered(row.figures for row in self.rows)
        return [Measure(each) for each in sorted(found, key=lambda each: each.metric in ("train_loss", *COSTS))]

    @cached_property
    def primary(self) -> Measure:
        """The figure that decides."""
        if not self.asked:
            return self.measures[0]
        fits = [each for each in self.measures if f"_{each.name}".endswith(f"_{self.asked}")]
        if len(fits) != 1:
            named = ", ".join(each.name for each in self.measures)
            raise UserError(Problem("primary", self.asked, f"names {len(fits)} figures", f"one of: {named}"))
        if not fits[0].is_share and not any(word in fits[0].quantity.metric for word in LESS_IS_BETTER):
            wrong = "unknown whether more or less of it is better"
            raise UserError(Problem("primary", self.asked, wrong, "name an accuracy, a score, a loss or a perplexity"))
        return fits[0]

    @property
    def against(self) -> str:
        """The reference, or each arm itself if the primary figure is a difference."""
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
        return sorted({row.seed for row in self.rows if row.seed is not None})

    def values(self, arm: str, measure: Measure) -> dict[int, float]:
        """Return a figure of an arm by seed."""
        own = [row for row in self.arms.get(arm, []) if measure.quantity in row.figures]
        return {row.seed: row.figures[measure.quantity] for row in own if row.seed is not None}

    def sample(self, arm: str, measure: Measure) -> Sample | None:
        """Return a figure of an arm over its runs; None if it has none."""
        own = [row.figures[measure.quantity] for row in self.arms[arm] if measure.quantity in row.figures]
        return statistics.sample(own) if own else None

    @cached_property
    def claims(self) -> list[Claim]:
        """Every arm with a seed against the reference; if the primary figure is a difference, every arm that has it."""
        reference = self.values(self.reference, self.primary)
        others = [arm for arm, rows in self.arms.items() if arm != self.reference and rows[0].seed is not None]
        if self.primary.is_difference:
            reference = dict.fromkeys(self.seeds, 0.0)
            others = [arm for arm in self.arms if self.values(arm, self.primary)]
        paired = {arm: statistics.paired(self.values(arm, self.primary), reference) for arm in others}
        samples = {arm: statistics.sample(list(each.values())) if each else None for arm, each in paired.items()}
        # an arm that diverged is a claim as well, and one that nothing confirms
        ps = {
            arm: 1.0 if each.half_width is None else statistics.sign_flip(list(paired[arm].values()))
            for arm, each in samples.items()
            if each is not None and each.n > 1
        }
        holm = dict(zip(ps, statistics.holm([*ps.values()]), strict=True))
        return [Claim(arm, paired[arm], samples[arm], ps.get(arm), holm.get(arm)) for arm in others]

    def figures(self) -> dict[str, Any]:
        """Return everything for the stored result; a spread or an interval is None for a single run."""
        arms: dict[str, Any] = {}
        for arm in self.arms:
            samples = {measure: self.sample(arm, measure) for measure in self.measures}
            arms[arm] = {
                measure.name: asdict(sample) | {"values": self.values(arm, measure)}
                for measure, sample in samples.items()
                if sample is not None
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
            "arms": arms,
            "claims": [
                asdict(each) | {"interval": each.found.interval if each.found else None, "verdict": verdict(self, each)}
                for each in self.claims
            ],
        }


def verdict(study: Study, claim: Claim) -> str:
    """Return one sentence on one claim."""
    sample, measure, reference = claim.found, study.primary, study.against
    if sample is None:
        return f"{claim.arm}: shares no seed with {reference} in which both have this figure."
    if not math.isfinite(sample.mean):
        lost = ", ".join(str(seed) for seed, value in claim.differences.items() if not math.isfinite(value))
        return f"{claim.arm}: no verdict, a figure of seed {lost} is not finite."
    gain = sample.mean if measure.is_share else -sample.mean
    size = measure.plain(abs(sample.mean)) + " points" * measure.is_share
    apart = f"{'better' if gain > 0 else 'worse'} than {reference} by {size}" if gain else f"the same as {reference}"
    if sample.interval is None:
        return f"{claim.arm}: {apart} in a single run: no interval."
    assert claim.p_holm is not None, "there is an interval, so there is a test"
    low, high = sorted(end if sample.mean >= 0 else -end for end in sample.interval)
    estimate = f"{apart} (95 %: {measure.plain(low)} to {measure.plain(high)}, n = {sample.n})"
    if low <= 0:
        return f"{claim.arm}: no significant difference from {reference}; on average {estimate}."
    if claim.p_holm <= ALPHA:
        return f"{claim.arm}: {estimate}."
    least = min(1.0, len(study.claims) * 2.0 ** (1 - sample.n))  # as Holm's p is
    few = f"; {sample.n} seeds cannot give a lower one than {least:.2g} here" if least > ALPHA else ""
    return f"{claim.arm}: {estimate}, but the sign-flip test does not confirm it (Holm's p {claim.p_holm:.2g}{few})."


def text(study: Study) -> str:
    """Return the table of arms, the primary figure seed by seed, and every arm against the reference."""
    primary, against = study.primary, study.against
    lines = [
        [arm, str(len(rows)), *(each.write_sample(study.sample(arm, each)) for each in study.measures)]
        for arm, rows in study.arms.items()
    ]
    parts = [markdown_table(["arm", "runs", *(each.title for each in study.measures)], lines)]
    if len(study.seeds) > 1:
        parts.append(
            "± is half the width of Student's 95 % interval over seeds. What decides is "
            f"**{primary.title}** ({'higher' if primary.is_share else 'lower'} is better), every arm against "
            f"`{against}` on the same seeds. p is that of the exact two-sided sign-flip test; Holm's is adjusted for "
            "all claims of this page, and one of 0.05 or less makes an arm better or worse."
        )
        values = {arm: study.values(arm, primary) for arm in study.arms}
        lines = [[arm, *(primary.write(own.get(seed)) for seed in study.seeds)] for arm, own in values.items() if own]
        parts.append(markdown_table([f"{primary.title}, by seed", *map(str, study.seeds)], lines))
        lines = []
        for claim in study.claims:
            mean, interval = (claim.found.mean, claim.found.interval) if claim.found is not None else (None, None)
            shown = NOT_AVAILABLE if mean is None else primary.signed(mean)
            ends = NOT_AVAILABLE if interval is None else " to ".join(map(primary.signed, interval))
            tests = [number(claim.p, ".3g"), number(claim.p_holm, ".3g")]
            lines.append([claim.arm, shown, ends, str(len(claim.differences)), *tests])
        unit = ", points" if primary.is_share else ""
        header = [f"less {against}{unit}", "mean", "95 % interval", "seeds", "p", "p, Holm's"]
        parts += [markdown_table(header, lines)] if lines else []
    elif study.claims:
        parts.append("A single run for each: no interval.")
    if study.claims:
        parts.append("\n".join(f"- {verdict(study, claim)}" for claim in study.claims))
    return "\n\n".join(parts)
