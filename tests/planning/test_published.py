"""Predictions against speeds that others published, within 20 %: the rows of the table in docs/results/planner.md that
need no explanation. Rows that are marked as fitted there gave :data:`tape_ds.planning.hardware.GPUS` its share of
matrix products; all others are predictions."""

from dataclasses import replace

import pytest

from tape_ds.distributed.layout import Layout
from tape_ds.planning.hardware import find
from tape_ds.planning.job import Job
from tape_ds.planning.prediction import Plan
from tape_ds.planning.shape import TrainedShape, sizes
from tests.planning.helpers import published

SPEED = "tokens/s/GPU"
MEASURES = {
    SPEED: lambda plan: plan.step.tokens_per_second / plan.job.layout.world,
    "TFLOP/s/GPU": lambda plan: plan.step.mfu * plan.job.gpu.peak / 1e12,
    "hours": lambda plan: plan.step.all * plan.job.steps / 3600,
}


def job(
    model,
    gpu,
    gpus,
    length,
    sequences,
    again=1,
    *,
    zero=3,
    tensor=1,
    accumulation=1,
    fa2=True,
    **changes,
):
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
    asked = job(
        "llama2-7b",
        "v100-32",
        8,
        length,
        max(1, 8192 // length),
        fused=False,
        global_batch=64,
        steps=1000,
    )
    return replace(
        asked, layout=replace(asked.layout, offload_optimizer="cpu", offload_weights="cpu")
    )


# a Llama-2-7B but for its feed-forward (two matrices of 16,384 columns, here three of two thirds) and tied embeddings
MPT = replace(sizes(published("llama2-7b")), inner=10_923, vocabulary=50_368, tied=True)
SLOW_H100 = replace(find("h100-80"), bandwidth=2.4e12)
TITAN = job("llama3-8b", SLOW_H100, 8, 8192, 2, "selective")
ROWS = (  # name, published, predicted, quantity, job
    # llm-foundry, scripts/train/benchmarking/README.md
    ("MPT-7B, 8 A100-80, 8k", 3206, 3301, SPEED, job(MPT, "a100-80", 8, 8192, 8)),
    ("MPT-7B, 8 A100-80, 4k", 3684, 3620, SPEED, job(MPT, "a100-80", 8, 4096, 16)),
    ("MPT-7B, 8 A100-40, 8k", 2887, 3244, SPEED, job(MPT, "a100-40", 8, 8192, 3)),
    ("MPT-7B, 8 H100, 8k", 6935, 7368, SPEED, job(MPT, "h100-80", 8, 8192, 8)),
    ("MPT-7B, 8 H100, 4k", 8611, 8337, SPEED, job(MPT, "h100-80", 8, 4096, 16)),
    (
        "MPT-7B, 8 H100, 2k, nothing recomputed",
        10_643,
        11_606,
        SPEED,
        job(MPT, "h100-80", 8, 2048, 6, None),
    ),
    # torchtitan, benchmarks/llama3_h100_202412
    ("Llama-3.1-8B, 8 H100 (500 W), 8k", 5762, 6084, SPEED, replace(TITAN, fused=False)),
    ("Llama-3.1-8B, 8 H100 (500 W), 8k, compiled", 6667, 6885, SPEED, TITAN),
    # DeepSpeed, blogs/deepspeed-ulysses, and PoSE, imgs/efficiency.png
    ("GPT-7B, ZeRO-3, A100", 175, 152, "TFLOP/s/GPU", job("llama2-7b", "a100-80", 8, 8192, 2)),
    ("PoSE, 2k", 3.65, 3.9, "hours", pose(2048)),
)


@pytest.mark.parametrize(
    "name, figure, on_the_page, quantity, asked", ROWS, ids=lambda value: str(value)[:40]
)
def test_a_prediction_is_near_and_that_of_the_page(name, figure, on_the_page, quantity, asked):
    predicted = MEASURES[quantity](Plan(asked))
    assert round(predicted, 0 if predicted >= 100 else 1) == on_the_page
    assert 0.8 <= predicted / figure <= 1.2
