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
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

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

Pair = tuple[str, str]


@dataclass(frozen=True)
class ProtocolPart:
    """One part of the protocol: its base, arms, questions and claims."""

    native: int
    """Length in tokens that the base was made for."""
    target: int
    """Length in tokens that is scored."""
    lengths: tuple[int, ...]
    """Of the questions that decide; none are asked where it is empty."""
    stages: tuple[tuple[str, ...], ...]
    """Arms of which a seed counts when all of them have it."""
    claims: tuple[Pair, ...]
    """An arm against another."""
    reference: str = "yarn"
    questions: str = "One key among ten, 20 questions a length"
    """What was asked at each length."""


FIRST = (("norms", "yarn"), ("lora", "yarn"), ("full", "yarn"), ("lora", "norms"), ("full", "lora"))
LATER = (("theta", "lora"), ("tape+lora", "lora"), ("longlora", "lora"), ("tape", "norms"))
TRAINED = ("norms", "lora", "full")
RETRIEVAL = ("text", "few_1k", "many_1k", "few_4k", "many_4k", "few_16k", "many_16k")
PARTS = {
    "methods": ProtocolPart(
        native=8192,
        target=16384,
        lengths=(12288, 16384),
        stages=(TRAINED, ("theta", "tape", "tape+lora", "longlora")),
        claims=FIRST + LATER,
    ),
    "pose": ProtocolPart(
        native=8192,
        target=16384,
        lengths=(12288, 16384),
        stages=(("lora", "whole", "whole_equal_time"),),
        claims=(("whole", "lora"), ("whole_equal_time", "lora")),
        reference="lora",
    ),
    "family": ProtocolPart(1024, 2048, (), (TRAINED,), FIRST),
    "small": ProtocolPart(
        1024, 8192, (), ((*TRAINED, "theta", "tape", "tape+lora", "longlora"),), FIRST + LATER
    ),
    "pose_small": ProtocolPart(
        native=1024,
        target=8192,
        lengths=(),
        stages=(("lora", "lora_whole", "full", "full_whole"),),
        claims=(("lora_whole", "lora"), ("full_whole", "full")),
    ),
    "retrieval": ProtocolPart(
        native=8192,
        target=16384,
        lengths=(12288, 16384),
        stages=(RETRIEVAL,),
        claims=tuple((arm, "yarn") for arm in RETRIEVAL),
        questions="RULER's single 2, multikey 1 and 2 and variable tracking, 20 questions of each at a length",
    ),
}
FEWEST = 3  # seeds of a stage that claims something, and of a band
# nats: an arm that is further from the reference everywhere is named, not drawn
OUTSIDE = 0.25
LOSS = "loss past the native length"
KEYS = "right answers past it, %"


@dataclass(frozen=True)
class MethodRun:
    """Scores and cost of one run."""

    arm: str
    seed: int
    losses: dict[str, SpanLosses]
    """By text, up to the target length."""
    keys: dict[int, tuple[float, int]]
    """``multikey``, or RULER's tasks: length -> right answers, questions; empty where neither was asked."""
    passkeys: dict[int, tuple[int, int]]
    trained: bool
    seconds: float
    memory: int
    """Peak of the run, in bytes."""

    def loss(self, first: int, last: int | None = None, text: str | None = None) -> float:
        """Return the mean loss between two positions, of one text or of all."""
        chosen = self.losses.values() if text is None else [self.losses[text]]
        return SpanLosses.merge(chosen).mean_between(first, last)


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
        return f"{self.found.mean:+.{digits}f}", " to ".join(
            f"{end:+.{digits}f}" for end in self.found.interval
        )


def share(counts: Iterable[tuple[float, int]]) -> float:
    """Return 100 times right answers over questions."""
    right, asked = map(sum, zip(*counts, strict=True))
    return 100 * right / asked


