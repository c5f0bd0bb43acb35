"""What is counted, timed or looked at: Tables 3, 4, 5 and 8, and Figure 7."""

import shlex
from dataclasses import replace
from pathlib import Path

from evaluation import published
from evaluation.published import Quantity
from tape_ds.training import model_config
from tools import plan
from tools.reproduce import readings
from tools.reproduce.experiment import PAPER, ROOT, SMALL, TINY, Experiment, Form, Kept, Measured, Source, Step, Values
from tools.reproduce.scratch import TINY_MODEL, TINY_STEPS, pretrained, small_models

# --- Table 3

_COUNTED = Form(
    "the same model as this project computes it",
    (
        Step(
            "flops",
            ("python", "tools/flops.py", "--table3", "--output", "{output}"),
            "{output}/table3.json",
            minutes=0.2,
        ),
    ),
    {
        "{output}": readings.one(
            "table3.json",
            readings.flops,
            {
                "tape": "TAPE",
                "rope": "RoPE",
                "fire": "FIRE",
                "t5": "T5",
                "tape, published code": "TAPE, published code",
            },
        )
    },
    (
        "Counted, not run; FLOPs are 2 x MACs, the paper's hold small operations that its MACs leave out.",
        "This project's TAPE evaluates the gate once and attends to a state of half the width: fewer MACs, same model.",
    ),
)
TABLE_3 = Experiment(
    "table3",
    "Table 3",
    "cost of one forward pass",
    (published.TABLE_3,),
    (Quantity("cost", "gmac"), Quantity("cost", "parameters")),
    {TINY: _COUNTED, PAPER: _COUNTED},
    kept=(Kept("docs/results/table3", _COUNTED.setting, _COUNTED.read["{output}"], _COUNTED.remarks),),
)


# --- Table 4

_TIMED = {"rope": "RoPE", "fire": "FIRE", "t5": "T5", "alibi": "ALiBi"}


def timed_as(encoding: str, rival: str) -> str | None:
    """The paper's name of a rival. Fused is one attention with a wide value; not fused, the published formulation with
    a fused attention for each of its three values."""
    if rival.startswith("attend"):
        return _TIMED.get(encoding, "TAPE, fused")
    return "TAPE, not fused" if rival == "published, three sdpa" else None


def _timed(setting: str, device: str, own: tuple[str, ...], minutes: float | None) -> Form:
    words = ("python", "-m", "benchmarks", "table4", "--device", device, *own, "--out", "{output}")
    return Form(
        setting,
        (Step("table4", words, "{output}/table4_*.csv", minutes=minutes),),
        {"{output}": readings.benchmark(timed_as)},
        _TIMED_REMARKS,
        needs="" if device == "cpu" else "a GPU",
    )


_TIMED_REMARKS = (
    "The median of the fastest way to compute each encoding; every way is checked before it is timed.",
    "L1 is one layer, more are a whole model; B rows of T tokens.",
)
TABLE_4 = Experiment(
    "table4",
    "Table 4",
    "time of an inference step",
    (published.TABLE_4,),
    published.TABLE_4.quantities,
    {
        TINY: _timed("one layer of the 155M model, fp32, on a CPU", "cpu", ("--shapes", "L1 ", "--repeats", "3"), 1.5),
        SMALL: _timed("layers and models of 155M's sizes, fp32, on a CPU", "cpu", (), 10),
        PAPER: _timed("layers and models of 155M's sizes, bf16, on a GPU", "cuda", (), None),
    },
    kept=(
        Kept(
            "benchmarks/results/table4_*.csv",
            "layers and models of 155M's sizes",
            readings.benchmark(timed_as),
            _TIMED_REMARKS,
            "kernels.md",
        ),
    ),
)


# --- Table 5

_RECIPES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "Arithmetic": ("addition_40", "train_arithmetic", ()),
    "C4 pre-training": ("c4_155m_tape", "pretrain_c4", ()),
    "SCROLLS": ("scrolls/qasper", "finetune_scrolls", ("--model", "smollm2")),
    "Context extension": ("llama2_7b_8k", "extend_llama", ()),
}
"""Row -> recipe, its launcher, and what stands for a model that is not at hand."""


def recipes(_: Path) -> Measured:
    """The settings of this project's recipes, whatever the folder."""
    values: Values = {}
    sources = []
    for row, (name, launcher, own) in _RECIPES.items():
        recipe = plan.load(name, list(own), 8)
        config = model_config.beforehand(recipe)
        values[row] = {
            Quantity("recipe", "tokens"): recipe.window,
            Quantity("recipe", "batch"): recipe.global_batch_size,
            Quantity("recipe", "steps"): recipe.trainer_value("max_steps"),
            Quantity("recipe", "attention_dropout"): getattr(config, "attention_dropout", None) or 0.0,
            Quantity("recipe", "learning_rate"): recipe.trainer_value("learning_rate"),
        }
        command = shlex.join(["python", f"launchers/{launcher}.py", "--recipe", name, *own, "--print_config"])
        sources.append(Source(ROOT / "launchers" / "recipes", command, "settings: nothing is run", "", ""))
    return Measured(values, tuple(sources))


