"""The traits of a ``config.json`` by which engines differ: type of RoPE scaling, its parameters, their spelling.

Each trait is a name that ``table.yaml`` uses. Neither torch nor transformers is imported.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tape_ds.encodings.scaling import BETAS, WINDOW, mscale_attention, yarn_attention
from tape_ds.encodings.trained_rope import OWN_TYPES

OWN_CODE = "own_code"
"""The folder carries the code of its model."""
BY_LAYER = "rope_by_layer"
"""Layers of different kinds have RoPE parameters of their own."""
TRAITS: Mapping[str, str] = {
    "unscaled": "RoPE without scaling, of any base",
    "linear": "linear",
    "dynamic": "dynamic",
    "yarn": "yarn",
    "yarn_exact_ramp": "yarn with truncate: false",
    "llama3": "llama3",
    "longrope": "longrope",
    "yarn_attention": "an attention_factor of its own",
    "yarn_attention_twice": "an attention_factor of its own, as mscale and mscale_all_dim too",
    "yarn_other_attention": "a factor on attention that only mscale or attn_factor names",
    "yarn_betas": "beta_fast, beta_slow other than 32 and 1",
    "yarn_betas_unnamed": "no beta_fast and beta_slow in config.json",
    "yarn_length_unnamed": f"no {WINDOW} in config.json",
    "yarn_beyond_factor": f"yarn with a length beyond factor times {WINDOW}",
    "rope_parameters_only": "rope_parameters alone",
    "older_keys_only": "rope_theta and rope_scaling alone",
    BY_LAYER: "RoPE parameters for each kind of layer",
    OWN_CODE: "the folder's own code",
}
"""Names of traits, and what each is in words."""
SCALINGS = ("unscaled", "linear", "dynamic", "yarn", "yarn_exact_ramp", "llama3", "longrope")
"""Traits of which a config.json has one."""
_UNSAID_BASE = 10_000.0
"""The base of an engine that finds none."""


@dataclass(frozen=True)
class RopeForm:
    """What of a ``config.json`` decides which engines compute it."""

    family: str
    """Its model type."""
    traits: tuple[str, ...]
    """Names of :data:`TRAITS`; a type of scaling that is not among them is a trait by its own name."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The RoPE parameters, and what a flag may name: ``length``, ``family``, ``attn_factor``; empty: flags keep the
    names in braces."""

    @property
    def scaling(self) -> str:
        return self.traits[0]


def form_of(config: Mapping[str, Any]) -> RopeForm:
    """Return the form of a ``config.json``, or of the ``to_dict()`` of a configuration."""
    family = str(config.get("model_type"))
    if config.get("auto_map") or family in OWN_TYPES:
        return RopeForm(family, (OWN_CODE,))
    newer = config.get("rope_parameters")
    older = config.get("rope_scaling")
    # transformers reads the older key first where a file has both
    stated = older or newer or {}
    if any(isinstance(value, Mapping) for value in stated.values()):
        return RopeForm(family, (BY_LAYER,))

    # "type" is what transformers wrote before 4.45
    kind = stated.get("rope_type") or stated.get("type") or "default"
    theta = (
        stated.get("rope_theta")
        or config.get("rope_theta")
        or (newer or {}).get("rope_theta")
        or _UNSAID_BASE
    )
    values = {
        **stated,
        "rope_theta": theta,
        "length": config.get("max_position_embeddings"),
        "family": family,
    }
    traits = [_scaling(kind, stated)]
    if kind == "yarn":
        traits += _of_yarn(stated, config.get("max_position_embeddings"))
        values["attn_factor"] = own_attention_factor(stated) or 1.0
    traits += _spelling(config, kind, theta)
    return RopeForm(family, tuple(traits), values)


def _scaling(kind: str, stated: Mapping[str, Any]) -> str:
    if kind == "default":
        return "unscaled"
    if kind == "yarn" and not stated.get("truncate", True):
        return "yarn_exact_ramp"
    return kind


def _of_yarn(stated: Mapping[str, Any], length: int | None) -> list[str]:
    traits = _of_attention(stated)
    # by name with the default, or not at all, is the same model; but one engine has other defaults
    named = {name: stated[name] for name in BETAS if stated.get(name) is not None}
    if any(value != BETAS[name] for name, value in named.items()):
        traits.append("yarn_betas")
    if len(named) < len(BETAS):
        traits.append("yarn_betas_unnamed")
    window = stated.get(WINDOW)
    if window is None:
        traits.append("yarn_length_unnamed")
    elif length is not None and _reaches(stated.get("factor"), window) < length:
        traits.append("yarn_beyond_factor")
    return traits


def _reaches(factor: float | None, window: float) -> float:
    """Return the tokens that YaRN's factor reaches; without one it is what reaches the length."""
    if factor:
        return math.ceil(factor * window)
    return math.inf


def _of_attention(stated: Mapping[str, Any]) -> list[str]:
    """Return how YaRN's factor on attention is named, where it is not the default."""
    multiple = own_attention_factor(stated)
    ratio = _mscale_ratio(stated)
    said_twice = (
        multiple is not None and ratio is not None and math.isclose(ratio, multiple, rel_tol=1e-6)
    )
    # a factor that only these names have is lost on an engine that reads attention_factor
    if stated.get("attn_factor") is not None or (ratio is not None and not said_twice):
        return ["yarn_other_attention"]
    if multiple is None:
        return []
    if said_twice:
        return ["yarn_attention_twice"]
    return ["yarn_attention"]


def _mscale_ratio(stated: Mapping[str, Any]) -> float | None:
    """Return the factor on attention of ``mscale`` and ``mscale_all_dim`` as a multiple of YaRN's default; None where
    they are not both given."""
    # DeepSeek's names, whose quotient is the factor
    mscale = stated.get("mscale")
    all_dim = stated.get("mscale_all_dim")
    if not mscale or not all_dim or stated.get("factor") is None:
        return None
    factor = float(stated["factor"])
    return mscale_attention(factor, mscale, all_dim) / yarn_attention(factor)


def own_attention_factor(stated: Mapping[str, Any]) -> float | None:
    """Return YaRN's ``attention_factor`` as a multiple of its default, 0.1 ln(factor) + 1; None where it is that."""
    given = stated.get("attention_factor")
    factor = stated.get("factor")
    if given is None or factor is None:
        return None
    multiple = float(given) / yarn_attention(float(factor))
    if math.isclose(multiple, 1.0, rel_tol=1e-6):
        return None
    return multiple


def _spelling(config: Mapping[str, Any], kind: str, theta: float) -> list[str]:
    """Return which of the two spellings is alone, where an engine that reads the other one would miss something."""
    # an engine that reads nothing computes the same
    if kind == "default" and theta == _UNSAID_BASE:
        return []
    says_older = config.get("rope_theta") is not None and (
        kind == "default" or bool(config.get("rope_scaling"))
    )
    if not config.get("rope_parameters"):
        return ["older_keys_only"]
    if says_older:
        return []
    return ["rope_parameters_only"]
