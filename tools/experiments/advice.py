"""Decide which method to extend a model by, from the runs of ``advice`` (docs/results/protocol.md, part 8).

    python -m tools.experiment advice                              the runs
    python -m tools.experiments.advice runs/advice --output docs/results/advice

Writes advice.md, .json and .png: every arm's figures over seeds, the claims of the protocol, and the picture.
"""

import math
import statistics as plain
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure
from scipy.special import stdtr

from tape_ds import results, storage
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, UserError, check_folder, command, raise_if_any
from tape_ds.markdown_table import markdown_table
from tape_ds.numbers import number
from tape_ds.scoring.span_losses import SpanLosses
from tape_ds.training.plots import COLOURS, MARKERS, STYLES
from tools.experiment import statistics
from tools.experiment.statistics import Sample

NATIVE, TARGET = 8192, 16384
PAST = (12288, 16384)  # lengths of the questions that decide
STAGES = (("norms", "lora", "full"), ("theta", "tape", "tape+lora", "longlora"))
CLAIMS = (
    (("norms", "yarn"), ("lora", "yarn"), ("full", "yarn"), ("lora", "norms"), ("full", "lora")),
    (("theta", "lora"), ("tape+lora", "lora"), ("longlora", "lora"), ("tape", "norms")),
)
"""What is claimed of the arms of each stage: an arm against another."""
FEWEST = 3  # seeds of a stage that claims something
LOSS, KEYS = "loss past 8,192 tokens", "right answers past 8,192 tokens, %"


@dataclass(frozen=True)
class Run:
    """What one run of an arm scored."""

    arm: str
    seed: int
    losses: dict[str, SpanLosses]
    """By text, up to :data:`TARGET` tokens."""
    keys: dict[int, tuple[int, int]]
    """``multikey``: length -> right answers, questions."""
    passkeys: dict[int, tuple[int, int]]
    trained: bool
    seconds: float
    memory: int
    """Peak of the run, in bytes."""

    def loss(self, text: str | None = None, first: int = NATIVE, last: int = TARGET) -> float:
        """Return the mean loss between two positions, of one text or of all."""
        chosen = self.losses.values() if text is None else [self.losses[text]]
        return SpanLosses.merge(chosen).mean_between(first, last)

    @property
    def retrieval(self) -> float | None:
        """Share of right answers at the lengths that decide, in per cent; None while they have not been asked."""
        return share([self.keys[length] for length in PAST]) if set(PAST) <= self.keys.keys() else None


@dataclass(frozen=True)
class Claim:
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


def share(counts: Iterable[tuple[int, int]]) -> float:
    """Return 100 times right answers over questions."""
    right, asked = map(sum, zip(*counts, strict=True))
    return 100 * right / asked


def read(folder: Path) -> list[Run]:
    """Return the finished runs of a folder of the experiment, in the order of their names."""
    runs = []
    for path in sorted(folder.glob("*/results/run.json")):
        result = results.load(path)
        if result.finished is None:
            continue
        figures = result.figures
        scores = figures["loss_by_position"]
        made = next(reversed(scores))  # a run scores its trained model last
        asked = {}
        for protocol in ("multikey", "passkey"):
            file = path.parents[1] / "evaluation" / protocol / "passkey.json"
            rows = results.load(file).figures["passkeys"] if file.exists() else []
            asked[protocol] = {row["length"]: (row["correct"], row["trials"]) for row in rows}
        losses = {text: SpanLosses.from_dict(values) for text, values in scores[made].items()}
        seconds = TARGET * 8 / figures["tokens_per_second"] if figures.get("tokens_per_second") else 0.0
        runs.append(
            Run(
                *(result.config["method"], result.seed or 0, losses, asked["multikey"], asked["passkey"]),
                *(bool(figures["steps"]), seconds, figures.get("peak_memory_bytes") or 0),
            )
        )
    return runs


def arms_of(runs: Sequence[Run]) -> dict[str, dict[int, Run]]:
    """Return the runs by arm and seed. A seed counts when every arm of its stage has it, and its answers."""
    arms: dict[str, dict[int, Run]] = {}
    for run in sorted(runs, key=lambda run: (run.trained, run.arm != "yarn")):  # untrained arms first, yarn before them
        arms.setdefault(run.arm, {})[run.seed] = run
    for stage in STAGES:
        having = [{seed for seed, run in arms.get(arm, {}).items() if run.retrieval is not None} for arm in stage]
        complete = set.intersection(*having)
        for arm in stage:
            arms[arm] = {seed: run for seed, run in sorted(arms.get(arm, {}).items()) if seed in complete}
    return {arm: of_seed for arm, of_seed in arms.items() if of_seed}


