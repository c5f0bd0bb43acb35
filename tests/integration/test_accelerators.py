"""Launchers on accelerators that are not there: every collective of a run gets tensors that its backend takes."""

import json

import pytest

from tests.integration.conftest import forked
from tests.integration.shared_runs import arguments

WORKER = "tests/integration/workers/on_accelerators.py"
EXTEND = "launchers/extend_llama.py"
KINDS = {
    "tensor": ["--tensor_parallel_size", "2", "--deepspeed", "zero2"],
    "sequence": ["--sequence_parallel_size", "2", "--deepspeed", "zero3"],
    "shards": ["--method", "tape+lora", "--deepspeed", "zero1"],
}


@pytest.mark.parametrize("kind", ["tensor", "sequence", pytest.param("shards", marks=pytest.mark.slow)])
def test_every_collective_of_a_run_has_its_tensors_where_its_backend_takes_them(tiny, tmp_path, kind):
    """Start, steps, a save, scores, and a resume. Tensor parallelism summed its weights on the CPU, for NCCL alone."""
    flags = [*arguments(tiny, tmp_path / "run"), "--save_strategy", "steps", "--save_steps", "2", *KINDS[kind]]
    for more in ([], ["--output_dir", str(tmp_path / "on"), "--resume", str(tmp_path / "run" / "checkpoint-2")]):
        ended = forked(WORKER, EXTEND, *flags, *more)
        assert ended.code == 0, ended.output[-4000:]
    (step, first), (again, last) = (_last_step(tmp_path / name) for name in ("run", "on"))
    assert step == again == 4 and first == pytest.approx(last, rel=1e-5)


def _last_step(output):
    line = json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])
    return line["step"], line["loss"]
