"""One question to the planner: a model, its trained parameters, sequences, layout and GPU."""

import functools
from dataclasses import dataclass

from tape_ds.distributed.layout import Layout
from tape_ds.planning import shape
from tape_ds.planning.hardware import Gpu
from tape_ds.planning.shape import Sizes, Tensors, TrainedShape


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that decides memory and time."""

    model: Sizes
    trained: TrainedShape
    length: int  # tokens of a sequence
    global_batch: int  # sequences of an optimizer step
    layout: Layout
    gpu: Gpu | None = None  # None: a CPU, whose time is not predicted
    steps: int = 0  # optimizer steps of the run; 0: unknown
    element: int = 2  # bytes of a number that the model computes with
    # bytes of a number of the position state; None: as `element`
    state_element: int | None = None
    fused: bool = True
    """Norms and feed-forward by fused kernels (Liger's), as on a GPU; else by torch's operators."""
    # norms by torch's fused kernel, whatever computes the feed-forward
    fused_norms: bool = False
    wide_attention: bool = False
    """A wide value by one fused kernel (attention_backend: triton); else by one call of a library's kernel for
    each half."""
    # tokens that attention is computed over, where it is cut into groups
    attention_span: float | None = None
    documents: float | None = None
    """Documents of a sequence, of equal length, each attending to itself alone, in torch's call for packed sequences
    (``torch.nn.attention.varlen``). None: sequences have no borders."""
    # the frozen linear layers of blocks are held in 4 bits
    quantised: bool = False

    # a whole untouched copy of the base is held as well
    distilled: bool = False
    short: tuple[int, int] | None = None
    """Tokens of LongCE's shortest short context and its stride: sequences are read again from later tokens on, without
    gradients. None: they are not."""

    @functools.cached_property
    def tensors(self) -> tuple[Tensors, ...]:
        return shape.tensors(self.model, self.trained)

    @functools.cached_property
    def own(self) -> tuple[Tensors, ...]:
        """A rank's parameters, before ZeRO shards them."""
        return shape.tensors(self.model, self.trained, self.layout.tensor)

    @property
    def parameters(self) -> int:
        return shape.total(self.tensors)

    @property
    def trained_parameters(self) -> int:
        return shape.total(self.tensors, trained=True)

    @property
    def tokens(self) -> int:
        """Tokens of one forward on one rank."""
        return self.layout.micro_batch * -(-self.length // self.layout.sequence)

    @property
    def attended(self) -> float:
        """Tokens that attention is computed over."""
        if self.attention_span is None:
            return self.length / (self.documents or 1)
        return self.attention_span

    @property
    def read_again(self) -> float:
        """Tokens that short contexts have, for each token of a sequence; all of one document."""
        if self.short is None or self.length <= self.short[0]:
            return 0.0
        short, stride = self.short
        # the first targets have no longer context
        times = -(-(self.length - short) // stride) - 1
        return times * min(short + stride, self.length) / self.length

    @property
    def attention_calls(self) -> int:
        """Calls of attention in a layer's forward: one for each key width of the value, or one fused call."""
        if self.model.carried and not self.wide_attention:
            return 2
        return 1

    @property
    def accumulation(self) -> int:
        """Forwards and backwards of an optimizer step."""
        return max(1, -(-self.global_batch // (self.layout.micro_batch * self.layout.data)))

    @property
    def trains_head(self) -> bool:
        """Whether the output head is trained, by itself or as the embedding that it is tied to."""
        return self.trained.linears or (self.model.tied and self.trained.embeddings)

    @property
    def masters(self) -> bool:
        """Whether the engine holds separate weights for the optimizer: at every stage but 0 in fp32."""
        return self.layout.zero is not None and (self.layout.zero > 0 or self.element < 4)


def possible(job: Job) -> bool:
    """Return whether a run can have this layout: numbers divide each other, and the combination is one that recipes
    allow (:mod:`tape_ds.config.scale` explains the refusals)."""
    layout = job.layout
    model = job.model
    tensor = layout.tensor
    sequence = layout.sequence
    if job.global_batch % (layout.micro_batch * layout.data):
        return False
    if any(
        model.heads % size or (model.groups % size and size % model.groups)
        for size in (tensor, sequence)
    ):
        return False
    if max(tensor, sequence) > 1 and (
        job.attention_span is not None or job.distilled or model.counted
    ):
        return False
    if job.distilled and layout.zero == 3:
        return False
    whole = job.quantised or model.summed_bias
    return tensor == 1 or (layout.zero in (1, 2) and not whole)