def read(folder: Path) -> list[MethodRun]:
    """Return the finished runs of a folder of an experiment, whose names are ARM_seed_N: untrained arms first."""
    runs = []
    for path in sorted(folder.glob("*_seed_*/results/run.json")):
        result = results.load(path)
        if result.finished is None:
            continue
        figures = result.figures
        scores = figures["loss_by_position"]
        # a run scores its trained model last
        made = next(reversed(scores))
        losses = {text: SpanLosses.from_dict(values) for text, values in scores[made].items()}
        asked = {}
        for protocol in ("multikey", "passkey"):
            file = path.parents[1] / "evaluation" / protocol / "passkey.json"
            rows = results.load(file).figures["passkeys"] if file.exists() else []
            asked[protocol] = {row["length"]: (row["correct"], row["trials"]) for row in rows}
        keys = asked["multikey"] or ruler_scores(path.parents[1] / "evaluation")
        arm, _, seed = path.parents[1].name.rpartition("_seed_")
        trained = bool(figures["steps"])
        seconds = figures["tokens"] / figures["tokens_per_second"] if trained else 0.0
        memory = figures.get("peak_memory_bytes") or 0
        runs.append(
            MethodRun(arm, int(seed), losses, keys, asked["passkey"], trained, seconds, memory)
        )
    return sorted(runs, key=lambda run: (run.trained, run.arm != "yarn"))


def ruler_scores(folder: Path) -> dict[int, tuple[float, int]]:
    """Return the sum of the scores and the questions of all of RULER's tasks at each length, from every result of it in
    an evaluation's folder."""
    found: dict[int, tuple[float, int]] = {}
    for file in sorted(folder.glob("*/ruler.json")):
        for cell in results.load(file).figures["cells"]:
            right, questions = found.get(cell["length"], (0.0, 0))
            found[cell["length"]] = (
                right + cell["score"] * cell["samples"],
                questions + cell["samples"],
            )
    return found


def arms_of(part: ProtocolPart, runs: Sequence[MethodRun]) -> dict[str, dict[int, MethodRun]]:
    """Return the runs of a part by arm and seed, untrained ones where one of them is the reference."""
    staged = {arm for stage in part.stages for arm in stage}
    arms: dict[str, dict[int, MethodRun]] = {}
    for run in runs:
        if run.arm in staged or (not run.trained and part.reference not in staged):
            arms.setdefault(run.arm, {})[run.seed] = run
    return arms


def counted(
    part: ProtocolPart, arms: dict[str, dict[int, MethodRun]], figure: str
) -> dict[str, dict[int, MethodRun]]:
    """Return the runs that claims of a figure may use: a seed counts when every arm of its stage has the figure."""
    able = {
        arm: {
            seed: run
            for seed, run in of_seed.items()
            if figure == LOSS or set(part.lengths) <= run.keys.keys()
        }
        for arm, of_seed in arms.items()
    }
    for stage in part.stages:
        complete = set.intersection(*(set(able.get(arm, {})) for arm in stage))
        for arm in stage:
            able[arm] = {
                seed: run for seed, run in sorted(able.get(arm, {}).items()) if seed in complete
            }
    return {arm: of_seed for arm, of_seed in able.items() if of_seed}


def claims_of(part: ProtocolPart, arms: dict[str, dict[int, MethodRun]]) -> list[MethodClaim]:
    """Return the claims of every stage with enough seeds, with Holm's correction over all of them."""
    made = []
    texts = list(next(iter(next(iter(arms.values())).values())).losses)
    for figure, places in ((LOSS, texts), (KEYS, part.lengths)):
        if not places:
            continue
        able = counted(part, arms, figure)
        for arm, against in part.claims:
            # an arm that trains nothing is one model, paired with every seed
            base = able.get(against, {})
            untrained = next((run for run in base.values() if not run.trained), None)
            others = {
                seed: untrained or base[seed]
                for seed in able.get(arm, {})
                if untrained or seed in base
            }
            if len(others) < FEWEST:
                continue
            by_place: dict[str | int | None, dict[int, float]] = {}
            for place in (None, *places):
                by_place[place] = {}
                for seed, other in others.items():
                    own = value_of(part, figure, able[arm][seed], place)
                    by_place[place][seed] = own - value_of(part, figure, other, place)
            differences = [*by_place[None].values()]
            found = statistics.sample(differences)
            p = statistics.t_test(differences)
            flipped = statistics.sign_flip(differences)
            signs = {math.copysign(1, plain.fmean(by_place[place].values())) for place in places}
            made.append(
                MethodClaim(
                    figure, arm, against, by_place[None], found, p, flipped, len(signs) == 1
                )
            )
    adjusted = statistics.holm([claim.p for claim in made])
    return [replace(claim, p_holm=p) for claim, p in zip(made, adjusted, strict=True)]


