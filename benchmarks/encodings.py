"""The cost of an encoding: a whole model's forward, loss and backward by each, compared with RoPE's.

The weights are the same, as far as encodings share them. ``randpe`` has no part: it is RoPE at positions that each
forward draws again, so no two of its outcomes can be compared. What an encoding itself learns has no part in the
comparison with the truth: some of its gradients are sums that cancel, or are 0 whatever the text (FIRE's last bias adds
one number to every score), and a relative error means nothing there. The tests compare them term by term.
"""

from collections.abc import Mapping
from typing import TypeVar

from benchmarks import models
from benchmarks.benchmark_case import BenchmarkCase, Setting, Truth
from benchmarks.measure import Runner
from benchmarks.shapes import BenchmarkModel
from tape_ds import encodings

_T = TypeVar("_T")
BIASED = ("alibi", "t5", "fire")
ENCODINGS = tuple(name for name in encodings.available() if name != "randpe")


def case(shape: BenchmarkModel, setting: Setting) -> BenchmarkCase:
    """Return every encoding by torch's SDPA, which computes all of them on every device, and on a GPU those that add to
    the scores by FlexAttention too: which of the two a learned bias should train with is not measured yet."""
    member = models.family(models.sizes(shape), setting)
    ids = models.tokens(shape, setting.device)

    def build(encoding: str, backend: str) -> Runner:
        runner = models.training(member(encoding, backend), ids)
        return runner._replace(outcome=lambda: _shared(runner.outcome()))

    def truth(encoding: str) -> Truth:
        return _shared(models.truth(member(encoding, "sdpa"), models.first_tokens(ids)))

    found = models.by_backend(build, truth, ["sdpa"], ENCODINGS)
    if setting.device.type == "cuda":
        found.entries.extend(models.by_backend(build, truth, ["flex"], BIASED).entries)
    return found


def _shared(found: Mapping[str, _T]) -> dict[str, _T]:
    return {name: value for name, value in found.items() if ".position" not in name}
