"""The runs whose bytes the planner has to know: stages, lengths, policies, encodings, what is trained."""

from dataclasses import dataclass, fields

from tape_ds import TapeConfig
from tape_ds.distributed.layout import Engine, Layers, Layout
from tape_ds.planning import shape
from tape_ds.planning.job import Job
from tape_ds.planning.shape import TrainedShape

RANKS = 2
RANK = 4
"""Of the adapters."""
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
ENGINE = Engine(
    reduce_bucket=200_000,
    prefetch_bucket=150_000,
    max_live=1_500_000,
    persistence=1_000,
    sub_group=10**9,
)
METHODS = {
    "full": TrainedShape.everything(),
    "frozen": TrainedShape(norms=True, positions=True),
    "lora": TrainedShape(norms=True, adapters=tuple((name, RANK) for name in TARGETS)),
}


@dataclass(frozen=True)
class Case:
    zero: int | None
    """Stage; None: no engine, fp32 weights, autocast."""
    encoding: str
    method: str
    length: int = 512
    layers_again: Layers | None = None
    element: int = 2
    groups: int = 4
    sequences: int = 1
    accumulation: int = 1
    layers: int = 5
    tiles: int = 1
    sequence: int = 1
    tensor: int = 1
    normed_heads: bool = False
    nope_layers: int | None = None

    @property
    def name(self) -> str:
        """What pytest shows: the fields that are given."""
        given = [field for field in fields(self) if getattr(self, field.name) != field.default]
        return "-".join(f"{field.name}_{getattr(self, field.name)}" for field in given)

    def config(self) -> TapeConfig:
        """A small Llama: 4 heads of 64, and 3.9 M parameters."""
        return TapeConfig(
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=self.layers,
            num_attention_heads=4,
            num_key_value_heads=self.groups,
            vocab_size=1_000,
            position_encoding=self.encoding,
            position_options={"nope_layers": self.nope_layers},
            max_position_embeddings=4096,
            qk_norm=self.normed_heads,
        )

    def job(self) -> Job:
        layout = Layout(
            world=1 if self.zero is None else RANKS,
            zero=self.zero,
            sequence=self.sequence,
            tensor=self.tensor,
            micro_batch=self.sequences,
            checkpoint_layers=self.layers_again,
            mlp_tiles=self.tiles,
            engine=ENGINE,
        )
        return Job(
            model=shape.sizes(self.config()),
            trained=METHODS[self.method],
            length=self.length,
            global_batch=self.sequences * layout.data * self.accumulation,
            layout=layout,
            element=self.element,
            fused=False,
        )


CASES = (
    Case(1, "rope", "full"),
    Case(1, "tape", "full", layers_again=1, length=1024),
    Case(2, "tape", "frozen", layers_again=1, groups=2, length=1024),
    Case(2, "rope", "lora", sequences=2),
    Case(3, "tape", "full", layers_again=1, length=768),
    Case(3, "rope", "lora", layers_again=1, groups=1, length=1536),
    Case(1, "alibi", "full", element=4, length=384),
    Case(2, "tape", "full", element=4, accumulation=2),
    Case(3, "rope", "full", layers_again=1, element=4, length=1024),
    Case(None, "rope", "full", layers_again=1, length=1024),
    Case(None, "tape", "frozen"),
    Case(1, "rope", "frozen", layers_again="selective", length=1024),
    Case(1, "tape", "full", layers_again=1, length=2048, tiles=4),
    Case(1, "tape", "frozen", length=2048, sequence=2),
    Case(2, "tape", "full", length=2048, sequence=2, groups=2),
    Case(3, "rope", "full", layers_again=1, length=2048, sequence=2),
    Case(1, "tape", "full", length=1024, tensor=2),
    Case(2, "tape", "frozen", length=1024, tensor=2, groups=2),
    Case(2, "rope", "frozen", length=1024, normed_heads=True),
    Case(1, "tape", "full", length=1024, nope_layers=2),
    Case(1, "pope", "full", length=1024),
    Case(2, "pope", "frozen", layers_again="selective", length=1024, groups=2),
    Case(1, "fox", "full", length=1024),
    Case(1, "repo", "full", length=1024),
)
QUICK = CASES[:6:2]
"""Of these, what every run of the suite looks at."""
