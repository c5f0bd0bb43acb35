"""RoPE as llama.cpp computes it, from the keys of a GGUF file, and the same as ``rope_parameters``.

Read from llama.cpp's source (``load_hparams``, ``llama_context`` and the graphs of Llama, Qwen2 and Qwen3, November
2026): type ``linear`` where none is named, base 10,000, YaRN with a ramp between whole dimensions and betas of 32 and 1
whatever the file says, and ``attn_factor``, which multiplies cosine and sine. ``rope_freqs.weight`` holds a divisor for
each frequency, which only Llama's graph applies. Imports neither torch nor transformers.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tape_ds.encodings import scaling
from tape_ds.encodings.scaling import WINDOW, Parameters

LLAMA = "llama"
THETA = 10_000.0
"""llama.cpp's base where a file has none."""
UNREAD = {"finetuned": (True, False), "yarn_ext_factor": (1, -1), "yarn_log_multiplier": (0,)}
"""Keys of ``rope.scaling`` that llama.cpp does not read for these architectures, and values that ask for nothing."""
_PUBLISHED = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
"""Llama 3's own bounds, which its divisors do not tell."""
_WINDOWS = (8192, *(2**power for power in range(6, 21)))
_FACTORS = (8.0, 4.0, 2.0, 16.0, 32.0, 64.0)
# of divisors that were computed in fp32, by programs that differ
_SAME = 1e-4
# share of a frequency that is scaled in full, or not at all
_FULL = 1e-4


@dataclass(frozen=True)
class Keys:
    """RoPE in a GGUF file: keys without the architecture, such as ``scaling.type``, and divisors [head_size / 2]."""

    values: Mapping[str, Any]
    divisors: np.ndarray | None = None


def refusals(parameters: Parameters, architecture: str) -> Iterator[tuple[str, Any, str]]:
    """Yield parameter, value and reason where llama.cpp would compute other angles than these ``rope_parameters``."""
    kind = parameters["rope_type"]
    if kind not in ("default", "ntk", "linear", "yarn", "llama3"):
        yield "rope_type", kind, "llama.cpp has no such scaling for this model"
    elif kind == "llama3" and architecture != LLAMA:
        yield (
            "rope_type",
            kind,
            f"llama.cpp applies rope_freqs.weight to a Llama alone, and this is {architecture}",
        )
    if kind != "yarn":
        return
    if parameters.get("truncate") is False:
        yield "truncate", False, "llama.cpp rounds the ends of YaRN's ramp to whole dimensions"
    for name, usual in scaling.BETAS.items():
        value = parameters.get(name) or usual
        if value != usual:
            yield name, value, f"llama.cpp does not read it from a file, and computes with {usual}"


def to_keys(parameters: Parameters, head_size: int) -> Keys:
    """Return what a GGUF file says of these ``rope_parameters``, of which :func:`refusals` yields nothing."""
    kind = parameters["rope_type"]
    if kind == "ntk":
        return Keys({"freq_base": scaling.ntk_base(parameters, head_size)})
    values: dict[str, Any] = {"freq_base": float(parameters["rope_theta"])}
    factor = float(parameters.get("factor") or 1.0)
    if kind == "llama3":
        # llama.cpp takes the scaling from the divisors; the window tells readers which scaling they are
        values["scaling.original_context_length"] = int(parameters[WINDOW])
        plain, _ = scaling.frequencies({**parameters, "rope_type": "default"}, head_size)
        scaled, _ = scaling.frequencies(parameters, head_size)
        return Keys(values, (plain / scaled).astype(np.float32))
    if kind in ("linear", "yarn"):
        values |= {"scaling.type": kind, "scaling.factor": factor}
    if kind == "yarn":
        values["scaling.original_context_length"] = int(parameters[WINDOW])
        _, attention = scaling.frequencies(parameters, head_size)
        usual = scaling.yarn_attention(factor)
        if not math.isclose(attention, usual, rel_tol=1e-7):
            values["scaling.attn_factor"] = attention / usual
    return Keys(values)


def to_parameters(
    keys: Keys, head_size: int, length: int | None
) -> tuple[dict[str, Any], list[str]]:
    """Return complete ``rope_parameters`` of a file, and notes on keys that change nothing.

    Args:
        head_size: rotated columns of a head.
        length: the file's ``context_length``.

    Raises:
        ValueError: a scaling that cannot be read, or that transformers has no parameters for.
    """
    theta = float(keys.values.get("freq_base") or THETA)
    plain = {"rope_type": "default", "rope_theta": theta}
    stated = {
        name.removeprefix("scaling."): value
        for name, value in keys.values.items()
        if _is_scaling(name)
    }
    kind = stated.pop("type", "linear")
    old_factor = stated.pop("scale_linear", None)  # in the first files
    factor = float(stated.pop("factor", None) or old_factor or 1.0)
    window = stated.pop("original_context_length", None)
    notes, yarn = _sort_out(stated)

    if kind == "longrope":
        raise ValueError(
            "its RoPE scaling is longrope, whose factors are not read from a GGUF file"
        )
    if kind not in ("none", "linear", "yarn"):
        raise ValueError(f"its RoPE scaling {kind!r} is unknown")
    if keys.divisors is not None and not np.allclose(keys.divisors, 1, rtol=_SAME):
        if kind == "yarn" or (kind == "linear" and factor != 1) or yarn:
            raise ValueError("it has rope_freqs.weight and another RoPE scaling at once")
        return llama3(keys.divisors, theta, window, length), notes
    if kind != "yarn" and yarn.get("attn_factor", 1.0) != 1:
        raise ValueError(f"its rope.scaling.attn_factor is {yarn['attn_factor']:g} without YaRN")
    if kind == "linear" and factor != 1:
        return plain | {"rope_type": "linear", "factor": factor}, notes
    attention = yarn.get("yarn_attn_factor")
    if "attn_factor" in yarn:
        if attention is not None:
            notes.append(
                f"yarn_attn_factor = {attention:g} is not read: attn_factor says what llama.cpp computes"
            )
        attention = yarn["attn_factor"] * scaling.yarn_attention(factor)
    if kind != "yarn" or (factor == 1 and attention in (None, 1.0)):
        return plain, notes

    parameters = plain | {"rope_type": "yarn", "factor": factor}
    if window is not None:
        parameters[WINDOW] = int(window)
    # fp32 keeps seven digits
    if attention is not None and not math.isclose(
        attention, scaling.yarn_attention(factor), rel_tol=1e-6
    ):
        parameters["attention_factor"] = float(f"{attention:.7g}")
    for name in scaling.BETAS:
        if f"yarn_{name}" in yarn:
            parameters[name] = yarn[f"yarn_{name}"]
    return parameters, notes


