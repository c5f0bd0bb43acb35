"""The section of an extension's recipe about its method (:mod:`tape_ds.methods`), and what each method forbids."""

import importlib.util
from collections.abc import Callable, Iterator, Mapping

from pydantic import Field, field_validator

from tape_ds import encodings
from tape_ds.config import deepspeed_config
from tape_ds.config.sections import learns
from tape_ds.config.trainer import RecipeView
from tape_ds.distributed.layout import SEQUENCE, TENSOR
from tape_ds.encodings import trained_rope
from tape_ds.errors import Problem, did_you_mean
from tape_ds.fields import DERIVED, Section, Tokens, WrongValueError, rule
from tape_ds.methods import METHODS, Method, trained

OF_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
LORA_TARGETS = (*OF_ATTENTION, "gate_proj", "up_proj", "down_proj")
"""The linear maps of a Llama block. The position updates are no LoRA targets: they are trained whole."""
LLAMAS_MAPS: Mapping[str, bool] = {name: name in OF_ATTENTION for name in LORA_TARGETS}
"""Names of the linear maps of a Llama block -> whether attention has them."""
ALL_LINEAR = "all-linear"
"""Of adapter targets: every linear map of the family's blocks, as peft names it."""
GROUPS = ("train_position", "train_norms", "train_embeddings")
ADAPTERS = ("lora_r", "lora_alpha", "lora_dropout", "lora_targets", "load_in_4bit")


_READ_BY: dict[str, Callable[[Method], bool]] = {
    **dict.fromkeys(ADAPTERS, lambda method: method.trains == "adapters"),
    **dict.fromkeys(GROUPS, lambda method: method.trains not in ("everything", "nothing")),
    "group_tokens": lambda method: method.grouped,
    "theta_linear": lambda method: "rope_theta" in method.rope_parameters,
    "train_router": lambda method: method.trains == "everything",
}
"""Field -> whether a method reads it."""


def unread(method: Method) -> set[str]:
    return {field for field, reads in _READ_BY.items() if not reads(method)}


