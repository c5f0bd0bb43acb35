"""Jobs that tests ask about: Llama-2-7B at 8,192 tokens on eight H100s, with whatever a test changes."""

from dataclasses import replace

from tape_ds.distributed.layout import Layout
from tape_ds.planning import hardware, shape
from tape_ds.planning.job import Job
from tape_ds.planning.shape import TrainedShape
from tape_ds.targets.published import configuration

FROZEN = TrainedShape(norms=True, positions=True)
LAYOUT = set(Layout.__dataclass_fields__)
MODELS = {
    "llama2-7b": "meta-llama/Llama-2-7b-hf",
    "llama2-13b": "meta-llama/Llama-2-13b-hf",
    "llama2-70b": "meta-llama/Llama-2-70b-hf",
    "llama3-8b": "meta-llama/Meta-Llama-3-8B",
}


def published(name, **changes):
    """The configuration of one of these, or of any other that has published sizes."""
    return configuration(MODELS.get(name, name), **changes)


def job(encoding="tape", trained=None, model="llama2-7b", gpu="h100-80", **changes):
    """One job; changes are fields of the layout or of the job."""
    layout = Layout(
        **{
            "world": 8,
            "zero": 3,
            **{name: changes.pop(name) for name in list(changes) if name in LAYOUT},
        }
    )
    asked = Job(
        model=shape.sizes(published(model, position_encoding=encoding)),
        trained=TrainedShape.everything() if trained is None else trained,
        length=8192,
        global_batch=64,
        layout=layout,
        gpu=None if gpu is None else hardware.find(gpu),
    )
    return replace(asked, **changes)
