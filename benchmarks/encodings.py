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
from benchmarks.shapes import Shape
from tape_ds import encodings

_T = TypeVar("_T")
BIASED = ("alibi", "t5", "fire")
ENCODINGS = tuple(name for name in encodings.available() if name != "randpe")


def case(shape: Shape, setting: Setting) -> BenchmarkCase:
    """Return every encoding by torch's SDPA, which computes all of them on every device, and on a GPU those that add to
    the scores by FlexAttention too: which of the two a learned bias should train with is not measured yet."""
    member = models.family(models.sizes(shape), setting)

    def shared(found: Mapping[str, _T]) -> dict[str, _T]:
        return {name: value for name, value in found.items() if ".position" not in name}

    def build(encoding: str, backend: str) -> Runner:
        runner = models.training(member(encoding, backend), shape)
        return runner._replace(outcome=lambda: shared(runner.outcome()))

    def truth(encoding: str) -> Truth:
        return shared(models.truth(member(encoding, "sdpa"), shape))

    found = models.compared(build, truth, ["sdpa"], ENCODINGS)
    if setting.device.type == "cuda":
        found.entries.extend(models.compared(build, truth, ["flex"], BIASED).entries)
    return found
