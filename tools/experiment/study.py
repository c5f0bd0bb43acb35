"""Compare the arms of an experiment: each arm's figures over its seeds, and every arm with the reference.

Only the primary figure, named beforehand, makes an arm better or worse: by the sign-flip test of its differences by
seed, corrected for the number of arms (Holm). Everything else is description.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import Any

from tape_ds.errors import Problem, UserError
from tape_ds.markdown_table import markdown_table
from tape_ds.numbers import NOT_AVAILABLE, number
from tools.experiment import readings, statistics
from tools.experiment.published import Quantity
from tools.experiment.readings import BY_UPDATES
from tools.experiment.statistics import Sample

ALPHA = 1 - statistics.CONFIDENCE
# Beginnings of metrics in per cent, of which more is better; parts of the names of others, of which less is
PERCENT = ("accuracy", "exact_match", "f1", "rouge")
COSTS = ("parameters", "seconds")
LESS_IS_BETTER = ("loss", "perplexity", "bits_per_byte", "layer", "time", "gflop", "gmac", *COSTS)
ITSELF = "itself with updates off"


@dataclass(frozen=True)
class Measure:
    """A figure that runs have, and how it is written."""

    quantity: Quantity

    @property
    def name(self) -> str:
        """The name in results, and in a file's ``primary``, where the task can be left out."""
        parts = [self.quantity.task, self.quantity.metric]
        if self.quantity.length is not None:
            parts.append(str(self.quantity.length))
        return "_".join(filter(None, parts)).replace(" ", "_")

    @property
    def is_share(self) -> bool:
        """Whether it is in per cent: then more is better, and differences are points."""
        return self.quantity.metric.startswith(PERCENT)

    def plain(self, value: float | None) -> str:
        metric = self.quantity.metric
        digits = 2
        if metric in COSTS:
            digits = 0
        elif self.is_share:
            digits = 1
        elif "loss" in metric:
            digits = 3
        return number(value, f",.{digits}f")

    def write(self, value: float | None, half_width: float | None = None) -> str:
        written = self.plain(value)
        # a cost depends on the machine more than on the seed
        if half_width is not None and self.quantity.metric not in COSTS:
            written += f" ± {self.plain(half_width)}"
        if self.is_share and value is not None:
            written += "%"
        return written

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


class Study:
    """The complete runs of an experiment, compared.

    Args:
        rows: a row for each run.
        reference: the arm that the others are compared with.
        asked: name of the primary figure; default: the first.
    """

    def __init__(self, rows: Sequence[StudyRow], reference: str, asked: str = ""):
        self.rows = rows
        self.arms: dict[str, list[StudyRow]] = {}
        for row in rows:
            self.arms.setdefault(row.arm, []).append(row)
        # the untouched model has none
        self.seeds = sorted({row.seed for row in rows if row.seed is not None})
        quantities = readings.ordered(map(attrgetter("figures"), rows))
        # costs last
        quantities.sort(key=lambda quantity: quantity.metric in ("train_loss", *COSTS))
        self.measures = list(map(Measure, quantities))
        self.primary = self._named(asked) if asked else self.measures[0]

        # every arm with a seed against the reference; a figure that is a difference itself against 0
        self.against = reference
        base = self.values(reference, self.primary)
        is_difference = self.primary.quantity.metric.startswith(BY_UPDATES)
        if is_difference:
            self.against = ITSELF
            base = dict.fromkeys(self.seeds, 0.0)
        claims = []
        for arm, made in self.arms.items():
            values = self.values(arm, self.primary)
            is_compared = arm != reference and made[0].seed is not None
            if is_difference:
                is_compared = bool(values)
            if is_compared:
                claims.append(_claim(arm, values, base))
        adjusted = iter(statistics.holm([claim.p for claim in claims if claim.p is not None]))
        self.claims = []
        for claim in claims:
            if claim.p is not None:
                claim = replace(claim, p_holm=next(adjusted))
            self.claims.append(claim)

    def _named(self, asked: str) -> Measure:
        """Return the figure of which ``asked`` is the name, or its end."""
        fits = [measure for measure in self.measures if f"_{measure.name}".endswith(f"_{asked}")]
        if len(fits) != 1:
            names = ", ".join(map(attrgetter("name"), self.measures))
            raise UserError(
                Problem("primary", asked, f"names {len(fits)} figures", f"one of: {names}")
            )
        [measure] = fits
        if not measure.is_share and not any(
            word in measure.quantity.metric for word in LESS_IS_BETTER
        ):
            reason = "unknown whether more or less of it is better"
            remedy = "name an accuracy, a score, a loss or a perplexity"
            raise UserError(Problem("primary", asked, reason, remedy))
        return measure

    def values(self, arm: str, measure: Measure) -> dict[int, float]:
        """Return a figure of an arm by seed."""
        values = {}
        for row in self.arms.get(arm, []):
            if row.seed is not None and measure.quantity in row.figures:
                values[row.seed] = row.figures[measure.quantity]
        return values

    def sample(self, arm: str, measure: Measure) -> Sample | None:
        """Return a figure of an arm over its runs; None if it has none."""
        quantity = measure.quantity
        values = [row.figures[quantity] for row in self.arms[arm] if quantity in row.figures]
        if values:
            return statistics.sample(values)
        return None

    def figures(self) -> dict[str, Any]:
        """Return everything for the stored result; a spread or an interval is None for a single run."""
        arms: dict[str, Any] = {}
        for arm in self.arms:
            arms[arm] = {}
            for measure in self.measures:
                sample = self.sample(arm, measure)
                if sample is not None:
                    arms[arm][measure.name] = asdict(sample) | {"values": self.values(arm, measure)}
        runs = []
        for row in self.rows:
            figures = {Measure(quantity).name: value for quantity, value in row.figures.items()}
            runs.append({"arm": row.arm, "seed": row.seed, "figures": figures})
        claims = []
        for claim in self.claims:
            interval = claim.found.interval if claim.found else None
            claims.append(asdict(claim) | {"interval": interval, "verdict": verdict(self, claim)})
        named = {"reference": self.against, "primary": self.primary.name, "seeds": self.seeds}
        return named | {"runs": runs, "arms": arms, "claims": claims}


