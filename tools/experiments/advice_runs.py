"""The protocol's parts on methods (8 to 13 of docs/results/protocol.md), and the runs that their claims may use."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tape_ds import results
from tape_ds.scoring.span_losses import SpanLosses

Pair = tuple[str, str]
Arms = dict[str, dict[int, "MethodRun"]]


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
    """The questions at each length."""


FIRST = (("norms", "yarn"), ("lora", "yarn"), ("full", "yarn"), ("lora", "norms"), ("full", "lora"))
LATER = (("theta", "lora"), ("tape+lora", "lora"), ("longlora", "lora"), ("tape", "norms"))
TRAINED = ("norms", "lora", "full")
RETRIEVAL = ("text", "few_1k", "many_1k", "few_4k", "many_4k", "few_16k", "many_16k")
WINDOWS = ("few_512", "many_512", "few_2k", "many_2k")
RETRIEVAL_SMALL = ("text", *WINDOWS, *map("asked_{}".format, WINDOWS))
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
        claims=tuple(itertools.product(RETRIEVAL, ("yarn",))),
        questions="RULER's single 2, multikey 1 and 2 and variable tracking, 20 questions of each at a length",
    ),
    "retrieval_small": ProtocolPart(
        native=512,
        target=2048,
        lengths=(1024, 2048),
        stages=(RETRIEVAL_SMALL,),
        claims=tuple(itertools.product(RETRIEVAL_SMALL, ("yarn",))),
        questions="Values looked up in generated documents, in held-out text and among records alone, 100 questions of "
        "each at a length",
    ),
}
# seeds of a stage that claims something, and of a band
FEWEST = 3
LOSS = "loss past the native length"
KEYS = "right answers past it, %"


@dataclass(frozen=True)
class MethodRun:
    """Scores and cost of one run."""

    arm: str
    seed: int
    losses: dict[str, SpanLosses]
    """By text, up to the target length."""
    keys: Mapping[int, tuple[float, int]]
    """``multikey``, or RULER's tasks: length -> right answers, questions; empty where neither was asked."""
    passkeys: dict[int, tuple[int, int]]
    trained: bool
    seconds: float
    memory: int
    """Peak of the run, in bytes."""

    def loss(self, first: int, last: int | None = None, text: str | None = None) -> float:
        """Return the mean loss between two positions, of one text or of all."""
        if text is not None:
            return self.losses[text].mean_between(first, last)
        return SpanLosses.merge(self.losses.values()).mean_between(first, last)

    def was_asked(self, lengths: Iterable[int]) -> bool:
        return self.keys.keys() >= set(lengths)

    def share_at(self, length: int) -> float:
        return share([self.keys[length]])


def share(counts: Iterable[tuple[float, int]]) -> float:
    """Return 100 times right answers over questions."""
    right, asked = map(sum, zip(*counts, strict=True))
    return 100 * right / asked


def read_runs(folder: Path) -> list[MethodRun]:
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
        arm, _, seed = path.parents[1].name.rpartition("_seed_")
        evaluations = path.parents[1] / "evaluation"
        trained = bool(figures["steps"])
        run = MethodRun(
            arm=arm,
            seed=int(seed),
            losses={text: SpanLosses.from_dict(values) for text, values in scores[made].items()},
            keys=passkey_counts(evaluations / "multikey") or ruler_scores(evaluations),
            passkeys=passkey_counts(evaluations / "passkey"),
            trained=trained,
            seconds=figures["tokens"] / figures["tokens_per_second"] if trained else 0.0,
            memory=figures.get("peak_memory_bytes") or 0,
        )
        runs.append(run)
    return sorted(runs, key=lambda run: (run.trained, run.arm != "yarn"))


def passkey_counts(folder: Path) -> dict[int, tuple[int, int]]:
    """Return right answers and questions by length, of an evaluation's folder; nothing if there is none."""
    file = folder / "passkey.json"
    if not file.exists():
        return {}
    rows = results.load(file).figures["passkeys"]
    return {row["length"]: (row["correct"], row["trials"]) for row in rows}


def ruler_scores(folder: Path) -> dict[int, tuple[float, int]]:
    """Return the sum of the scores and the questions of all tasks at each length, from every result of RULER or of
    generated documents in an evaluation's folder."""
    scores: defaultdict[int, float] = defaultdict(float)
    questions: defaultdict[int, int] = defaultdict(int)
    for file in sorted([*folder.glob("*/ruler.json"), *folder.glob("*/retrieval.json")]):
        for cell in results.load(file).figures["cells"]:
            scores[cell["length"]] += cell["score"] * cell["samples"]
            questions[cell["length"]] += cell["samples"]
    return {length: (score, questions[length]) for length, score in scores.items()}


def arms_of(part: ProtocolPart, runs: Sequence[MethodRun]) -> Arms:
    """Return the runs of a part by arm and seed, untrained ones where one of them is the reference."""
    staged = set().union(*part.stages)
    arms: Arms = {}
    for run in runs:
        if run.arm in staged or (not run.trained and part.reference not in staged):
            arms.setdefault(run.arm, {})[run.seed] = run
    return arms


def counted(part: ProtocolPart, arms: Arms, figure: str) -> Arms:
    """Return the runs that claims of a figure may use: a seed counts when every arm of its stage has the figure."""
    able: defaultdict[str, dict[int, MethodRun]] = defaultdict(dict)
    for arm, of_seed in arms.items():
        for seed, run in sorted(of_seed.items()):
            if figure == LOSS or run.was_asked(part.lengths):
                able[arm][seed] = run
    for stage in part.stages:
        # arms of a stage are compared on the same seeds alone
        complete = set.intersection(*(set(able.get(arm, ())) for arm in stage))
        for arm in stage:
            for seed in able.get(arm, {}).keys() - complete:
                del able[arm][seed]
    return {arm: of_seed for arm, of_seed in able.items() if of_seed}


def value_of(
    part: ProtocolPart, figure: str, run: MethodRun, place: str | int | None = None
) -> float:
    """Return one of the two primary figures of a run, or its part: of one text, or of one length."""
    if figure == LOSS:
        return run.loss(part.native, part.target, None if place is None else str(place))
    return share([run.keys[length] for length in part.lengths if place in (None, length)])
