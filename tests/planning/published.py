"""Speeds and lengths that others published, as questions to the planner: how far off it is, and why.

Rows marked ``fitted`` gave :data:`tape_ds.planning.hardware.GPUS` its share of matrix products; all others are
predictions. The table of docs/results/planner.md is made of these rows.
"""

from dataclasses import dataclass, replace

from tape_ds.distributed.layout import Layout
from tape_ds.markdown_table import markdown_table
from tape_ds.planning.hardware import find
from tape_ds.planning.job import Job
from tape_ds.planning.prediction import Plan
from tape_ds.planning.shape import TrainedShape, sizes
from tests.planning.helpers import published

TOLERANCE = 0.2
PLAIN = ("", "fitted")
"""Notes that explain nothing."""
MEASURES = {
    "tokens/s/GPU": lambda plan: plan.step.tokens_per_second / plan.job.layout.world,
    "MFU, %": lambda plan: 100 * plan.step.mfu,
    "TFLOP/s/GPU": lambda plan: plan.step.mfu * plan.job.gpu.peak / 1e12,
    "hours": lambda plan: plan.step.all * plan.job.steps / 3600,
    "GB a GPU": lambda plan: plan.memory.peak.total / 1e9,
}


@dataclass(frozen=True)
class Row:
    """One published figure."""

    name: str
    source: str
    quantity: str
    published: float
    job: Job
    note: str = ""
    """"fitted", or why the prediction is further off than :data:`TOLERANCE`."""

    @property
    def predicted(self):
        """By the planner."""
        return MEASURES[self.quantity](Plan(self.job))

    @property
    def ratio(self):
        """Predicted over published."""
        return self.predicted / self.published

    def line(self):
        """Of the page's table, which has a letter for an explanation."""
        shown = [f"{value:,.0f}" if value >= 100 else f"{value:.1f}" for value in (self.published, self.predicted)]
        name = self.name if self.quantity == SPEED else f"{self.name}; {self.quantity}"
        note = f"[{letter(self.note)}]" if self.note not in PLAIN else self.note
        return markdown_table([name, *shown, f"{self.ratio:.2f}", note], []).splitlines()[0]


def job(model, gpu, gpus, length, sequences, again=1, *, zero=3, tensor=1, accumulation=1, fa2=True, **changes):
    """A full training run of a plain Llama."""
    layout = Layout(gpus, zero=zero, tensor=tensor, micro_batch=sequences, checkpoint_layers=again)
    gpu = find(gpu) if isinstance(gpu, str) else gpu
    if fa2:  # attention by FlashAttention-2 on Hopper too, as before torch took cuDNN there
        gpu = replace(gpu, rates=replace(gpu.rates, attention=gpu.rates.packed))
    asked = Job(
        model=sizes(published(model)) if isinstance(model, str) else model,
        trained=TrainedShape.everything(),
        length=length,
        global_batch=sequences * layout.data * accumulation,
        layout=layout,
        gpu=gpu,
    )
    return replace(asked, **changes)


def pose(length):
    """PoSE's run: all of ZeRO-3 in the host's memory, 64 sequences a step."""
    asked = job("llama2-7b", "v100-32", 8, length, max(1, 8192 // length), fused=False, global_batch=64, steps=1000)
    return replace(asked, layout=replace(asked.layout, offload_optimizer="cpu", offload_weights="cpu"))


# a Llama-2-7B but for its feed-forward (two matrices of 16,384 columns, here three of two thirds) and tied embeddings
MPT = replace(sizes(published("llama2-7b")), inner=10_923, vocabulary=50_368, tied=True)
SLOW_H100 = replace(find("h100-80"), bandwidth=2.4e12)
FOUNDRY = "llm-foundry, scripts/train/benchmarking/README.md"
TITAN = "torchtitan, benchmarks/llama3_h100_202412 and llama3-8b_h200_202506"
POSE = "PoSE, imgs/efficiency.png"
SPEED = "tokens/s/GPU"
EIGHT_BIT = "computed in FP8, at up to twice the 16-bit rate, which this stack does not do"
WEAK = "its cards are held to 500 W of an H100's 700; it keeps matrix products that are computed again here"
TITANS = job("llama3-8b", SLOW_H100, 8, 8192, 2, "selective")

ROWS = (
    Row("MPT-7B, 8 A100-80, 8k", FOUNDRY, SPEED, 3206, job(MPT, "a100-80", 8, 8192, 8), "fitted"),
    Row("MPT-7B, 8 A100-80, 4k", FOUNDRY, SPEED, 3684, job(MPT, "a100-80", 8, 4096, 16), "fitted"),
    Row("MPT-7B, 8 A100-40, 8k", FOUNDRY, SPEED, 2887, job(MPT, "a100-40", 8, 8192, 3)),
    Row("MPT-7B, 8 H100, 8k", FOUNDRY, SPEED, 6935, job(MPT, "h100-80", 8, 8192, 8), "fitted"),
    Row("MPT-7B, 8 H100, 4k", FOUNDRY, SPEED, 8611, job(MPT, "h100-80", 8, 4096, 16), "fitted"),
    Row("MPT-7B, 8 H100, 2k, nothing recomputed", FOUNDRY, SPEED, 10_643, job(MPT, "h100-80", 8, 2048, 6, None)),
    Row("Llama-3.1-8B, 8 H100 (500 W, HBM2e), 8k", TITAN, SPEED, 5762, replace(TITANS, fused=False), WEAK),
    Row("the same, compiled", TITAN, SPEED, 6667, TITANS, WEAK),
    Row("the same, compiled, FP8", TITAN, SPEED, 8532, TITANS, EIGHT_BIT),
    Row(
        *("Llama-3.1-8B, 32 H200, 8k, FP8", TITAN, SPEED, 10_938),
        *(job("llama3-8b", "h200", 32, 8192, 2, "selective", fa2=False), EIGHT_BIT),
    ),
    Row(
        *("Llama-2-7B, 8 H100, 4k, FP8", "NeMo, performance_summary.md", SPEED, 16_634),
        *(job("llama2-7b", "h100-80", 8, 4096, 1, None, zero=1, accumulation=16, fa2=False), EIGHT_BIT),
    ),
    Row(
        *("2 B to 462 B, H100 clusters: middle of 41 to 48 %", "Megatron-LM, README", "MFU, %", 44.5),
        job("llama2-70b", "h100-80", 512, 4096, 1, None, zero=1, tensor=8, accumulation=16),
        "it hides sums of hidden states behind matrix products; here they are waited for",
    ),
    Row(
        *("GPT-7B, ZeRO-3, A100: at least", "DeepSpeed, blogs/deepspeed-ulysses", "TFLOP/s/GPU", 175),
        job("llama2-7b", "a100-80", 8, 8192, 2),
    ),
    Row(
        *("Llama-7B, 8 V100-32, 16k, 1,000 steps of 64 sequences", POSE, "hours", 13.7, pose(16_384)),
        "64 sequences of 16,384 tokens in 49 s would be more than a V100's peak: fewer, or shorter ones",
    ),
    Row("the same, 2k (PoSE's own sequences): middle of 3.5 to 3.8", POSE, "hours", 3.65, pose(2048), "fitted"),
    Row(
        *("the same, 16k, memory", POSE, "GB a GPU", 31, pose(16_384)),
        "it holds the logits of all tokens, with fp32 copies: 6 GB and more; its micro-batch is not known",
    ),
)
NOTES = list(dict.fromkeys(row.note for row in ROWS if row.note not in PLAIN))


def letter(note):
    """What stands for an explanation in the page's table."""
    return "abcdefghij"[NOTES.index(note)]
