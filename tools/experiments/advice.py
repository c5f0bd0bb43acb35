"""Decide which method to extend a model by, from the runs of parts 8 to 13 of docs/results/protocol.md.

    python -m tools.experiment advice                              the runs
    python -m tools.experiments.advice methods runs/advice --output docs/results/advice
    python -m tools.experiments.advice pose runs/advice --output docs/results/advice
    python -m tools.experiments.advice family runs/advice_family --output docs/results/advice

Writes PART.md, .json and .png: every arm's figures over seeds, the claims of the protocol, and the picture.
"""

import math
import statistics as plain
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import filterfalse
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tape_ds import results, storage
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, UserError, check_folder, command, raise_if_any
from tape_ds.markdown_table import markdown_table
from tape_ds.numbers import number
from tape_ds.scoring.plots import MARKERS, STYLES, colours
from tape_ds.scoring.span_losses import SpanLosses
from tools.experiment import statistics
from tools.experiment.statistics import Sample
from tools.experiments.advice_runs import (
    FEWEST,
    KEYS,
    LOSS,
    PARTS,
    Arms,
    MethodRun,
    ProtocolPart,
    arms_of,
    counted,
    read_runs,
    value_of,
)

# nats: an arm that is further from the reference everywhere is named, not drawn
OUTSIDE = 0.25


@dataclass(frozen=True)
class MethodClaim:
    """One arm less another in a figure, paired by seed."""

    figure: str
    arm: str
    against: str
    differences: dict[int, float]
    found: Sample
    p: float
    """Of the paired t test."""
    sign_flip: float
    same_sign: bool
    """Whether each text, or each length, has the difference's sign on average."""
    p_holm: float = math.nan

    @property
    def written(self) -> tuple[str, str]:
        """The mean and its interval, as pages have them."""
        digits = 1 if self.figure == KEYS else 3
        assert self.found.interval is not None, "a claim has seeds enough"
        low, high = self.found.interval
        return f"{self.found.mean:+.{digits}f}", f"{low:+.{digits}f} to {high:+.{digits}f}"


def texts_of(arms: Arms) -> list[str]:
    [run, *_] = next(iter(arms.values())).values()
    return list(run.losses)


def claims_of(part: ProtocolPart, arms: Arms) -> list[MethodClaim]:
    """Return the claims of every stage with enough seeds, with Holm's correction over all of them."""
    made = []
    for figure in (LOSS, KEYS):
        places = texts_of(arms) if figure == LOSS else part.lengths
        if not places:
            continue
        able = counted(part, arms, figure)
        for pair in part.claims:
            pairs = _paired(able.get(pair[0], {}), able.get(pair[1], {}))
            if len(pairs) >= FEWEST:
                made.append(_claim(part, figure, pair, pairs, places))
    adjusted = statistics.holm(list(map(attrgetter("p"), made)))
    # over both figures: they are claims about the same arms
    return [replace(claim, p_holm=p) for claim, p in zip(made, adjusted, strict=True)]


def _paired(
    arm: Mapping[int, MethodRun], against: Mapping[int, MethodRun]
) -> dict[int, tuple[MethodRun, MethodRun]]:
    untrained = next(filterfalse(attrgetter("trained"), against.values()), None)
    pairs = {}
    for seed, run in arm.items():
        # an arm that trains nothing is one model, paired with every seed
        other = untrained or against.get(seed)
        if other is not None:
            pairs[seed] = (run, other)
    return pairs


def _claim(
    part: ProtocolPart,
    figure: str,
    pair: tuple[str, str],
    pairs: Mapping[int, tuple[MethodRun, MethodRun]],
    places: Iterable[str | int],
) -> MethodClaim:
    """Return a claim before Holm's correction; ``places``: the texts or lengths that the figure is a mean of."""

    def gaps(place: str | int | None) -> list[float]:
        values = []
        for run, other in pairs.values():
            values.append(value_of(part, figure, run, place) - value_of(part, figure, other, place))
        return values

    differences = gaps(None)
    signs = {math.copysign(1, plain.fmean(gaps(place))) for place in places}
    return MethodClaim(
        figure,
        *pair,
        differences=dict(zip(pairs, differences, strict=True)),
        found=statistics.sample(differences),
        p=statistics.t_test(differences),
        sign_flip=statistics.sign_flip(differences),
        same_sign=len(signs) == 1,
    )


def verdict(claim: MethodClaim) -> str:
    """Return one sentence on a claim."""
    mean, ends = claim.written
    gain = -claim.found.mean
    where = "on each text"
    if claim.figure == KEYS:
        gain = claim.found.mean
        mean += " points"
        where = "on each length"
    size = f"{mean} (95 %: {ends}, {claim.found.n} seeds, Holm's p {claim.p_holm:.2g})"
    if claim.p_holm > 1 - statistics.CONFIDENCE:
        return f"{claim.arm}: not told apart from {claim.against}, {size}."
    if not claim.same_sign:
        where = f"but not {where}"
    word = "better" if gain > 0 else "worse"
    return f"{claim.arm}: {word} than {claim.against}, {size}, {where}."