def _claim(arm: str, values: Mapping[int, float], base: Mapping[int, float]) -> Claim:
    """Return a claim before Holm's correction: an arm's figures by seed against those of the reference."""
    differences = {seed: values[seed] - base[seed] for seed in sorted(values.keys() & base.keys())}
    gaps = list(differences.values())
    if not gaps:
        return Claim(arm, differences, None)
    p = None
    if len(gaps) > 1:
        # an arm that diverged is a claim as well, and one that nothing confirms
        p = 1.0
        if all(map(math.isfinite, gaps)):
            p = statistics.sign_flip(gaps)
    return Claim(arm, differences, statistics.sample(gaps), p)


def verdict(study: Study, claim: Claim) -> str:
    """Return one sentence on one claim."""
    sample = claim.found
    measure = study.primary
    reference = study.against
    if sample is None:
        return f"{claim.arm}: shares no seed with {reference} in which both have this figure."
    if not math.isfinite(sample.mean):
        differences = claim.differences.items()
        lost = ", ".join(str(seed) for seed, value in differences if not math.isfinite(value))
        return f"{claim.arm}: no verdict, a figure of seed {lost} is not finite."
    gain = -sample.mean
    size = measure.plain(abs(sample.mean))
    if measure.is_share:
        gain = sample.mean
        size += " points"
    apart = f"the same as {reference}"
    if gain > 0:
        apart = f"better than {reference} by {size}"
    elif gain < 0:
        apart = f"worse than {reference} by {size}"
    if sample.interval is None:
        return f"{claim.arm}: {apart} in a single run: no interval."
    assert claim.p_holm is not None, "there is an interval, so there is a test"
    low, high = sample.interval
    # "worse by 3": the interval of the size, not of the signed difference
    if sample.mean < 0:
        low, high = sorted([-low, -high])
    estimate = f"{apart} (95 %: {measure.plain(low)} to {measure.plain(high)}, n = {sample.n})"
    if low <= 0:
        return f"{claim.arm}: no significant difference from {reference}; on average {estimate}."
    if claim.p_holm <= ALPHA:
        return f"{claim.arm}: {estimate}."
    # as Holm's p is
    least = min(1.0, len(study.claims) * 2.0 ** (1 - sample.n))
    few = ""
    if least > ALPHA:
        few = f"; {sample.n} seeds cannot give a lower one than {least:.2g} here"
    return f"{claim.arm}: {estimate}, but the sign-flip test does not confirm it (Holm's p {claim.p_holm:.2g}{few})."


def text(study: Study) -> str:
    """Return the table of arms, the primary figure seed by seed, and every arm against the reference."""
    parts = [_arms_table(study)]
    if len(study.seeds) > 1:
        better = "higher" if study.primary.is_share else "lower"
        parts.append(
            "± is half the width of Student's 95 % interval over seeds. What decides is "
            f"**{study.primary.quantity}** ({better} is better), every arm against "
            f"`{study.against}` on the same seeds. p is that of the exact two-sided sign-flip test; Holm's is adjusted "
            "for all claims of this page, and one of 0.05 or less makes an arm better or worse."
        )
        parts += _paired_tables(study)
    elif study.claims:
        parts.append("A single run for each: no interval.")
    if study.claims:
        parts.append("\n".join(f"- {verdict(study, claim)}" for claim in study.claims))
    return "\n\n".join(parts)


def _arms_table(study: Study) -> str:
    header = ["arm", "runs"]
    header += [str(measure.quantity) for measure in study.measures]
    lines = []
    for arm, rows in study.arms.items():
        cells = [arm, str(len(rows))]
        for measure in study.measures:
            sample = study.sample(arm, measure)
            if sample is None:
                cells.append(measure.write(None))
            else:
                cells.append(measure.write(sample.mean, sample.half_width))
        lines.append(cells)
    return markdown_table(header, lines)


def _paired_tables(study: Study) -> list[str]:
    """Return the primary figure seed by seed, and the differences from the reference if there are any."""
    primary = study.primary
    by_seed = []
    for arm in study.arms:
        values = study.values(arm, primary)
        # the untouched model has no seed
        if values:
            by_seed.append([arm, *(primary.write(values.get(seed)) for seed in study.seeds)])
    tables = [markdown_table([f"{primary.quantity}, by seed", *map(str, study.seeds)], by_seed)]
    unit = ", points" if primary.is_share else ""
    header = [f"less {study.against}{unit}", "mean", "95 % interval", "seeds", "p", "p, Holm's"]
    lines = []
    for claim in study.claims:
        mean = NOT_AVAILABLE
        ends = NOT_AVAILABLE
        if claim.found is not None:
            mean = primary.signed(claim.found.mean)
            if claim.found.interval is not None:
                ends = " to ".join(map(primary.signed, claim.found.interval))
        tests = [number(claim.p, ".3g"), number(claim.p_holm, ".3g")]
        lines.append([claim.arm, mean, ends, str(len(claim.differences)), *tests])
    if lines:
        tables.append(markdown_table(header, lines))
    return tables
