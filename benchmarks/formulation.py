"""Our TAPE against a transcription of the published formulation, whole models on the same weights.

"At least 1.7x faster in at most 0.6x the memory" is meant of ``published, three eager`` on a CPU: three attentions by
softmax matrices; in the table, at least 1.70 and 1.67 times ours. ``published, one eager`` shares one matrix between
the three values, as the published code does where it has no flash-attention; ``published, three sdpa`` is its form with
flash-attention.
"""

import functools

from torch import nn

from benchmarks import models
from benchmarks.benchmark_case import BenchmarkCase, CaseEntry, Setting
from benchmarks.measure import Runner
from benchmarks.reference_formulation import ATTENTIONS, Transcription
from benchmarks.shapes import BenchmarkModel
from tape_ds import TapeForCausalLM


def case(shape: BenchmarkModel, setting: Setting) -> BenchmarkCase:
    """Ours on torch's SDPA, and the transcription with each of its attentions."""
    fields = models.sizes(shape)
    ids = models.tokens(shape, setting.device)

    @functools.cache
    def ours() -> TapeForCausalLM:
        return models.build(fields, "tape", "sdpa", setting)

    def build(attention: str | None) -> Runner:
        model: nn.Module = ours()
        if attention is not None:
            model = Transcription(ours().config, attention).to(setting.device, setting.dtype)
            model.load_state_dict(ours().state_dict(), assign=True)
        return models.training(model, ids)

    entries = [CaseEntry("ours", "tape", functools.partial(build, None))]
    entries += [CaseEntry(f"published, {name}", "tape", functools.partial(build, name)) for name in ATTENTIONS]
    return BenchmarkCase(entries, {"tape": lambda: models.truth(ours(), models.first_tokens(ids))})
