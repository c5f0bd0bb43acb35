"""What is said of ``nope_layers`` and ``log_scale`` before a model is built: two options of every encoding, about its
layers. No torch.

The published models with NoPE layers do more in the others (chunked or windowed attention); none of that is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape_ds.errors import Problem

if TYPE_CHECKING:
    from tape_ds.encodings.options import Options
    from tape_ds.models.sizes import Fields


def has_positions(options: Options, layer: int) -> bool:
    """Return whether a layer, counted from 0, is none of ``nope_layers``.

    An interval counts as SmolLM3 and Llama 4 do (transformers' ``no_rope_layer_interval``): 4 leaves out 3, 7, 11, ...
    """
    chosen = options.nope_layers
    if isinstance(chosen, list):
        return layer not in chosen
    return chosen is None or (layer + 1) % chosen != 0


def scales_queries(options: Options, layer: int) -> bool:
    """Return whether ``log_scale`` is of this layer, counted from 0."""
    return options.log_scale == "all" or (options.log_scale == "nope_layers" and not has_positions(options, layer))


def last_placed(options: Options, layers: int) -> int:
    """Return the last layer that has positions, in a model of so many layers whose configuration was checked."""
    return next(layer for layer in reversed(range(layers)) if has_positions(options, layer))


def alike(options: Options, layers: int) -> dict[int, int]:
    """Return one layer of each kind that has positions, the first of it, and how many there are; without a look at
    every layer."""
    found = {}
    begins = options.stretches(layers, last_placed(options, layers))
    for begin, end in zip(begins, [*begins[1:], layers], strict=True):
        if count := _placed_before(options, end) - _placed_before(options, begin):
            found[next(layer for layer in range(begin, end) if has_positions(options, layer))] = count
    return found


def _placed_before(options: Options, layer: int) -> int:
    chosen = options.nope_layers
    if isinstance(chosen, list):
        return layer - sum(each < layer for each in set(chosen))
    return layer - layer // chosen if chosen else layer


def problems(options: Options) -> list[Problem]:
    """What contradicts itself among these options."""
    chosen, found = options.nope_layers, []
    if isinstance(chosen, list) and (not chosen or min(chosen) < 0):
        found.append(options.problem("nope_layers", "no layers", "give one or more, counted from 0, or null for none"))
    elif isinstance(chosen, int) and chosen < 2:
        wrong = "no layer would keep its positions" if chosen == 1 else "no interval"
        found.append(options.problem("nope_layers", wrong, "give 2 or more, or position_encoding: nope"))
    if options.log_scale == "nope_layers" and chosen is None:
        remedy = "add nope_layers, or give log_scale: all"
        found.append(options.problem("log_scale", "there are no such layers", remedy))
    return found


def problems_with(options: Options, config: Fields) -> list[Problem]:
    """The layers exist, one or more have positions, and the logarithm of the window is above 0."""
    chosen, layers, found = options.nope_layers, config.num_hidden_layers, []
    if isinstance(chosen, list) and max(chosen) >= layers:
        found.append(options.problem("nope_layers", "no such layer", f"give some of 0 .. {layers - 1}"))
    elif isinstance(chosen, list) and len(set(chosen)) == layers:
        found.append(
            options.problem("nope_layers", "no layer would keep its positions", "give less, or position_encoding: nope")
        )
    elif isinstance(chosen, int) and chosen > layers:
        wrong = f"no layer of {layers} is without positions"
        found.append(options.problem("nope_layers", wrong, f"give 2 .. {layers}, or a list of layers"))
    if options.log_scale != "none" and config.max_position_embeddings < 2:
        wrong = "log_scale divides by its logarithm"
        found.append(Problem("max_position_embeddings", config.max_position_embeddings, wrong, "give 2 or more"))
    return found
