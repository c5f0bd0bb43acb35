"""The section of an extension's recipe that says what is trained, see :mod:`tape_ds.methods`."""

from collections.abc import Callable, Iterator

from pydantic import Field, field_validator

from tape_ds.errors import Problem, did_you_mean
from tape_ds.fields import DERIVED, Section, WrongValueError
from tape_ds.methods import METHODS, Method

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear maps of a Llama block. The position updates are no LoRA targets: they are trained whole."""
GPTJ_TARGETS = ("q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out")
"""The linear maps of a GPT-J block."""
GROUPS = ("train_position", "train_norms", "train_embeddings")
ADAPTERS = ("lora_r", "lora_alpha", "lora_dropout", "lora_targets", "load_in_4bit")


class MethodSection(Section):
    """What is trained."""

    method: str = "tape"
    """Name of an extension method (docs/methods.md)."""
    train_position: bool = DERIVED
    """Train the encoding's own parameters (TAPE's position updates); default yes for ``tape``, ``tape+lora`` and
    ``full`` wherever the encoding has them."""
    train_norms: bool = True
    """Train the norms' weights."""
    train_embeddings: bool = DERIVED
    """Train the token embeddings; default yes for ``full`` and, as LongLoRA does, for every method with adapters. Tied
    embeddings are the output head, too."""
    lora_r: int = Field(8, ge=1)
    """Rank of the adapters."""
    lora_alpha: float = Field(16, gt=0)
    """Their scale is lora_alpha / lora_r."""
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    """Share of the adapters' input that is dropped."""
    lora_targets: list[str] = ["q_proj", "k_proj", "v_proj", "o_proj"]
    """Linear maps that get an adapter, in every block."""
    load_in_4bit: bool = False
    """Adapters over a base quantised to 4-bit NormalFloat, twice (QLoRA); needs bitsandbytes, and no ZeRO-3."""
    group_tokens: int = DERIVED
    """``longlora``: tokens of an attention group in training, even; default a quarter of the window."""
    theta_linear: bool = False
    """``theta``: interpolate linearly on top, by target_length / native length, as the TAPE paper's code did."""

    distill: bool = False
    """Keep what the model predicts within its native window: the loss is in part the divergence from the untouched
    model, of which a frozen copy is held (docs/methods.md)."""
    distill_weight: float = Field(0.5, gt=0, lt=1)
    """The divergence's part of the loss; the rest is the cross-entropy's."""

    @field_validator("method")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in METHODS:
            start, _, method = name.partition("+")
            if start in METHODS and method in METHODS and METHODS[start].trains == "nothing":
                remedy = f"method: {method}, which starts from rope_parameters: {{rope_type: {start}}}"
                raise WrongValueError("unknown method", remedy)
            raise WrongValueError("unknown method", did_you_mean(name, METHODS))
        return name

    @field_validator("lora_targets")
    @classmethod
    def _linear_maps(cls, targets: list[str]) -> list[str]:
        known = tuple(dict.fromkeys((*LORA_TARGETS, *GPTJ_TARGETS)))
        if not targets:
            raise WrongValueError("no targets", "one or more of: " + ", ".join(known))
        for target in targets:
            if target not in known:
                raise WrongValueError(f"{target!r} is no linear map of a block", did_you_mean(target, known))
        return targets

    @property
    def idle(self) -> set[str]:
        """Fields of this section that mean nothing to the method."""
        method = METHODS[self.method]
        fields: set[str] = set() if method.trains == "adapters" else set(ADAPTERS)
        if not method.grouped:
            fields.add("group_tokens")
        if "rope_theta" not in method.rope_parameters:
            fields.add("theta_linear")
        if method.trains in ("everything", "nothing"):
            fields |= set(GROUPS)
        if not self.distill:  # nor in a checkpoint's identity: runs before there was distillation go on
            fields |= {"distill", "distill_weight"}
        return fields


def with_trait(wanted: Callable[[Method], bool]) -> str:
    """Return names of the methods that ``wanted`` holds for, for a remedy."""
    return ", ".join(name for name, method in METHODS.items() if wanted(method))


def targets_of(method: Method, model_type: str, settings: MethodSection) -> Iterator[Problem]:
    """Adapter targets that this kind of model does not have."""
    family = model_type.removeprefix("tape_")
    known = GPTJ_TARGETS if family == "gptj" else LORA_TARGETS
    for target in settings.lora_targets if method.trains == "adapters" else []:
        if target not in known:
            yield Problem("lora_targets", target, f"no linear map of a {family} block", did_you_mean(target, known))