def claims_of(arms: dict[str, dict[int, Run]]) -> list[Claim]:
    """Return the claims of every stage with enough seeds, both figures, with Holm's correction over all of them."""
    pairs: list[tuple[str, str]] = []
    for stage, claims in zip(STAGES, CLAIMS, strict=True):
        if min(len(arms.get(arm, {})) for arm in stage) >= FEWEST:
            pairs += claims
    made = []
    for figure in (LOSS, KEYS):
        for arm, against in pairs:
            base = arms.get(against, {})
            seeds = list(arms[arm]) if against not in STAGES[0] + STAGES[1] else sorted(arms[arm].keys() & base.keys())
            if not base or len(seeds) < FEWEST:
                continue
            # an arm that trains nothing is one model, paired with every seed
            others = {seed: base.get(seed, next(iter(base.values()))) for seed in seeds}
            parts = list(arms[arm][seeds[0]].losses) if figure == LOSS else [str(length) for length in PAST]
            by_part = {}
            for part in parts:
                by_part[part] = plain.fmean(
                    _part(figure, arms[arm][seed], part) - _part(figure, others[seed], part) for seed in seeds
                )
            differences = {seed: _value(figure, arms[arm][seed]) - _value(figure, others[seed]) for seed in seeds}
            found = statistics.sample([*differences.values()])
            same = len({value > 0 for value in by_part.values()}) == 1
            p, flipped = t_test(found), statistics.sign_flip([*differences.values()])
            made.append(Claim(figure, arm, against, differences, found, p, flipped, same))
    adjusted = statistics.holm([claim.p for claim in made])
    return [Claim(**{**vars(claim), "p_holm": p}) for claim, p in zip(made, adjusted, strict=True)]


def _value(figure: str, run: Run) -> float:
    if figure == LOSS:
        return run.loss()
    assert run.retrieval is not None, "runs without answers were left out"
    return run.retrieval


def _part(figure: str, run: Run, part: str) -> float:
    return run.loss(part) if figure == LOSS else share([run.keys[int(part)]])


def t_test(differences: Sample) -> float:
    """Return the two-sided p of the paired t test: of a mean of 0 under Student's distribution."""
    if not differences.sd:
        return 1.0 if differences.mean == 0 else 0.0
    statistic = abs(differences.mean) / (differences.sd / math.sqrt(differences.n))
    return 2 * float(stdtr(differences.n - 1, -statistic))


def verdict(claim: Claim) -> str:
    """Return one sentence on a claim."""
    gain = claim.found.mean if claim.figure == KEYS else -claim.found.mean
    digits, unit = (1, " points") if claim.figure == KEYS else (3, "")
    assert claim.found.interval is not None
    ends = " to ".join(f"{end:+.{digits}f}" for end in claim.found.interval)
    size = f"{claim.found.mean:+.{digits}f}{unit} (95 %: {ends}, {claim.found.n} seeds, Holm's p {claim.p_holm:.2g})"
    if claim.p_holm > 1 - statistics.CONFIDENCE:
        return f"{claim.arm}: not told apart from {claim.against}, {size}."
    parts = "text" if claim.figure == LOSS else "length"
    where = f"on each {parts}" if claim.same_sign else f"but not on each {parts}"
    return f"{claim.arm}: {'better' if gain > 0 else 'worse'} than {claim.against}, {size}, {where}."


def page(arms: dict[str, dict[int, Run]], claims: Sequence[Claim]) -> str:
    """Return the tables and sentences of the result."""
    texts = list(next(iter(next(iter(arms.values())).values())).losses)
    lengths = sorted({length for of_seed in arms.values() for run in of_seed.values() for length in run.keys})

    def cell(values: Sequence[float | None], spec: str) -> str:
        known = [value for value in values if value is not None]
        if not known:
            return "-"
        found = statistics.sample(known)
        return number(found.mean, spec) + ("" if found.half_width is None else f" ± {number(found.half_width, spec)}")

    losses, answers, costs = [], [], []
    for arm, of_seed in arms.items():
        runs = list(of_seed.values())
        values = [[run.loss() for run in runs], *([run.loss(text) for run in runs] for text in texts)]
        values.append([run.loss(first=0, last=NATIVE) for run in runs])
        losses.append([arm, str(len(runs)), *(cell(of_runs, ".3f") for of_runs in values)])
        shares: list[list[float | None]] = [[run.retrieval for run in runs]]
        for length in lengths:
            shares.append([share([run.keys[length]]) if length in run.keys else None for run in runs])
        pooled = []
        for length in lengths:
            asked = [run.passkeys[length] for run in runs if length in run.passkeys]
            pooled.append(f"{sum(right for right, _ in asked)}/{sum(of for _, of in asked)}" if asked else "-")
        answers.append([arm, *(cell(of_runs, ".1f") for of_runs in shares), *pooled])
        trained = [run for run in runs if run.trained]
        minutes, gib = [run.seconds / 60 for run in trained], [run.memory / 2**30 for run in trained]
        costs.append([arm, cell(minutes, ".0f"), cell(gib, ".1f")])

    at = [f"{length:,}" for length in lengths]
    names = [text.rsplit("/")[-1] for text in texts]
    parts = [
        "Mean over seeds ± half of Student's 95 % interval; an arm that trains nothing is one run.",
        markdown_table(["arm", "runs", LOSS, *names, "within 8,192"], losses),
        "![Loss and right answers by length](advice.png)",
        "Keys among ten keys (20 questions a length), and plain passkeys, right of all:",
        markdown_table(["arm", KEYS, *(f"{each}, %" for each in at), *(f"passkey {each}" for each in at)], answers),
        markdown_table(["arm", "minutes of training", "peak memory, GiB"], costs),
    ]
    if claims:
        rows = []
        for claim in claims:
            digits = 1 if claim.figure == KEYS else 3
            assert claim.found.interval is not None
            ends = " to ".join(f"{end:+.{digits}f}" for end in claim.found.interval)
            tests = [f"{value:.2g}" for value in (claim.p, claim.p_holm, claim.sign_flip)]
            name = f"{claim.arm} less {claim.against}"
            rows.append([claim.figure, name, f"{claim.found.mean:+.{digits}f}", ends, str(claim.found.n), *tests])
        header = ["figure", "claim", "mean", "95 % interval", "seeds", "p, t test", "p, Holm's", "p, sign flip"]
        parts += [markdown_table(header, rows), "\n".join(f"- {verdict(claim)}" for claim in claims)]
    else:
        parts.append(f"No stage has {FEWEST} seeds yet: nothing is claimed.")
    return "\n\n".join(parts) + "\n"


