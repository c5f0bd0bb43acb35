"""Frequencies of rotary angles, and how they are scaled for longer contexts: one function for every encoding.

Driven by transformers' ``rope_parameters``, with two types more than transformers has: ``ntk`` (static) and
``yarn_revised``. Frequencies and angles are fp64 and rounded once, at the cosine: an fp32
angle is off by 4e-3 at position 131,072, and a frequency that passed through bf16 leaves 897 distinct positions of
8,192. Nothing here is a buffer or a parameter, so no cast of a module can reach it.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tape_ds.errors import Problem, did_you_mean

Parameters = Mapping[str, Any]
WINDOW = "original_max_position_embeddings"
"""The parameter that holds the context, in tokens, before scaling."""
_YARN = ("attention_factor", "beta_fast", "beta_slow", "truncate")
_TYPES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), (WINDOW,)),
    "ntk": (("factor",), (WINDOW,)),
    "dynamic": (("factor", WINDOW), ()),
    "yarn": (("factor", WINDOW), _YARN),
    "yarn_revised": (("factor", WINDOW), _YARN),
    "llama3": (("factor", WINDOW, "low_freq_factor", "high_freq_factor"), ()),
}
"""Parameters of each ``rope_type`` that it needs, and those that it may have."""
STANDARD = (
    "factor",
    WINDOW,
    *_YARN,
    "mscale",
    "mscale_all_dim",
    "low_freq_factor",
    "high_freq_factor",
)
"""Parameters that transformers has for some type of a Llama: it passes over those of another type."""
_LLAMA = ("default", "linear", "yarn", "llama3")
BETAS = {"beta_fast": 32, "beta_slow": 1}
"""YaRN's bounds where none are given."""
BOUNDS = frozenset(("low_freq_factor", "high_freq_factor", "beta_slow", "beta_fast"))
"""Parameters between which frequencies are blended."""


def available() -> list[str]:
    return sorted(_TYPES)