def page(part: ProtocolPart, name: str, arms: Arms, claims: Sequence[MethodClaim]) -> str:
    """Return the tables and sentences of the result."""
    picture = "Loss by position"
    if part.lengths:
        picture = "Loss and right answers by length"
    parts = [
        f"Mean over seeds ± half of Student's 95 % interval, from {FEWEST} runs on; an arm that trains nothing is one "
        "run. Loss past the native length, within it, and past it in each text:",
        losses_table(part, arms),
        f"![{picture}]({name}.png)",
    ]
    if part.lengths:
        parts += answers_table(part, arms)
    costs = []
    for arm, of_seed in arms.items():
        runs = list(of_seed.values())
        if any(map(attrgetter("trained"), runs)):
            minutes = cell(runs, lambda run: run.seconds / 60, ".1f")
            costs.append([arm, minutes, cell(runs, lambda run: run.memory / 2**30, ".1f")])
    if costs:
        parts.append(markdown_table(["arm", "minutes of training", "peak memory, GiB"], costs))
    if claims:
        parts += [claims_table(claims), "\n".join(f"- {verdict(claim)}" for claim in claims)]
    else:
        parts.append(f"No stage has {FEWEST} seeds yet: nothing is claimed.")
    return "\n\n".join(parts) + "\n"


def cell(runs: Sequence[MethodRun], figure: Callable[[MethodRun], float], spec: str) -> str:
    """Return the mean of a figure over runs, and half the width of its interval."""
    if not runs:
        return "-"
    sample = statistics.sample(list(map(figure, runs)))
    written = number(sample.mean, spec)
    # of two runs it is six times their distance
    if sample.n >= FEWEST and sample.half_width is not None:
        written += f" ± {number(sample.half_width, spec)}"
    return written


def losses_table(part: ProtocolPart, arms: Arms) -> str:
    header = ["arm", "runs", "past", "within"]
    # texts are named by files, whose folders would widen the table
    header += [text.rsplit("/")[-1] for text in texts_of(arms)]
    past = partial(value_of, part, LOSS)
    lines = []
    for arm, of_seed in arms.items():
        runs = list(of_seed.values())
        cells = [cell(runs, past, ".3f"), cell(runs, lambda run: run.loss(0, part.native), ".3f")]
        cells += [cell(runs, partial(past, place=text), ".3f") for text in texts_of(arms)]
        lines.append([arm, str(len(runs)), *cells])
    return markdown_table(header, lines)


def answers_table(part: ProtocolPart, arms: Arms) -> list[str]:
    """Return a sentence and the table of right answers in %, with plain passkeys if any run was asked for them."""
    lengths = sorted({length for run in each_run(arms) for length in run.keys})
    lines = []
    passkeys: dict[str, list[str]] = {}
    for arm, of_seed in arms.items():
        asked = [run for run in of_seed.values() if run.was_asked(part.lengths)]
        if not asked:
            continue
        line = [arm, str(len(asked)), cell(asked, partial(value_of, part, KEYS), ".1f")]
        passkeys[arm] = []
        for length in lengths:
            # a run may have been asked at more lengths than the part's
            having = [run for run in asked if length in run.keys]
            line.append(cell(having, methodcaller("share_at", length), ".1f"))
            passkeys[arm].append(pooled(of_seed.values(), length))
        lines.append(line)
    header = ["arm", "runs", KEYS]
    header += map("{:,}, %".format, lengths)
    sentence = f"{part.questions}:"
    if set().union(*passkeys.values()) - {"-"}:
        sentence = f"{part.questions}, in % of them, and plain passkeys, right of all:"
        header += map("passkey {:,}".format, lengths)
        for line in lines:
            line += passkeys[line[0]]
    return [sentence, markdown_table(header, lines)]


def pooled(runs: Iterable[MethodRun], length: int) -> str:
    """Return right passkeys over all that were asked at a length, over all runs."""
    counts = [run.passkeys[length] for run in runs if length in run.passkeys]
    if not counts:
        return "-"
    right, asked = map(sum, zip(*counts, strict=True))
    return f"{right}/{asked}"


def each_run(arms: Arms) -> Iterator[MethodRun]:
    for of_seed in arms.values():
        yield from of_seed.values()


def claims_table(claims: Iterable[MethodClaim]) -> str:
    header = ["figure", "claim", "mean", "95 % interval", "seeds"]
    header += ["p, t test", "p, Holm's", "p, sign flip"]
    rows = []
    for claim in claims:
        pair = f"{claim.arm} less {claim.against}"
        tests = [f"{claim.p:.2g}", f"{claim.p_holm:.2g}", f"{claim.sign_flip:.2g}"]
        rows.append([claim.figure, pair, *claim.written, str(claim.found.n), *tests])
    return markdown_table(header, rows)