def value_of(
    part: ProtocolPart, figure: str, run: MethodRun, place: str | int | None = None
) -> float:
    """Return one of the two primary figures of a run, or its part: of one text, or of one length."""
    if figure == LOSS:
        return run.loss(part.native, part.target, None if place is None else str(place))
    return share([run.keys[length] for length in part.lengths if place in (None, length)])


def verdict(claim: MethodClaim) -> str:
    """Return one sentence on a claim."""
    mean, ends = claim.written
    gain = -claim.found.mean
    if claim.figure == KEYS:
        gain = claim.found.mean
        mean += " points"
    size = f"{mean} (95 %: {ends}, {claim.found.n} seeds, Holm's p {claim.p_holm:.2g})"
    if claim.p_holm > 1 - statistics.CONFIDENCE:
        return f"{claim.arm}: not told apart from {claim.against}, {size}."
    parts = "text" if claim.figure == LOSS else "length"
    if claim.same_sign:
        where = f"on each {parts}"
    else:
        where = f"but not on each {parts}"
    return (
        f"{claim.arm}: {'better' if gain > 0 else 'worse'} than {claim.against}, {size}, {where}."
    )


def page(
    part: ProtocolPart,
    name: str,
    arms: dict[str, dict[int, MethodRun]],
    claims: Sequence[MethodClaim],
) -> str:
    """Return the tables and sentences of the result."""
    texts = list(next(iter(next(iter(arms.values())).values())).losses)
    lengths = sorted(
        {length for of_seed in arms.values() for run in of_seed.values() for length in run.keys}
    )

    def cell(values: Sequence[float], spec: str) -> str:
        if not values:
            return "-"
        found = statistics.sample(values)
        # of two runs it is six times their distance
        width = None
        if found.n >= FEWEST:
            width = found.half_width
        return number(found.mean, spec) + ("" if width is None else f" ± {number(width, spec)}")

    losses = []
    answers = []
    costs = []
    for arm, of_seed in arms.items():
        runs = list(of_seed.values())
        values = [
            [value_of(part, LOSS, run) for run in runs],
            [run.loss(0, part.native) for run in runs],
        ]
        values += [[value_of(part, LOSS, run, text) for run in runs] for text in texts]
        losses.append([arm, str(len(runs)), *(cell(of_runs, ".3f") for of_runs in values)])
        asked_of = [run for run in runs if set(part.lengths) <= run.keys.keys()]
        if part.lengths and asked_of:
            shares = [[value_of(part, KEYS, run) for run in asked_of]]
            shares += [
                [share([run.keys[length]]) for run in asked_of if length in run.keys]
                for length in lengths
            ]
            pooled = []
            for length in lengths:
                asked = [run.passkeys[length] for run in runs if length in run.passkeys]
                pooled.append(
                    f"{sum(right for right, _ in asked)}/{sum(of for _, of in asked)}"
                    if asked
                    else "-"
                )
            answers.append(
                [arm, str(len(asked_of)), *(cell(of_runs, ".1f") for of_runs in shares), *pooled]
            )
        if any(run.trained for run in runs):
            minutes = [run.seconds / 60 for run in runs]
            gib = [run.memory / 2**30 for run in runs]
            costs.append([arm, cell(minutes, ".1f"), cell(gib, ".1f")])

    names = [text.rsplit("/")[-1] for text in texts]
    parts = [
        f"Mean over seeds ± half of Student's 95 % interval, from {FEWEST} runs on; an arm that trains nothing is one "
        "run. Loss past the native length, within it, and past it in each text:",
        markdown_table(["arm", "runs", "past", "within", *names], losses),
        f"![Loss and right answers by length]({name}.png)"
        if part.lengths
        else f"![Loss by position]({name}.png)",
    ]
    if part.lengths:
        at = [f"{length:,}" for length in lengths]
        header = [
            "arm",
            "runs",
            KEYS,
            *(f"{each}, %" for each in at),
            *(f"passkey {each}" for each in at),
        ]
        parts += [f"{part.questions}, in % of them, and plain passkeys, right of all:"]
        if all(row[-len(at) :] == ["-"] * len(at) for row in answers):
            header = header[: -len(at)]
            answers = [row[: -len(at)] for row in answers]
            parts[-1] = f"{part.questions}:"
        parts += [markdown_table(header, answers)]
    parts += (
        [markdown_table(["arm", "minutes of training", "peak memory, GiB"], costs)] if costs else []
    )
    if not claims:
        return "\n\n".join([*parts, f"No stage has {FEWEST} seeds yet: nothing is claimed."]) + "\n"
    rows = []
    for claim in claims:
        tests = [f"{value:.2g}" for value in (claim.p, claim.p_holm, claim.sign_flip)]
        pair = f"{claim.arm} less {claim.against}"
        rows.append([claim.figure, pair, *claim.written, str(claim.found.n), *tests])
    header = [
        "figure",
        "claim",
        "mean",
        "95 % interval",
        "seeds",
        "p, t test",
        "p, Holm's",
        "p, sign flip",
    ]
    parts += [markdown_table(header, rows), "\n".join(f"- {verdict(claim)}" for claim in claims)]
    return "\n\n".join(parts) + "\n"


