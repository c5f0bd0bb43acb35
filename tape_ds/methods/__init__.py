"""Registry of extension methods: what of a model is trained, and from which RoPE parameters and encoding it starts.

A method is a line of :data:`METHODS`. It receives a loaded model with its final encoding, decides by exact parameter
names what is trained, and freezes the rest. The names are the contract: they are printed, asserted, and say what a
checkpoint holds. The table is read by the checks of a recipe, so nothing heavy is imported before :func:`prepare`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tape_ds.errors import Problem, UserError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Method:
    trains: Literal["groups", "adapters", "everything", "nothing"]
    """``groups``: position updates, norms, embeddings, as the recipe switches them; ``adapters``: LoRA, and groups."""
    encoding: str = "rope"
    """Encoding where the recipe names none."""
    learns_positions: bool = False
    """Whether it is about training the encoding's own parameters."""
    embeddings: bool = False
    """Whether the token embeddings are trained where the recipe does not say."""
    rope_parameters: Mapping[str, Any] = field(default_factory=dict)
    """``rope_parameters`` that make the method what it is; the recipe may add to them."""
    grouped: bool = False
    """Whether attention is cut into shifted groups while it trains (S2-Attn)."""
    drops_rope: bool = False
    """Whether ``encoding`` takes the place of the model's RoPE, at the model's own length: sequences are no longer, and
    scores are scaled from there on, by ``score_scale``."""
    position_options: Mapping[str, Any] = field(default_factory=dict)
    """``position_options`` that the recipe may change."""


METHODS: Mapping[str, Method] = {
    "tape": Method("groups", encoding="tape", learns_positions=True),
    "tape+lora": Method("adapters", encoding="tape", learns_positions=True, embeddings=True),
    # norms and embeddings beside the adapters: LongLoRA (Chen et al. 2023, arXiv:2309.12307, section 3.3)
    "lora": Method("adapters", embeddings=True),
    "longlora": Method("adapters", embeddings=True, grouped=True),
    # a larger base instead of interpolation (Roziere et al. 2023, arXiv:2308.12950, section 2.4)
    "theta": Method("adapters", embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "full": Method("everything", embeddings=True),
    # Gelberg et al. 2025, arXiv:2512.12167; 0.103 is their scale for SmolLM
    "drope": Method(
        "everything", encoding="nope", embeddings=True, drops_rope=True, position_options={"score_scale": 0.103}
    ),
    "norms": Method("groups"),
    "linear": Method("nothing", rope_parameters={"rope_type": "linear"}),
    "ntk": Method("nothing", rope_parameters={"rope_type": "ntk"}),
    "dynamic": Method("nothing", rope_parameters={"rope_type": "dynamic"}),
    "yarn": Method("nothing", rope_parameters={"rope_type": "yarn"}),
    "yarn_revised": Method("nothing", rope_parameters={"rope_type": "yarn_revised"}),
}


def available() -> list[str]:
    return sorted(METHODS)


def trained() -> list[str]:
    return [name for name in available() if METHODS[name].trains != "nothing"]


@dataclass(frozen=True)
class Trained:
    """A model ready for training, and the exact names of its trained parameters."""

    model: "nn.Module"
    names: tuple[str, ...]


def prepare(name: str, model: "nn.Module", settings: Any) -> Trained:
    """Choose what ``model`` trains; ``settings`` is the method section of a recipe."""
    from tape_ds.attention.shifted_groups import use_groups
    from tape_ds.methods import adapters, groups
    from tape_ds.models import decoder_shape

    method = METHODS[name]
    prepared = model.requires_grad_(method.trains == "everything")
    for router in decoder_shape.routers(model).values():
        router.requires_grad_(method.trains == "everything" and bool(getattr(settings, "train_router", False)))
    if method.trains == "groups":
        for parameter in map(model.get_parameter, groups.names(model, settings)):
            parameter.requires_grad_(True)
    elif method.trains == "adapters":
        prepared = adapters.attach(model, settings)
    if method.grouped:
        use_groups(model, settings.group_tokens)
    names = tuple(name for name, parameter in prepared.named_parameters() if parameter.requires_grad)
    if not names and method.trains != "nothing":
        remedy = "set train_position, train_norms or train_embeddings, or choose another method"
        raise UserError(Problem("method", name, "there is nothing to train", remedy))
    return Trained(prepared, names)


def assert_trainable(model: "nn.Module", names: tuple[str, ...]) -> None:
    """Raise RuntimeError unless exactly ``names`` require gradients: a wrapper may have changed that."""
    found = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if found != set(names):
        extra, lost = sorted(found - set(names)), sorted(set(names) - found)
        raise RuntimeError(f"trainable parameters changed: not meant to train {extra}, meant to train {lost}")