class MethodSection(Section):
    """Parameters that are trained."""

    method: str = "tape"
    """Name of an extension method (docs/extending.md)."""
    train_position: bool = DERIVED
    """Train the encoding's own parameters (TAPE's position updates); default true for ``tape``, ``tape+lora`` and
    ``full`` if the encoding has any."""
    train_norms: bool = True
    """Train the norms' weights."""
    train_embeddings: bool = DERIVED
    """Train the token embeddings, which are the output head too if tied; default true for ``full`` and, as in
    LongLoRA, for every method with adapters."""
    train_router: bool = False
    """``full``: train the router of experts too; there is no loss that balances them, so few experts may get all
    tokens."""
    lora_r: int = Field(8, ge=1)
    """Rank of the adapters."""
    lora_alpha: float = Field(16, gt=0)
    """Their scale is lora_alpha / lora_r."""
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    """Share of the adapters' input that is dropped."""
    lora_targets: list[str] = list(OF_ATTENTION)
    """Linear maps that get an adapter in every block, by the names of the model's family; ``all-linear``: every one.
    Left out, or null: those of attention, in any family."""
    load_in_4bit: bool = False
    """Adapters over a base quantised to 4-bit NormalFloat, twice (QLoRA); needs bitsandbytes, and no ZeRO-3."""
    group_tokens: Tokens = DERIVED
    """``longlora``: tokens of an attention group in training, even; default a quarter of the window."""
    theta_linear: bool = False
    """``theta``: interpolate linearly on top, by target_length / native length, as the TAPE paper's code did."""

    distill: bool = False
    """Keep the model's predictions within its native window: a part of the loss is the divergence from a frozen copy of
    the untouched model (docs/extending.md)."""
    distill_weight: float = Field(0.5, gt=0, lt=1)
    """Weight of the divergence in the loss; the rest is the cross-entropy's."""

    @field_validator("method")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in METHODS:
            raise WrongValueError("unknown method", did_you_mean(name, METHODS))
        return name

    @field_validator("lora_targets")
    @classmethod
    def _linear_maps(cls, targets: list[str]) -> list[str]:
        if not targets:
            remedy = f"{ALL_LINEAR}, or names of linear maps, such as " + ", ".join(LORA_TARGETS)
            raise WrongValueError("no targets", f"give {remedy}")
        if ALL_LINEAR in targets and len(targets) > 1:
            raise WrongValueError(f"{ALL_LINEAR} has all the others in it", f"give {ALL_LINEAR}")
        return targets

    @property
    def chosen(self) -> Method:
        return METHODS[self.method]

    def outline(self) -> str:
        groups = []
        for name in ("position", "norms", "embeddings"):
            if getattr(self, f"train_{name}"):
                groups.append(name)
        trained: list[str] = [self.chosen.trains]
        if trained == ["groups"]:
            trained = groups
        elif trained == ["adapters"]:
            trained += groups
        return f"{self.method}, training {', '.join(trained)}"

    @property
    def unused_fields(self) -> set[str]:
        fields = unread(self.chosen)
        if not self.train_router:
            fields.add("train_router")
        # nor in a checkpoint's identity, so that runs before there was distillation resume
        if not self.distill:
            fields |= {"distill", "distill_weight"}
        return fields

    @rule("method", "distill", "deepspeed", SEQUENCE, TENSOR, "torch_compile")
    def _distillation(self, recipe: RecipeView) -> Iterator[Problem]:
        if not self.distill:
            return
        # every process holds the whole untouched model outside the engine
        reasons = {
            f"method = {self.method!r} trains nothing": not recipe.trains,
            "ZeRO-3 would shard the untouched model too (use deepspeed: zero1 or zero2)": recipe.trains
            and deepspeed_config.stage(recipe.deepspeed or {}) == 3,
            "processes that share a sequence have parts of its tokens": recipe.scale.sequence_parallel_size
            > 1,
            "processes that share layers have parts of the vocabulary": recipe.scale.tensor_parallel_size
            > 1,
            "torch_compile does not take a second model's tokens": bool(
                recipe.trainer.torch_compile
            ),
        }
        if wrong := "; ".join(reason for reason, holds in reasons.items() if holds):
            yield Problem("distill", True, wrong, "change that, or distill: false")

    @rule(
        "method",
        *ADAPTERS,
        "group_tokens",
        "theta_linear",
        "train_router",
        "distill",
        "distill_weight",
        *GROUPS,
    )
    def _unused(self, recipe: RecipeView) -> Iterator[Problem]:
        for field in sorted(recipe.given & self.unused_fields):
            value = getattr(self, field)
            holds = MethodSection.model_fields[field].default
            if field in GROUPS:
                holds = self.chosen.trains == "everything"
            # "off" may stand where nothing reads it
            if value == holds and isinstance(holds, bool | None):
                continue
            if field == "distill_weight":
                yield Problem(field, value, "distill is off", "distill: true, or remove it")
                continue
            others = ", ".join(name for name, method in METHODS.items() if _READ_BY[field](method))
            remedy = f"remove it (where a base has it: {field}: null), or method: {others}"
            yield Problem(field, value, f"method = {self.method!r} does not read it", remedy)
        resumed = recipe.trainer.resume_from_checkpoint
        # auto: if there is a checkpoint
        if resumed and resumed != "auto" and not recipe.trains:
            wrong = f"method = {self.method!r} takes no steps: there is nothing to resume"
            yield Problem("resume_from_checkpoint", resumed, wrong, "remove it")

    @rule("method", "position_encoding", "position_options", *GROUPS)
    def _trains_something(self, recipe: RecipeView) -> Iterator[Problem]:
        encoding = recipe.model.position_encoding
        options = recipe.model.position_options
        method = self.chosen
        name = self.method
        if encodings.check_options(encoding, options) or method.trains in ("everything", "nothing"):
            return
        can = learns(encoding, options)
        has_none = f"position_encoding = {encoding!r} has no position updates"
        if options:
            has_none += " with these options"
        if self.train_position and not method.learns_positions:
            ours = ", ".join(name for name, method in METHODS.items() if method.learns_positions)
            yield Problem(
                "train_position",
                True,
                f"method = {name!r} trains no position updates",
                f"method: {ours}",
            )
        elif self.train_position and not can:
            updated = "position_encoding: tape"
            if learns(encoding, {}):
                updated = "position_options: {}"
            yield Problem("train_position", True, has_none, f"{updated}, or train_position: false")
        elif method.learns_positions and "train_position" not in recipe.given and not can:
            others = ", ".join(each for each in trained() if not METHODS[each].learns_positions)
            updated = "position_encoding: tape"
            if learns(encoding, {}):
                updated = "position_options: {}"
            yield Problem("method", name, has_none, f"{updated}, or another method: {others}")
        if method.trains == "groups" and not any(getattr(self, switch) for switch in GROUPS):
            yield Problem(
                "method",
                name,
                "nothing is left to train",
                " or ".join(f"{group}: true" for group in GROUPS),
            )

    @rule("method", "position_encoding", "rope_parameters", "theta_linear")
    def _rope(self, recipe: RecipeView) -> Iterator[Problem]:
        name = self.method
        model = recipe.model
        given = recipe.model.rope_parameters.get("rope_type")
        own = self.chosen.rope_parameters.get("rope_type")
        own = "linear" if own is not None and self.theta_linear else own
        if None not in (own, given) and given not in (own, trained_rope.AUTO):
            remedy = (
                "remove it (where a base has it: rope_parameters: {}), or choose another method"
            )
            yield Problem(
                "rope_parameters.rope_type",
                given,
                f"method = {name!r} is RoPE scaling {own!r}",
                remedy,
            )
        if not self.chosen.drops_rope:
            return
        if model.position_encoding != self.chosen.encoding:
            wrong = f"method = {name!r} puts {self.chosen.encoding!r} in RoPE's place"
            yield Problem(
                "position_encoding", model.position_encoding, wrong, "remove it, or method: full"
            )
        if model.rope_parameters:
            remedy = "remove it (where a base has it: rope_parameters: {}), or method: full"
            yield Problem(
                "rope_parameters", model.rope_parameters, f"method = {name!r} drops RoPE", remedy
            )
        if recipe.data.pose.chunks >= 2:
            wrong = (
                f"method = {name!r} drops RoPE: the model would not see positions that skip ahead"
            )
            yield Problem("pose_chunks", recipe.data.pose.chunks, wrong, "give pose_chunks: 1")

    @rule("method", "group_tokens", "window", "position_encoding")
    def _groups(self, recipe: RecipeView) -> Iterator[Problem]:
        group = self.group_tokens
        window = recipe.data.window
        encoding = recipe.model.position_encoding
        if not self.chosen.grouped:
            return
        if group < 2 or group % 2:
            yield Problem(
                "group_tokens",
                group,
                "groups are shifted by half of one",
                "give an even number, 2 or more",
            )
        elif group >= window:
            wrong = f"not shorter than the window of {window} tokens: nothing would be cut"
            yield Problem(
                "group_tokens", group, wrong, "give less, usually a quarter of the window"
            )
        if encoding in encodings.available() and encodings.options_of(encoding, {}).biases_scores:
            wrong = f"method = {self.method!r} cannot cut an encoding that biases scores"
            yield Problem(
                "position_encoding", encoding, wrong, "position_encoding: rope, or method: lora"
            )

    @rule("method", "load_in_4bit", "deepspeed", SEQUENCE, TENSOR)
    def _machines(self, recipe: RecipeView) -> Iterator[Problem]:
        for name in (SEQUENCE, TENSOR):
            size = getattr(recipe.scale, name)
            if size > 1 and self.chosen.grouped:
                wrong = f"{self.method} attends within groups, and needs every head in one process"
                yield Problem(
                    name, size, wrong, "remove it, or choose a method with full attention: lora"
                )
        size = recipe.scale.tensor_parallel_size
        if size > 1 and self.load_in_4bit:
            yield Problem(
                TENSOR,
                size,
                "a weight in 4 bits cannot be cut",
                f"remove it, or load_in_4bit: false, or {TENSOR}: 1 and deepspeed: zero3",
            )
        if not self.load_in_4bit or self.chosen.trains != "adapters":
            return
        reasons = []
        if not recipe.elsewhere and importlib.util.find_spec("bitsandbytes") is None:
            reasons.append("bitsandbytes is not installed (pip install bitsandbytes)")
        if recipe.deepspeed and deepspeed_config.stage(recipe.deepspeed) == 3:
            reasons.append(
                "ZeRO-3 cannot shard packed 4-bit weights (use deepspeed: zero1 or zero2)"
            )
        if reasons:
            yield Problem(
                "load_in_4bit", True, "; ".join(reasons), "change that, or load_in_4bit: false"
            )