def frequencies(parameters: Parameters, head_size: int) -> tuple[np.ndarray, float]:
    """Return angular frequencies fp64 [head_size / 2] and the factor on cosine and sine (1 except with YaRN), from
    complete ``rope_parameters``; of ``dynamic``, those within the window."""
    kind = parameters["rope_type"]
    theta = float(parameters["rope_theta"])
    factor = parameters.get("factor", 1.0)
    if kind == "ntk":
        theta = ntk_base(parameters, head_size)
    plain = theta ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    if kind in ("default", "dynamic", "ntk"):
        return plain, 1.0
    # position interpolation (Chen et al. 2023, arXiv:2306.15595): every position is divided
    if kind == "linear":
        return plain / factor, 1.0

    window = parameters[WINDOW]
    # bands (Grattafiori et al. 2024, arXiv:2407.21783): long waves interpolated, short ones kept
    if kind == "llama3":
        low = parameters["low_freq_factor"]
        high = parameters["high_freq_factor"]
        turns = window * plain / (2 * math.pi)
        if high > low:
            kept = np.clip((turns - low) / (high - low), 0, 1)
        else:  # no band between the two: a step, as in transformers
            kept = (turns >= low).astype(np.float64)
        return (1 - kept) * plain / factor + kept * plain, 1.0

    # YaRN (Peng et al. 2023, arXiv:2309.00071, Section 3.2-3.4), with transformers' conventions for its parameters. The
    # ramp is the share of interpolation of each frequency.
    def dimension(turns: float) -> float:
        return head_size * math.log(window / (turns * 2 * math.pi)) / (2 * math.log(theta))

    fast, slow = (parameters.get(name) or BETAS[name] for name in ("beta_fast", "beta_slow"))
    low = dimension(fast)
    high = dimension(slow)
    if parameters.get("truncate", True):
        low = math.floor(low)
        high = math.ceil(high)
    low = max(low, 0)
    high = min(high, head_size - 1)
    high = high + 0.001 if low == high else high
    ramp = np.clip((np.arange(head_size // 2, dtype=np.float64) - low) / (high - low), 0, 1)

    attention = parameters.get("attention_factor")
    if attention is None:
        attention = yarn_attention(factor)
    if kind == "yarn":
        return plain / factor * ramp + plain * (1 - ramp), float(attention)
    # as PoSE used it (Zhu et al. 2023, arXiv:2309.10400): wavelengths are blended instead of frequencies
    return plain / (ramp * factor + (1 - ramp)), float(attention)


def yarn_attention(factor: float) -> float:
    """Return YaRN's factor on attention where none is given (Peng et al. 2023, arXiv:2309.00071, Section 3.4)."""
    if factor > 1:
        return 0.1 * math.log(factor) + 1.0
    return 1.0


def mscale_attention(factor: float, mscale: float, all_dim: float) -> float:
    """Return YaRN's factor on attention as DeepSeek's configurations name it, by ``mscale`` and ``mscale_all_dim``."""
    log = math.log(max(factor, 1.0))
    return (1.0 + 0.1 * mscale * log) / (1.0 + 0.1 * all_dim * log)


def ntk_base(parameters: Parameters, head_size: int) -> float:
    """Return the base of static NTK-aware scaling (bloc97 2023; YaRN paper, Section 3.1): the slowest wave is
    interpolated by the factor and the fastest is left as it is."""
    return float(parameters["rope_theta"]) * parameters["factor"] ** (head_size / (head_size - 2))


def same(one: Parameters, other: Parameters, head_size: int) -> bool:
    if is_dynamic(one) or is_dynamic(other) or dict(one) == dict(other):
        return dict(one) == dict(other)
    (mine, my_factor), (theirs, their_factor) = (
        frequencies(each, head_size) for each in (one, other)
    )
    return my_factor == their_factor and np.array_equal(mine, theirs)


def is_dynamic(parameters: Parameters) -> bool:
    """Return whether the frequencies follow from the length of a text, see ``rope.dynamic_frequencies``."""
    return parameters.get("rope_type") == "dynamic"


def as_llama(parameters: Parameters, head_size: int) -> dict[str, Any] | None:
    """Return the same angles as transformers' own Llama can compute them; None where it cannot (its ``dynamic`` changes
    the base during generation)."""
    name = parameters["rope_type"]
    if name == "ntk":
        return {"rope_type": "default", "rope_theta": ntk_base(parameters, head_size)}
    if name in _LLAMA:
        return dict(parameters)
    return None


def as_longrope(parameters: Parameters, head_size: int, window: int) -> dict[str, Any]:
    """Return the same angles as transformers' ``longrope``, which has a factor for each frequency: for families that
    allow no other scaling. Not for ``dynamic``. ``window``: tokens of context before scaling."""
    scaled, attention_factor = frequencies(parameters, head_size)
    plain, _ = frequencies({**parameters, "rope_type": "default"}, head_size)
    factors = (plain / scaled).tolist()
    return {
        "rope_type": "longrope",
        "rope_theta": parameters["rope_theta"],
        "short_factor": factors,
        "long_factor": factors,
        "attention_factor": attention_factor,
        "factor": 1.0,  # read by some classes; without effect where there is an attention_factor
        WINDOW: window,
    }


def named(rope_type: Any) -> set[str]:
    """Return the parameters of a type; none of a value that names no type."""
    required, optional = _TYPES.get(str(rope_type), ((), ()))
    return {*required, *optional}


def described(parameters: Parameters) -> str:
    """Return type, factor, window and base in one line: ``yarn x2 from 8,192, theta 10000``."""
    name = parameters["rope_type"]
    factor = parameters.get("factor")
    window = parameters.get(WINDOW)
    scale = "unscaled RoPE" if name == "default" else name
    scale += f" x{factor:g}" if factor is not None else ""
    scale += f" from {window:,}" if window is not None else ""
    return f"{scale}, theta {parameters['rope_theta']:g}"


def check(parameters: Parameters) -> list[Problem]:
    """Return what is wrong with ``rope_parameters``: an unknown type or key, a missing or impossible value."""
    name = parameters.get("rope_type", "default")
    if not isinstance(name, str) or name not in _TYPES:
        return [
            Problem("rope_parameters.rope_type", name, "unknown", did_you_mean(str(name), _TYPES))
        ]
    problems = []
    required = _TYPES[name][0]
    known = {"rope_type", "rope_theta", *named(name)}
    for key in required:
        if parameters.get(key) is None:
            problems.append(
                Problem(
                    f"rope_parameters.{key}", None, f"missing for rope_type {name!r}", f"set {key}"
                )
            )
    for key, value in parameters.items():
        least = math.nextafter(1.0, 2.0) if key == "rope_theta" else math.ulp(0.0)
        wrong = remedy = ""
        if key not in known:
            wrong = f"not a parameter of rope_type {name!r}"
            remedy = did_you_mean(key, known)
            # the name is close to attention_factor, the meaning is not
            if key == "attn_factor":
                remedy = "attn_factor multiplies YaRN's 0.1 ln(factor) + 1: give the product as attention_factor"
        elif key == "truncate" and not isinstance(value, bool):
            wrong = "not a boolean"
            remedy = "true or false"
        elif key in ("rope_type", "truncate") or value is None:
            continue
        elif (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
        ):
            wrong = "not a number"
            remedy = "give a finite number"
        elif value < least:
            wrong = "too small"
            remedy = f"give a number {'of at least 1' if key == 'factor' else f'above {least:.0f}'}"
        if wrong:
            problems.append(Problem(f"rope_parameters.{key}", value, wrong, remedy))
    return problems


def check_factor(
    parameters: Parameters, remedy: str = "give a number of at least 1"
) -> list[Problem]:
    """Return a factor below 1 that a recipe gives, which shortens the context. A published model may have it:
    transformers warns and computes it, and so does :func:`frequencies`."""
    factor = parameters.get("factor")
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < 1:
        return []
    return [Problem("rope_parameters.factor", factor, "too small", remedy)]


def check_order(parameters: Parameters) -> list[Problem]:
    """Return bounds of a band that a recipe gives in the wrong order. A published model may have them so: transformers
    computes that, and so does :func:`frequencies`. Between equal bounds is a step instead of a band."""
    problems = []
    for lower, higher in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
        low = parameters.get(lower) or BETAS.get(lower)
        high = parameters.get(higher) or BETAS.get(higher)
        if low is not None and high is not None and low > high:
            wrong = f"above {higher} = {high}"
            problems.append(
                Problem(f"rope_parameters.{lower}", low, wrong, f"choose {lower} up to {higher}")
            )
    return problems
