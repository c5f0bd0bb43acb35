"""Addition from scratch, tested to twice the trained lengths: Figures 2, 5 and 6."""

import json
from collections.abc import Sequence

from evaluation import published
from tools.reproduce import readings
from tools.reproduce.experiment import PAPER, SMALL, TINY, Experiment, Form, Kept, Reading, Step

NAMES = {"rope": "RoPE", "randpe": "RandPE", "nope": "NoPE", "fire": "FIRE", "tape": "TAPE", "tape_yarn": "TAPE + YaRN"}
"""An encoding, a comparison's row, or a run's folder -> what the paper calls it."""
_GRID_BELOW = "20 to 100 samples a pair of lengths, greedy; a model that solves the trained quarter alone has 25 %."
GRID = "100 samples a pair of lengths, greedy; a model that solves the trained quarter alone has 25 %."
TINY_MINUTES, SMALL_MINUTES = 1.3, 20.0
"""Of one encoding, its grid included."""
TRAIN = "launchers/train_arithmetic.py"


def tokens(digits: int) -> int:
    """Of the longest training row: two operands, their sum, ``+``, ``=`` and EOS."""
    return 3 * digits + 4


def yarn(digits: int) -> str:
    """The angles of TAPE + YaRN: for twice the trained length."""
    length = tokens(digits)
    return json.dumps({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": length})


def trained(name: str, launched: Sequence[str], recipe: str, own: Sequence[str], minutes: float | None) -> list[Step]:
    """A run and its grid, in a folder called ``name``."""
    run = f"{{output}}/{name}"
    words = (*launched, TRAIN, "--recipe", recipe, *own, "--output_dir", run, "--resume", "auto")
    parallel = launched == ("{launcher}",)
    asks = ("{launcher}", "--module", "evaluation") if parallel else ("python", "-m", "evaluation")
    return [
        Step(f"train_{name}", words, f"{run}/results/run.json", minutes=minutes),
        Step(
            f"grid_{name}",
            (*asks, "arithmetic", run, *(() if parallel else ("--samples", "20")), "--output", f"{run}/evaluation"),
            f"{run}/evaluation/arithmetic.json",
            minutes=None if minutes is None else round(minutes / 4, 1),
        ),
    ]


def at_paper_scale(recipe: str, encodings: Sequence[str], with_yarn: bool = False) -> Form:
    """Every encoding by the published recipe."""
    cluster = ("{launcher}",)
    steps = [
        step
        for name in encodings
        for step in trained(name, cluster, recipe, ("--position_encoding", name), minutes=None)
    ]
    if with_yarn:
        own = ("--position_encoding", "tape", "--rope_parameters", yarn(40))
        steps += trained("tape_yarn", cluster, recipe, own, minutes=None)
    return Form(
        "117M-parameter Llama from scratch",
        tuple(steps),
        {"{output}": READ_GRIDS},
        (GRID, *(_YARN if with_yarn else ())),
        needs="GPUs",
    )


def compared(name: str, recipe: str, encodings: Sequence[str], folder: str, own: Sequence[str], each: float) -> Form:
    """Several encodings by one command; each takes so many minutes."""
    words: tuple[str, ...] = ("python", "tools/compare_arithmetic.py", "--encodings", *encodings, "--recipe", recipe)
    words += ("--output", folder, "--processes", "{processes}", *own)
    step = Step(name, words, f"{folder}/compare_arithmetic.json", minutes=round(each * len(encodings), 1))
    return Form(f"recipe {recipe}", (step,), {folder: READ_COMPARISON}, (_GRID_BELOW, _SMALL))


def small_yarn() -> Form:
    """Figure 6 at a size for two CPU cores: the comparing command gives every run the same angles, so runs by hand."""
    launched, digits = ("deepspeed", "--num_accelerators", "{processes}"), 2
    sized = ("--max_digits", str(digits))
    steps = []
    for name in ("fire", "tape"):
        steps += trained(name, launched, "addition_tiny", (*sized, "--position_encoding", name), TINY_MINUTES)
    own = (*sized, "--position_encoding", "tape", "--rope_parameters", yarn(digits))
    steps += trained("tape_yarn", launched, "addition_tiny", own, TINY_MINUTES)
    return Form("recipe addition_tiny", tuple(steps), {"{output}": READ_GRIDS}, (_GRID_BELOW, _SMALL, *_YARN))


READ_GRIDS: Reading = readings.runs("*/evaluation/arithmetic.json", readings.arithmetic, NAMES)
READ_COMPARISON: Reading = readings.together(
    readings.one("compare_arithmetic.json", readings.grids, NAMES), readings.files("compare_arithmetic.png")
)
_SMALL = "A small model on short operands: whether an encoding goes beyond the trained lengths differs with both."
_YARN = ("TAPE + YaRN is trained with YaRN's angles for twice the length; the published code changed them as it ran.",)
_FIGURE_2, _FIGURE_5 = ("rope", "randpe", "nope", "fire", "tape"), ("rope", "randpe", "fire", "tape")
_TINY = compared("addition", "addition_tiny", _FIGURE_2, "{shared}/addition", ("--samples", "20"), TINY_MINUTES)
"""Both figures': short operands are not 20 and 40 digits long."""


FIGURE_2 = Experiment(
    "figure2",
    "Figure 2",
    "addition to 40 digits, tested to 80",
    (published.FIGURE_2,),
    published.FIGURE_2.quantities,
    {
        TINY: _TINY,
        PAPER: at_paper_scale("addition_40", _FIGURE_2),
    },
)
FIGURE_5 = Experiment(
    "figure5",
    "Figure 5",
    "addition to 20 digits, tested to 40",
    (published.FIGURE_5,),
    published.FIGURE_5.quantities,
    {
        TINY: _TINY,
        SMALL: compared(
            "addition_6", "addition_6", ("rope", "fire", "nope", "tape"), "{shared}/addition_6", (), SMALL_MINUTES
        ),
        PAPER: at_paper_scale("addition_20", _FIGURE_5),
    },
    kept=(Kept("docs/results/*arithmetic*", "", READ_COMPARISON),),
)
FIGURE_6 = Experiment(
    "figure6",
    "Figure 6",
    "addition to 40 digits, tested to 80, with YaRN",
    (published.FIGURE_6,),
    published.FIGURE_6.quantities,
    {TINY: small_yarn(), PAPER: at_paper_scale("addition_40", ("fire", "tape"), with_yarn=True)},
)
