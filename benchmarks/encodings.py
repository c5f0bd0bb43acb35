"""What an encoding costs: a whole model's forward, loss and backward by each, beside RoPE's.

The weights are the same, as far as encodings share them. ``randpe`` has no part: it is RoPE at positions that each
forward draws anew, so no two of its outcomes can be compared.
"""

from benchmarks import models
from benchmarks.benchmark_case import BenchmarkCase, Setting, Truth
from benchmarks.measure import Runner
from benchmarks.shapes import BenchmarkModel
from tape_ds.model import positions

ENCODINGS = tuple(name for name in positions.available() if name != "randpe")


def case(shape: BenchmarkModel, setting: Setting) -> BenchmarkCase:
    """Return every encoding by torch's SDPA, which computes all of them on every device."""
    member = models.family(models.sizes(shape), setting)
    ids = models.tokens(shape, setting.device)

    def build(encoding: str, backend: str) -> Runner:
        return models.training(member(encoding, backend), ids)

    def truth(encoding: str) -> Truth:
        return models.truth(member(encoding, "sdpa"), models.first_tokens(ids))

    return models.by_backend(build, truth, ["sdpa"], ENCODINGS)
