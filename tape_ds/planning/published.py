"""Speeds and lengths that others published, as questions to the planner: how far off it is, and why.

Rows marked ``fitted`` gave :data:`tape_ds.planning.hardware.GPUS` its ``linear_share``; all others are predictions.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tape_ds.planning import clock, memory
from tape_ds.planning.hardware import Gpu, find
from tape_ds.planning.job import Job
from tape_ds.planning.layout import Layers, Layout
from tape_ds.planning.shape import Sizes, Trained, published, sizes

TOLERANCE = 0.2


def _llama(name: str) -> Sizes:
    """A published Llama with plain RoPE."""
    return sizes(published(name))


def _mpt() -> Sizes:
    """MPT-7B: a Llama-2-7B but for two matrices in its feed-forward and tied embeddings; 6.65 B parameters."""
    return replace(_llama("llama2-7b"), inner=16_384, vocabulary=50_368, tied=True, gated=False)


@dataclass(frozen=True)
class Row:
    """One published figure."""

    name: str
    source: str
    quantity: str
    """What is compared, with its unit."""
    published: float
    job: Job
    measure: Callable[[Job], float]
    fitted: bool = False
    """Whether it gave a GPU its ``linear_share``."""
    because: str = ""
    """Why the prediction is further off than :data:`TOLERANCE`; empty where it is not."""

    @property
    def predicted(self) -> float:
        """By the planner."""
        return self.measure(self.job)

    @property
    def ratio(self) -> float:
        """Predicted over published."""
        return self.predicted / self.published


def _tokens_per_gpu(job: Job) -> float:
    return clock.of(job).tokens_per_second / job.layout.gpus


def _mfu(job: Job) -> float:
    return 100 * clock.of(job).mfu


def _job(
    model: Sizes,
    gpu: Gpu | str,
    gpus: int,
    length: int,
    micro_batch: int,
    again: Layers | None = 1,
    *,
    zero: int = 3,
    tensor: int = 1,
    accumulation: int = 1,
    fa2: bool = True,
    fused: bool = True,
) -> Job:
    layout = Layout(gpus=gpus, zero=zero, tensor=tensor, micro_batch=micro_batch, checkpoint_layers=again)
    return Job(
        model=model,
        trained=Trained.everything(),
        length=length,
        global_batch=micro_batch * layout.replicas * accumulation,
        layout=layout,
        gpu=find(gpu) if isinstance(gpu, str) else gpu,
        fa2=fa2,
        fused=fused,
    )


def rows() -> list[Row]:
    """All of them."""
    foundry = "llm-foundry, scripts/train/benchmarking/README.md"
    titan = "torchtitan, benchmarks/llama3_h100_202412 and llama3-8b_h200_202506"
    per_gpu = "tokens/s/GPU"
    mpt, seven, eight, seventy = _mpt(), *(_llama(name) for name in ("llama2-7b", "llama3-8b", "llama2-70b"))
    slow_h100 = replace(find("h100-80"), bandwidth=2.4e12)
    eight_bit = "computed in FP8, at up to twice the 16-bit rate, which this stack does not do"
    weak = "its cards are held to 500 W of an H100's 700, which slows their matrix products down"
    return [
        Row("MPT-7B, 8 A100-80, 8k", foundry, per_gpu, 3206, _job(mpt, "a100-80", 8, 8192, 8), _tokens_per_gpu, True),
        Row("MPT-7B, 8 A100-80, 4k", foundry, per_gpu, 3684, _job(mpt, "a100-80", 8, 4096, 16), _tokens_per_gpu, True),
        Row("MPT-7B, 8 A100-40, 8k", foundry, per_gpu, 2887, _job(mpt, "a100-40", 8, 8192, 3), _tokens_per_gpu),
        Row("MPT-7B, 8 H100, 8k", foundry, per_gpu, 6935, _job(mpt, "h100-80", 8, 8192, 8), _tokens_per_gpu, True),
        Row("MPT-7B, 8 H100, 4k", foundry, per_gpu, 8611, _job(mpt, "h100-80", 8, 4096, 16), _tokens_per_gpu, True),
        Row(
            *("MPT-7B, 8 H100, 2k, nothing recomputed", foundry, per_gpu, 10_643),
            *(_job(mpt, "h100-80", 8, 2048, 6, None), _tokens_per_gpu),
        ),
        Row(
            *("Llama-3.1-8B, 8 H100 (500 W, HBM2e), 8k", titan, per_gpu, 5762),
            *(_job(eight, slow_h100, 8, 8192, 2, "selective_matmuls", fused=False), _tokens_per_gpu),
            because=weak,
        ),
        Row(
            *("the same, compiled", titan, per_gpu, 6667),
            *(_job(eight, slow_h100, 8, 8192, 2, "selective_matmuls"), _tokens_per_gpu),
            because=weak,
        ),
        Row(
            *("the same, compiled, FP8", titan, per_gpu, 8532),
            *(_job(eight, slow_h100, 8, 8192, 2, "selective_matmuls"), _tokens_per_gpu),
            because=eight_bit,
        ),
        Row(
            *("Llama-3.1-8B, 32 H200, 8k, FP8", titan, per_gpu, 10_938),
            *(_job(eight, "h200", 32, 8192, 2, "selective_matmuls", fa2=False), _tokens_per_gpu),
            because=eight_bit,
        ),
        Row(
            *("Llama-2-7B, 8 H100, 4k, FP8", "NeMo, performance_summary.md", per_gpu, 16_634),
            *(_job(seven, "h100-80", 8, 4096, 1, None, zero=1, accumulation=16, fa2=False),),
            *(_tokens_per_gpu,),
            because=eight_bit,
        ),
        Row(
            *("2 B to 462 B, H100 clusters: middle of 41 to 48 %", "Megatron-LM, README", "MFU, %", 44.5),
            *(_job(seventy, "h100-80", 512, 4096, 1, None, zero=1, tensor=8, accumulation=16),),
            *(_mfu,),
            because="it hides sums of hidden states behind matrix products; here they are waited for",
        ),
        Row(
            *("GPT-7B, ZeRO-3, A100: at least", "DeepSpeed, blogs/deepspeed-ulysses", "TFLOP/s/GPU", 175),
            *(_job(seven, "a100-80", 8, 8192, 2), lambda job: clock.of(job).mfu * 312),
        ),
        Row(
            *("Llama-7B, 8 V100-32, 16k, 1,000 steps of 64 rows", "PoSE, imgs/efficiency.png", "hours", 13.7),
            *(_v100(16_384), _hours),
            because="64 rows of 16,384 tokens in 49 s would be more than a V100's peak: fewer rows, or shorter ones",
        ),
        Row(
            *("the same, 2k (PoSE's own rows): middle of 3.5 to 3.8", "PoSE, imgs/efficiency.png", "hours", 3.65),
            *(_v100(2048), _hours, True),
        ),
        Row(
            *("the same, 16k, memory", "PoSE, imgs/efficiency.png", "GB a GPU", 31),
            *(_v100(16_384), lambda job: memory.estimate(job).peak.total / 1e9),
            because="it holds the logits of all tokens, with fp32 copies: 6 GB and more; its micro-batch is not known",
        ),
    ]


def _v100(length: int) -> Job:
    job = _job(_llama("llama2-7b"), "v100-32", 8, length, max(1, 8192 // length), fused=False)
    layout = replace(job.layout, offload_optimizer="cpu", offload_weights="cpu")
    return replace(job, layout=layout, global_batch=64, steps=1000)


def _hours(job: Job) -> float:
    return clock.of(job).step * job.steps / 3600