def _is_scaling(name: str) -> bool:
    return name.startswith("scaling.") or name == "scale_linear"


def _sort_out(stated: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return notes on keys that nothing reads, and YaRN's keys."""
    notes = []
    yarn = {}
    for name, value in stated.items():
        if name in UNREAD:
            if value not in UNREAD[name]:
                notes.append(f"{name} = {value:g} is not read, as in llama.cpp")
        elif name in ("attn_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"):
            yarn[name] = value
        else:
            raise ValueError(f"its key rope.scaling.{name} = {value!r} is unknown")
    return notes, yarn


def llama3(
    divisors: np.ndarray, theta: float, window: float | None, length: int | None
) -> dict[str, Any]:
    """Return the ``rope_parameters`` of type ``llama3`` whose frequencies have these divisors [head_size / 2].

    They tell factor and window where the bounds are Llama 3's; with the window, the bounds as well.

    Raises:
        ValueError: they are no such scaling's.
    """
    head_size = 2 * len(divisors)
    divisors = divisors.astype(np.float64)
    plain, _ = scaling.frequencies({"rope_type": "default", "rope_theta": theta}, head_size)
    for candidate in _candidates(divisors, plain, window, length):
        parameters = {"rope_type": "llama3", "rope_theta": theta, **candidate}
        if scaling.check(parameters):
            continue
        scaled, _ = scaling.frequencies(parameters, head_size)
        if np.allclose(plain / scaled, divisors, rtol=_SAME):
            return parameters
    raise ValueError("its rope_freqs.weight is a scaling that is not Llama 3's")


def _candidates(
    divisors: np.ndarray, plain: np.ndarray, window: float | None, length: int | None
) -> Iterator[dict[str, Any]]:
    factor = _rounded(float(divisors.max()))
    # of its frequency that a pair of columns keeps: 1 / factor where it is scaled in full
    shares = 1 / divisors
    turns = plain / (2 * math.pi)  # for each token
    if factor <= 1:
        return
    kept = (shares - 1 / factor) / (1 - 1 / factor)
    blended = (kept > _FULL) & (kept < 1 - _FULL)
    low = _PUBLISHED["low_freq_factor"]
    high = _PUBLISHED["high_freq_factor"]
    if blended.any():
        # kept = (window * turns - low) / (high - low)
        windows = (kept[blended] * (high - low) + low) / turns[blended]
        yield {"factor": factor, WINDOW: _whole(window or float(np.median(windows))), **_PUBLISHED}
    else:
        # every window between two wavelengths gives the same frequencies
        for guess in (window, *_WINDOWS, length, length and length / factor):
            if guess:
                yield {"factor": factor, WINDOW: _whole(guess), **_PUBLISHED}
    # where no pair is scaled in full, the factor follows from those that are blended, as the window does
    partly = shares < 1 - _FULL
    if partly.sum() >= 2:
        slope, start = np.polyfit(turns[partly], shares[partly], 1)
        whole = _rounded(4 / (3 * start + 1)) if start > -1 / 3 else 0.0
        if whole > 1:
            yield {
                "factor": whole,
                WINDOW: _whole(window or 3 * slope / (1 - 1 / whole)),
                **_PUBLISHED,
            }
    # it has many factors, each with its window, and the same frequencies
    if partly.sum() == 1:
        share = float(shares[partly][0])
        turn = float(turns[partly][0])
        part = (window * turn - low) / (high - low) if window else 0.0
        if window and 0 < part < share:
            yield {
                "factor": _rounded((1 - part) / (share - part)),
                WINDOW: _whole(window),
                **_PUBLISHED,
            }
        for each in _FACTORS:
            part = (share - 1 / each) / (1 - 1 / each)
            if part > 0:
                yield {
                    "factor": each,
                    WINDOW: _whole((part * (high - low) + low) / turn),
                    **_PUBLISHED,
                }
    if window and blended.sum() >= 2:
        slope, start = np.polyfit(turns[blended], kept[blended], 1)
        width = window / slope
        bounds = {
            "low_freq_factor": _rounded(-start * width),
            "high_freq_factor": _rounded((1 - start) * width),
        }
        yield {"factor": factor, WINDOW: _whole(window), **bounds}


def _rounded(value: float) -> float:
    """Return a number without the digits that fp32 adds."""
    return float(f"{value:.5g}")


def _whole(value: float) -> int:
    return max(round(value), 1)