_SETTINGS = Form(
    "the recipes of this project",
    (),
    {"{output}": recipes},
    (
        "Arithmetic: 124 tokens are two operands of 40 digits, their sum of 41, `+`, `=` and the end of text.",
        "SCROLLS reads 8,192 tokens and extension 8,192, as the published code does; `--max_tokens 1024` is the other "
        "reading.",
    ),
)
TABLE_5 = Experiment(
    "table5",
    "Table 5",
    "settings of training",
    (published.TABLE_5,),
    (Quantity("recipe", "tokens"), Quantity("recipe", "batch"), Quantity("recipe", "learning_rate")),
    {TINY: _SETTINGS, PAPER: _SETTINGS},
    kept=(Kept("launchers/recipes", _SETTINGS.setting, recipes, _SETTINGS.remarks),),
)


# --- Table 8

_HALVES = (
    published.TABLE_8_ATTENTION,
    replace(
        published.TABLE_8_POSITIONS,
        quantities=tuple(readings.halved(each) for each in published.TABLE_8_POSITIONS.quantities),
    ),
)
_SHIFTED = Quantity("shift_ids", "layer 4")
_LOOKED_AT = {"RoPE": "rope", "TAPE": "tape", "not equivariant": "tape_form=flattened_random_shift=512"}
"""A row -> the run's folder below the shared comparison."""
_STABILITY_REMARKS = (
    "Our difference is the mean L1 distance between rows of attention; the paper does not say how its own is taken.",
    "What counts is the shift of ids: at rounding level where positions are equivariant, above it where they are not.",
)
_READ_STABILITY = readings.one("stability.json", readings.stability, {})


def _stability(scale: str, steps: int) -> Form:
    named = (f"{row}={{shared}}/encodings/{folder}" for row, folder in _LOOKED_AT.items())
    words = ("python", "-m", "tools.stability", *named, "--layers", "1", "2", "4", "--tokens", "256")
    step = Step("stability", (*words, "--output", "{output}"), "{output}/stability.json", minutes=1)
    setting = f"{TINY_MODEL}, {steps} steps, 4 layers"
    return Form(setting, (small_models(scale), step), {"{output}": _READ_STABILITY}, _STABILITY_REMARKS)


def _published_stability() -> Form:
    encodings = {"RoPE": "c4_155m_rope", "TAPE": "c4_155m_tape", "not equivariant": "c4_155m_tape_flattened"}
    named = (f"{row}={{shared}}/{folder}" for row, folder in encodings.items())
    words = ("python", "-m", "tools.stability", *named, "--layers", "1", "2", "4", "8", "--output", "{output}")
    runs = [pretrained(folder.removeprefix("c4_155m_")) for folder in encodings.values()]
    return Form(
        "155M model from scratch",
        (*runs, Step("stability", words, "{output}/stability.json")),
        {"{output}": _READ_STABILITY},
        _STABILITY_REMARKS,
        needs="GPUs and the network (C4)",
    )


TABLE_8 = Experiment(
    "table8",
    "Table 8",
    "stability under a shift of positions",
    _HALVES,
    (_SHIFTED, readings.halved(_SHIFTED)),
    {
        TINY: _stability(TINY, TINY_STEPS),
        SMALL: _stability(SMALL, 400),
        PAPER: _published_stability(),
    },
)


# --- Figure 7

_READ_MAPS = readings.together(readings.one("visualise.json", readings.differences, {}), readings.files("*.png"))
_MAPS_REMARKS = ("Maps of position dot products and attention by layer and head; where TAPE's attention differs.",)


def _visualised(tape: str, rope: str, steps: tuple[Step, ...], setting: str, layers: tuple[str, ...]) -> Form:
    words = ("python", "-m", "tools.visualise", f"TAPE={tape}", "--against", f"RoPE={rope}", "--text", "README.md")
    step = Step(
        "visualise", (*words, "--layers", *layers, "--output", "{output}"), "{output}/visualise.json", minutes=1
    )
    return Form(setting, (*steps, step), {"{output}": _READ_MAPS}, _MAPS_REMARKS)


FIGURE_7 = Experiment(
    "figure7",
    "Figure 7",
    "position dot products and attention, by layer",
    (),
    (),
    {
        TINY: _visualised(
            "{shared}/encodings/tape",
            "{shared}/encodings/rope",
            (small_models(TINY),),
            f"{TINY_MODEL}, {TINY_STEPS} steps",
            ("1", "2", "4"),
        ),
        PAPER: replace(
            _visualised(
                "{shared}/c4_155m_tape",
                "{shared}/c4_155m_rope",
                (pretrained("rope"), pretrained("tape")),
                "155M model from scratch",
                ("1", "2", "4", "8", "12"),
            ),
            needs="GPUs and the network (C4)",
        ),
    },
    kept=(Kept("docs/gallery.md", "models of the gallery", readings.linked, _MAPS_REMARKS, "../gallery.md"),),
)