def targets(settings: MethodSection, is_given: bool, maps: Mapping[str, bool]) -> list[str]:
    """Return the linear maps that get an adapter, by name; none where the method has no adapters.

    Args:
        settings: of the recipe.
        is_given: whether the recipe names them; else they are those of attention.
        maps: names of the linear maps of the model's blocks -> whether attention has them.
    """
    if settings.chosen.trains != "adapters":
        return []
    if not is_given:
        return [name for name, of_attention in maps.items() if of_attention]
    if settings.lora_targets == [ALL_LINEAR]:
        return list(maps)
    return settings.lora_targets


def check_targets(
    settings: MethodSection, family: str, maps: Mapping[str, bool] = LLAMAS_MAPS
) -> Iterator[Problem]:
    """Yield the adapter targets that are none of the linear maps of this family, with the family's own."""
    unknown = [name for name in targets(settings, True, maps) if name not in maps]
    if not unknown:
        return
    wrong = f"no linear map of a {family} block"
    own = ", ".join(name for name, of_attention in maps.items() if of_attention)
    remedy = f"lora_targets: null (those of attention: {own}), or lora_targets: {ALL_LINEAR} ({', '.join(maps)})"
    if len(unknown) > 1:
        yield Problem(
            "lora_targets", unknown, wrong.replace("no linear map", "no linear maps"), remedy
        )
    else:
        close = did_you_mean(unknown[0], maps)
        hint = f"{close} Or " if close.startswith("did") else ""
        yield Problem("lora_targets", unknown[0], wrong, hint + remedy)