def draw(arms: dict[str, dict[int, Run]], path: Path) -> None:
    """Draw the loss less yarn's in each span, and the share of right answers at each length, with 95 % bands."""
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    base = next(iter(arms["yarn"].values())) if "yarn" in arms else next(iter(next(iter(arms.values())).values()))
    zero = SpanLosses.merge(base.losses.values())
    for index, (arm, of_seed) in enumerate(arms.items()):
        style = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)], "ms": 4}
        style["ls"] = STYLES[index // len(COLOURS) % len(STYLES)]
        merged = [SpanLosses.merge(run.losses.values()) for run in of_seed.values()]
        lengths = sorted(set.intersection(*(set(run.keys) for run in of_seed.values())))
        for axes, places, curves in (
            (left, [start + zero.span / 2 for start in zero.starts], _columns(merged, zero)),
            (right, lengths, [[share([run.keys[each]]) for run in of_seed.values()] for each in lengths]),
        ):
            found = [statistics.sample(values) for values in curves]
            if not found:
                continue
            axes.plot(places, [each.mean for each in found], label=arm, **style)
            if len(of_seed) > 1:
                half = [each.half_width or 0.0 for each in found]
                low = [each.mean - width for each, width in zip(found, half, strict=True)]
                high = [each.mean + width for each, width in zip(found, half, strict=True)]
                axes.fill_between(places, low, high, color=style["color"], alpha=0.15, lw=0)
    for axes in (left, right):
        axes.axvline(NATIVE, color="#888888", ls="--", lw=1)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    left.set(xlabel="position", ylabel="loss less YaRN's (nats per token)", title="Loss: lower is better")
    right.set(xlabel="tokens of the prompt", ylabel="right answers, %", title="One key of ten", ylim=(-3, 103))
    left.legend(frameon=False, ncols=2, fontsize=8)
    storage.write_file(path, lambda temporary: figure.savefig(temporary, dpi=130, format="png"))


def _columns(losses: Sequence[SpanLosses], zero: SpanLosses) -> list[list[float]]:
    return [[each.nll[at] - zero.nll[at] for each in losses] for at in range(len(zero.starts))]


@command
def main(argv: list[str] | None = None) -> int:
    typed = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="python -m tools.experiments.advice", description=__doc__)
    parser.add_argument("runs", help="the folder of the experiment's runs")
    parser.add_argument("--output", required=True, help="folder of the page")
    options = parser.parse_args(typed)
    raise_if_any(check_folder("output", options.output))
    found = read(Path(options.runs))
    if not found:
        raise UserError(Problem("runs", options.runs, "no finished run of the experiment", "give its --output"))
    arms = arms_of(found)
    claims = claims_of(arms)
    folder = Path(options.output)
    draw(arms, folder / "advice.png")
    stored = [asdict(claim) | {"interval": claim.found.interval, "verdict": verdict(claim)} for claim in claims]
    figures = {"runs": [asdict(run) for run in found], "seeds": {a: [*s] for a, s in arms.items()}, "claims": stored}
    result = results.collect(command=["python", "-m", "tools.experiments.advice", *typed], seed=None).finish(figures)
    results.save(result, folder / "advice.json")
    text = page(arms, claims)
    storage.write_text(folder / "advice.md", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