def draw(part: ProtocolPart, arms: dict[str, dict[int, MethodRun]], path: Path) -> None:
    """Draw the loss less the reference's in each span, and the share of right answers at each length, with 95 %
    bands."""
    both = bool(part.lengths)
    figure = Figure(figsize=(12 if both else 7, 4.8), layout="constrained")
    left, *right = figure.subplots(1, 2 if both else 1, squeeze=False)[0]
    by_arm = {
        arm: [SpanLosses.merge(run.losses.values()) for run in runs.values()]
        for arm, runs in arms.items()
    }
    base = by_arm.get(part.reference, next(iter(by_arm.values())))
    places = [start + base[0].span / 2 for start in base[0].starts]
    zero = [plain.fmean(each.nll[at] for each in base) for at in range(len(places))]
    palette = colours(len(arms))
    for index, (arm, of_seed) in enumerate(arms.items()):
        curves = [
            (
                left,
                places,
                [[each.nll[at] - nll for each in by_arm[arm]] for at, nll in enumerate(zero)],
            )
        ]
        for axes in right:
            runs = [run for run in of_seed.values() if run.keys]
            lengths = sorted(set.intersection(*(set(run.keys) for run in runs))) if runs else []
            answers = [[share([run.keys[length]]) for run in runs] for length in lengths]
            curves.append((axes, [float(length) for length in lengths], answers))
        colour = palette[index % len(palette)]
        marker = MARKERS[index % len(MARKERS)]
        line = {
            "color": colour,
            "marker": marker,
            "ms": 4,
            "ls": STYLES[index // len(palette) % len(STYLES)],
        }
        gaps = [plain.fmean(of_place) for of_place in curves[0][2]]
        if min(map(abs, gaps)) > OUTSIDE:
            left.plot(
                [], [], label=f"{arm} ({min(gaps):+.1f} to {max(gaps):+.1f}, not drawn)", **line
            )
            del curves[0]
        for axes, at, values in curves:
            found = [statistics.sample(of_place) for of_place in values]
            axes.plot(at, [each.mean for each in found], label=arm, **line)
            if found and found[0].n >= FEWEST:
                low = [each.mean - (each.half_width or 0.0) for each in found]
                high = [each.mean + (each.half_width or 0.0) for each in found]
                axes.fill_between(at, low, high, color=colour, alpha=0.15, lw=0)
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
    parser.add_argument("part", choices=PARTS, help="of the protocol: 8, 9, 10, 12, 11 and 13")
    parser.add_argument("runs", help="the folder of the experiment's runs")
    parser.add_argument("--output", required=True, help="folder of the page")
    options = parser.parse_args(typed)
    raise_if_any(check_folder("output", options.output))
    part = PARTS[options.part]
    folder = Path(options.output)
    arms = arms_of(part, read(Path(options.runs)))
    if not arms:
        wrong = "no finished run of this part"
        remedy = "give the folder of its experiment"
        raise UserError(Problem("runs", options.runs, wrong, remedy))
    claims = claims_of(part, arms)
    draw(part, arms, folder / f"{options.part}.png")
    stored = [
        asdict(claim) | {"interval": claim.found.interval, "verdict": verdict(claim)}
        for claim in claims
    ]
    runs = [asdict(run) for of_seed in arms.values() for run in of_seed.values()]
    result = results.collect(command=["python", "-m", "tools.experiments.advice", *typed])
    results.save(result.finish({"runs": runs, "claims": stored}), folder / f"{options.part}.json")
    text = page(part, options.part, arms, claims)
    storage.write_text(folder / f"{options.part}.md", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
