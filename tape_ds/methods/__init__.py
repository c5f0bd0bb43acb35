"""Registry of extension methods: what of a model is trained, and from which RoPE parameters and encoding it starts.

A method is a line of :data:`METHODS`, which the checks of a recipe read without torch. :mod:`.prepare` decides by exact
parameter names what of a loaded model is trained, and freezes the rest. The names are the contract: they are printed,
asserted, and are what a checkpoint holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


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
    # norms and embeddings as well as the adapters: LongLoRA (Chen et al. 2023, arXiv:2309.12307, section 3.3)
    "lora": Method("adapters", embeddings=True),
    "longlora": Method("adapters", embeddings=True, grouped=True),
    # a larger base instead of interpolation (Roziere et al. 2023, arXiv:2308.12950, section 2.4)
    "theta": Method(
        "adapters", embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e6}
    ),
    "full": Method("everything", embeddings=True),
    # Gelberg et al. 2025, arXiv:2512.12167; 0.103 is their scale for SmolLM
    "drope": Method(
        "everything",
        encoding="nope",
        embeddings=True,
        drops_rope=True,
        position_options={"score_scale": 0.103},
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