def draw(part: ProtocolPart, arms: Arms, path: Path) -> None:
    """Draw the loss less the reference's in each span, and the share of right answers at each length, with 95 %
    bands."""
    panels = 2 if part.lengths else 1
    # a part without questions has no second panel
    figure = Figure(figsize=(2 + 5 * panels, 4.8), layout="constrained")
    left, *right = figure.subplots(1, panels, squeeze=False)[0]
    base = _merged(arms.get(part.reference, next(iter(arms.values()))))
    # the middle of each span
    places = np.add(base[0].starts, base[0].span / 2).tolist()
    zero = list(map(plain.fmean, _nll(base).T.tolist()))
    palette = colours(len(arms))
    for index, (arm, of_seed) in enumerate(arms.items()):
        line = {
            "color": palette[index % len(palette)],
            "marker": MARKERS[index % len(MARKERS)],
            "ms": 4,
            # a second round of the colours is drawn in another style
            "ls": STYLES[index // len(palette) % len(STYLES)],
        }
        differences = (_nll(_merged(of_seed)) - zero).T.tolist()
        gaps = list(map(plain.fmean, differences))
        if min(map(abs, gaps)) > OUTSIDE:
            label = f"{arm} ({min(gaps):+.1f} to {max(gaps):+.1f}, not drawn)"
            left.plot([], [], label=label, **line)
        else:
            _draw_curve(left, places, differences, arm, line)
        for axes in right:
            _draw_curve(axes, *_answers(of_seed.values()), arm, line)
    for axes in (left, *right):
        axes.axvline(part.native, color="#888888", ls="--", lw=1)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    left.set(
        xlabel="position",
        ylabel=f"loss minus {part.reference}'s (nats)",
        title="Loss: lower is better",
    )
    for axes in right:
        axes.set(xlabel="tokens of the prompt", ylabel="right answers, %", title="Right answers")
        axes.set_ylim(bottom=-2)
    figure.legend(
        *left.get_legend_handles_labels(),
        loc="outside lower center",
        frameon=False,
        ncols=5,
        fontsize=8,
    )
    storage.write_file(path, lambda temporary: figure.savefig(temporary, dpi=130, format="png"))


@command
def main(argv: list[str] | None = None) -> int:
    typed = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="python -m tools.experiments.advice", description=__doc__)
    parser.add_argument("part", choices=PARTS, help="of the protocol, by its experiment")
    parser.add_argument("runs", help="the folder of the experiment's runs")
    parser.add_argument("--output", required=True, help="folder of the page")
    options = parser.parse_args(typed)
    raise_if_any(check_folder("--output", options.output))
    part = PARTS[options.part]
    folder = Path(options.output)
    arms = arms_of(part, read_runs(Path(options.runs)))
    if not arms:
        remedy = "give the folder of its experiment"
        raise UserError(Problem("runs", options.runs, "no finished run of this part", remedy))
    claims = claims_of(part, arms)
    draw(part, arms, folder / f"{options.part}.png")
    stored = []
    for claim in claims:
        interval = claim.found.interval
        stored.append(asdict(claim) | {"interval": interval, "verdict": verdict(claim)})
    runs = [asdict(run) for run in each_run(arms)]
    result = results.collect(command=["python", "-m", "tools.experiments.advice", *typed])
    results.save(result.finish({"runs": runs, "claims": stored}), folder / f"{options.part}.json")
    text = page(part, options.part, arms, claims)
    storage.write_text(folder / f"{options.part}.md", text)
    print(text)
    return 0


def _merged(of_seed: Mapping[int, MethodRun]) -> list[SpanLosses]:
    return [SpanLosses.merge(run.losses.values()) for run in of_seed.values()]


def _nll(of_runs: Iterable[SpanLosses]) -> np.ndarray:
    return np.array(list(map(attrgetter("nll"), of_runs)))


def _draw_curve(
    axes: Axes,
    at: Sequence[float],
    values: Sequence[Sequence[float]],
    label: str,
    line: Mapping[str, Any],
) -> None:
    """Draw the mean at each place, and its 95 % band from :data:`FEWEST` runs on."""
    samples = list(map(statistics.sample, values))
    means = np.array(list(map(attrgetter("mean"), samples)))
    axes.plot(at, means, label=label, **line)
    # of two runs an interval is wider than the picture
    if samples and samples[0].n >= FEWEST:
        half = np.array([sample.half_width or 0.0 for sample in samples])
        axes.fill_between(at, means - half, means + half, color=line["color"], alpha=0.15, lw=0)


def _answers(runs: Iterable[MethodRun]) -> tuple[list[float], list[list[float]]]:
    """Return the lengths that every asked run answered, and the share of right answers of each run there."""
    asked = [run for run in runs if run.keys]
    lengths: list[float] = []
    shares: list[list[float]] = []
    for length in sorted(asked[0].keys) if asked else ():
        if all(length in run.keys for run in asked):
            lengths.append(length)
            shares.append([run.share_at(length) for run in asked])
    return lengths, shares


if __name__ == "__main__":
    sys.exit(main())
