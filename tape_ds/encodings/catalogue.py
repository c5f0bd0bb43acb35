"""Our encodings, one class of options each, and their registration.

A recipe is checked by this table alone, without torch; the classes that compute are in a file per encoding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tape_ds.encodings.options import WITHOUT_LOG_SCALE, ModelConfig, Options, bounded
from tape_ds.encodings.registry import register
from tape_ds.errors import Problem

SEPARATORS = (".", "\n")
"""Texts that end a segment of ``bipe_*``."""
BUCKETS = 4
"""Columns of one grid of :mod:`tape_ds.encodings.kernel_features`."""
_BASE = "tape_ds.encodings.base.PositionEncoding"
_ROPE = "tape_ds.encodings.rope.RopeEncoding"
_ROPE_LAYER = "tape_ds.encodings.rope.RopeLayer"
_ALIBI = "tape_ds.encodings.alibi.AlibiEncoding"


register("rope", Options, _ROPE, _ROPE_LAYER)
register(
    "sincos",
    Options,
    "tape_ds.encodings.sincos.SincosEncoding",
    "tape_ds.encodings.base.PositionLayer",
)
register("xpos", Options, "tape_ds.encodings.xpos.XposEncoding", "tape_ds.encodings.xpos.XposLayer")


@dataclass(frozen=True)
class YarnOptions(Options):
    """``yarn``: trained with a factor of 1 it is plain RoPE; beyond its original window, the factor reaches the length
    of the text."""

    def problems_with(self, config: ModelConfig) -> Iterator[Problem]:
        rope_type = (config.rope_parameters or {}).get("rope_type")
        if "yarn" not in (rope_type or ""):
            remedy = "rope_parameters.rope_type: yarn, yarn_revised; or position_encoding: rope"
            yield Problem("position_encoding", "yarn", f"rope_type is {rope_type!r}", remedy)
        yield from super().problems_with(config)

    def default_rope_parameters(self, window: int) -> dict[str, Any]:
        own = {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": window}
        return {**super().default_rope_parameters(window), **own}

    def rope_parameters_at(
        self, rope_parameters: Mapping[str, Any], length: int
    ) -> Mapping[str, Any]:
        return reaching(rope_parameters, length)


def reaching(rope_parameters: Mapping[str, Any], length: int) -> Mapping[str, Any]:
    """Return YaRN's parameters with the factor that reaches ``length``, or the model's if that is larger."""
    factor = max(
        float(rope_parameters["factor"]),
        length / rope_parameters["original_max_position_embeddings"],
    )
    return {**rope_parameters, "factor": factor}


register("yarn", YarnOptions, _ROPE, _ROPE_LAYER)


@dataclass(frozen=True)
class NopeOptions(Options):
    """``nope``: scores may grow on texts longer than those of training (DroPE, Gelberg et al. 2025, arXiv:2512.12167):
    they are multiplied by ``1 + score_scale ln(length / trained_length)``, which is 1 up to ``trained_length``."""

    reads_positions = False

    score_scale: float | None = bounded(None, gt=0)
    """c of that factor. Published: 0.103 for SmolLM without its RoPE, 0.412 for their model from scratch. None: scores
    are not scaled."""
    trained_length: int | None = bounded(None, ge=1)
    """Tokens of the texts that the model is trained on; None: ``max_position_embeddings``."""
    text_length: int | None = bounded(None, ge=1)
    """Least tokens of the texts that the model is used on. Scoring commands raise it to the length that they score;
    anything else computes with it as it is. None: ``trained_length``."""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.nope_layers is not None:
            yield self.problem("nope_layers", "no layer of nope has positions", "remove it")
        for name in ("trained_length", "text_length"):
            if getattr(self, name) is not None and self.score_scale is None:
                yield self.problem(
                    name, "there is no score_scale", "give score_scale as well, or remove it"
                )

    def changes_at(self, length: int, window: int) -> dict[str, Any]:
        # a text_length that was chosen for longer texts stays
        covered = max(self.trained_length or window, self.text_length or 0)
        if self.score_scale is None or length <= covered:
            return {}
        return {"text_length": length}

    def at_any_length(self) -> Options:
        return replace(self, text_length=None, **WITHOUT_LOG_SCALE)


register("nope", NopeOptions, _BASE, "tape_ds.encodings.nope.NopeLayer")


@dataclass(frozen=True)
class AlibiOptions(Options):
    biases_scores = True


register("alibi", AlibiOptions, _ALIBI, "tape_ds.encodings.alibi.AlibiLayer")


@dataclass(frozen=True)
class BipeOptions(Options):
    separators: list[int] | None = None
    """Ids of the tokens that end a segment (and belong to it); None: taken from the tokenizer where a model is made
    from scratch. Llama 2's are 869 and 13."""
    segment_length: int = bounded(1024, ge=1)
    """Places within a segment with an embedding; later ones share the last."""

    learns = True
    reads_tokens = True
    no_random_shift = "these positions follow from the tokens and cannot be shifted"
    no_dynamic_scaling = "dynamic scaling follows the length in tokens, these angles count segments"

    def problems_with(self, config: ModelConfig) -> Iterator[Problem]:
        remedy = "give the ids of the tokens that end a segment, Llama 2's are [869, 13]"
        yield from self.problems_of_ids("separators", config.vocab_size, remedy)
        yield from super().problems_with(config)

    def from_tokenizer(self, tokenizer: Any) -> dict[str, Any]:
        found = super().from_tokenizer(tokenizer)
        if self.separators is None:
            # every token that spells a separator, with or without the mark of a word's beginning
            words = tokenizer.get_vocab().items()
            spelled = {
                index: tokenizer.convert_tokens_to_string([word]).strip(" ")
                for word, index in words
            }
            if ids := sorted(index for index, text in spelled.items() if text in SEPARATORS):
                found["separators"] = ids
        return found


register("bipe_rope", BipeOptions, "tape_ds.encodings.bipe.BipeRopeEncoding", _ROPE_LAYER)


@dataclass(frozen=True)
class BipeAlibiOptions(BipeOptions):
    biases_scores = True


register(
    "bipe_alibi",
    BipeAlibiOptions,
    "tape_ds.encodings.bipe.BipeAlibiEncoding",
    "tape_ds.encodings.bipe.BipeAlibiLayer",
)


@dataclass(frozen=True)
class CopeOptions(Options):
    reads_positions = False

    positions: int = bounded(64, ge=2)
    """Learned embeddings, of 0, 1, 2, ... counted tokens; higher counts read the last. The published code has one for
    every count that its window allows."""

    learns = True
    biases_scores = True

    def problems_with(self, config: ModelConfig) -> Iterator[Problem]:
        if config.attention_backend not in ("sdpa", "reference"):
            wrong = "cope counts by the scores, which a fused kernel never holds"
            remedy = (
                "give sdpa (a block of queries at a time, computed twice in training: slower than a fused kernel, the "
                "more the longer the text), or reference (all scores at once: memory by the square of the length)"
            )
            yield Problem("attention_backend", config.attention_backend, wrong, remedy)
        yield from super().problems_with(config)


register("cope", CopeOptions, _BASE, "tape_ds.encodings.cope.CopeLayer")


@dataclass(frozen=True)
class FireOptions(Options):
    width: int = bounded(32, ge=1)
    """Hidden units of the network."""
    curvature: float = bounded(0.1, gt=0)
    """Initial value of c in ``ln(c distance + 1)``; learned."""
    threshold: float = bounded(512.0, gt=0)
    """L: queries before this position are normalised by it; multiplied by a learned factor that starts at 1."""

    learns = True
    biases_scores = True


register(
    "fire", FireOptions, "tape_ds.encodings.fire.FireEncoding", "tape_ds.encodings.fire.FireLayer"
)


@dataclass(frozen=True)
class FoxOptions(Options):
    reads_positions = False
    learns = True


register("fox", FoxOptions, _BASE, "tape_ds.encodings.fox.FoxLayer")


@dataclass(frozen=True)
class PopeOptions(Options):
    delta_init: Literal["zero", "uniform"] = "zero"
    """``uniform``: drawn from -2 pi .. 0; in the paper slightly better within the window, worse beyond it."""

    learns = True

    def problems_with(self, config: ModelConfig) -> Iterator[Problem]:
        rope_type = (config.rope_parameters or {}).get("rope_type", "default")
        if rope_type not in ("default", "linear"):
            # other scalings are defined on RoPE's pairs; linear divides positions
            wrong = "scales the frequencies of pairs of channels, and pope has one for each channel"
            yield Problem(
                "rope_parameters.rope_type",
                rope_type,
                wrong,
                "rope_parameters.rope_type: default, linear",
            )
        yield from super().problems_with(config)


register(
    "pope", PopeOptions, "tape_ds.encodings.pope.PopeEncoding", "tape_ds.encodings.pope.PopeLayer"
)


@dataclass(frozen=True)
class PropeOptions(Options):
    share: float = bounded(0.75, gt=0, le=1)
    """Of the K/2 frequencies, the highest floor(share K/2) turn; 1 is RoPE."""

    no_dynamic_scaling = "its frequencies follow from each text, and prope leaves fixed ones out"

    def kept(self, head_size: int) -> int:
        # 0.58 * 50 is a little less than 29 in floats
        return math.floor(round(self.share * head_size / 2, 4))

    def problems_with(self, config: ModelConfig) -> Iterator[Problem]:
        if not self.kept(config.head_dim):
            wrong = f"leaves none of the {config.head_dim // 2} frequencies of a head"
            remedy = f"give at least {2 / config.head_dim:g}, or position_encoding: nope"
            yield self.problem("share", wrong, remedy)
        yield from super().problems_with(config)


register("prope", PropeOptions, "tape_ds.encodings.rope.PropeEncoding", _ROPE_LAYER)


@dataclass(frozen=True)
class RandpeOptions(Options):
    max_range: int | None = None
    """Positions are drawn from 0 .. max_range - 1; None: twice ``max_position_embeddings``, as published."""
    evaluation_length: int | None = None
    """Tokens over which evaluation spreads the range; None: ``max_position_embeddings``, the density of training.
    ``max_range`` itself makes evaluation count 0, 1, 2, ... Tokens beyond it count from ``max_range`` in steps of 1,
    which training has never seen."""
    evaluation_seed: int = bounded(0, ge=0)
    """Seed of the fixed draw of evaluation."""

    # an offset would push them out of the window
    no_random_shift = "positions are drawn at random already"
    draws = True

    def problems_with(self, config: ModelConfig) -> Iterator[Problem]:
        window = config.max_position_embeddings
        length = self.evaluation_length
        drawn_from = self.max_range if self.max_range is not None else 2 * window
        if drawn_from < window:
            wrong = f"shorter than max_position_embeddings = {window}"
            yield self.problem("max_range", wrong, "give that or more")
        if length is not None and not 1 <= length <= drawn_from:
            wrong = f"not between 1 and max_range = {drawn_from}"
            yield self.problem("evaluation_length", wrong, "choose one of these")
        yield from super().problems_with(config)


register("randpe", RandpeOptions, "tape_ds.encodings.randpe.RandpeEncoding", _ROPE_LAYER)


@dataclass(frozen=True)
class RepoOptions(Options):
    start_layer: int | None = bounded(None, ge=0)
    """Layers below it, counted from 0, rotate by the index; None: a third of the layers (published: 5 of 16, 10 of
    32)."""
    width: int | None = bounded(None, ge=1)
    """Inner width of the network; None: an eighth of the hidden size."""

    learns = True
    no_dynamic_scaling = (
        "dynamic scaling follows the length in tokens, these positions are predicted"
    )

    def first_predicted(self, layers: int) -> int:
        if self.start_layer is None:
            return layers // 3
        return self.start_layer

    def stretches(self, layers: int) -> list[int]:
        return sorted({0, self.first_predicted(layers)})

    def inner_width(self, hidden: int) -> int:
        if self.width is None:
            return hidden // 8
        return self.width

    def problems_with(self, config: ModelConfig) -> Iterator[Problem]:
        layers = config.num_hidden_layers
        others = list(super().problems_with(config))
        if not others and not any(
            map(self.has_positions, range(self.first_predicted(layers), layers))
        ):
            wrong = f"none of the {layers} layers would predict positions"
            remedy = (
                f"give 0 .. {layers - 1}; without predicted positions it is position_encoding: rope"
            )
            yield self.problem("start_layer", wrong, remedy)
        if self.inner_width(config.hidden_size) < 1:
            wrong = f"an eighth of hidden_size = {config.hidden_size} is less than 1"
            yield self.problem("width", wrong, "give 1 or more")
        yield from others


register(
    "repo", RepoOptions, "tape_ds.encodings.repo.RepoEncoding", "tape_ds.encodings.repo.RepoLayer"
)


@dataclass(frozen=True)
class T5Options(Options):
    buckets: int = bounded(64, ge=2)
    """Half of them hold one distance each, the other half grow geometrically."""
    max_distance: int = 128
    """From this distance on, everything is in the last bucket."""

    learns = True
    biases_scores = True

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        half = self.buckets // 2
        # half the buckets must end before the last one begins
        if self.max_distance <= half:
            yield self.problem("max_distance", f"not above half the buckets, {half}", "give more")


register("t5", T5Options, _ALIBI, "tape_ds.encodings.t5.T5Layer")


@dataclass(frozen=True)
class TapeOptions(Options):
    """Choices of TAPE and of its ablations."""

    attention_update: Literal["mix", "scale", "off"] = "mix"
    """How ``A e`` joins the state: ``mix`` by a matrix across heads (the paper's form), ``scale`` by one scalar per
    query head (what the published code computes), ``off`` not at all."""
    feed_forward: bool = True
    """Update the state by the position feed-forward."""
    rank: int | None = bounded(None, ge=1)
    """I, the inner width of the position feed-forward; None: 4 G."""
    form: Literal["tensorial", "separate", "vector", "flattened"] = "tensorial"
    """Axes of the updates: across heads, the same for all channels (``tensorial``, the paper's form); heads, with
    other matrices for cosines and sines (``separate``); channels (``vector``); both (``flattened``). All but the first
    are ablations that give the invariance under shifts up: train them with ``random_shift``."""
    start: Literal["rope", "alibi"] = "rope"
    """Initial state: the rotation (with the scaling of ``rope_parameters``), or features of ALiBi's kernel."""
    state_norm: Literal["none", "unit"] = "none"
    """``unit``: after each layer every pair (cos_j, sin_j) of the state gets the modulus of its start back. The state
    stays a rotation; updates turn it, and cannot rescale the scores."""
    attention_norm: Literal["none", "unit"] = "none"
    """``unit``: the pairs of ``A e`` get the start's moduli before they join the state: a direction found by attention
    counts the same however spread attention is."""
    attention_init: Literal["zero", "identity"] = "zero"
    """``identity``: the weight of the attention update is counted from the mean over each group's own heads, so that
    a new model begins with it. For training from scratch: a converted Llama then does not begin as the Llama."""

    biases_scores = True  # from start: alibi

    @property
    def draws(self) -> bool:
        return self.start == "alibi" or super().draws

    @property
    def learns(self) -> bool:
        return self.attention_update != "off" or self.feed_forward

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        updates = self.attention_update != "off"
        across_heads = self.form in ("tensorial", "separate")
        if self.start == "alibi":
            wrong = "start: alibi has neither pairs of cosines and sines nor channels in an order"
            for name, plain in (
                ("form", "tensorial"),
                ("state_norm", "none"),
                ("attention_norm", "none"),
            ):
                if getattr(self, name) != plain:
                    yield self.problem(name, wrong, f"give {plain}, or start: rope")
        if (
            self.state_norm == "unit"
            and self.form == "tensorial"
            and self.feed_forward
            and not updates
        ):
            # one factor for all channels
            wrong = "the feed-forward alone only lengthens or shortens a pair, which unit undoes"
            yield self.problem("state_norm", wrong, "give none, or an attention update")
        if self.attention_norm == "unit" and not updates:
            yield self.problem(
                "attention_norm", "there is no attention update", "give none, or an update"
            )
        if self.attention_init == "identity" and not (updates and across_heads):
            wrong = "there is no attention update by a matrix across heads"
            yield self.problem(
                "attention_init", wrong, "give zero, or attention_update: mix with form: tensorial"
            )

    def problems_with(self, config: ModelConfig) -> Iterator[Problem]:
        if self.start == "alibi" and config.head_dim % BUCKETS:
            wrong = f"the features of start: alibi need a multiple of {BUCKETS}"
            yield Problem(
                "head_dim", config.head_dim, wrong, "choose another head size, or start: rope"
            )
        yield from super().problems_with(config)

    def rope_parameters_at(
        self, rope_parameters: Mapping[str, Any], length: int
    ) -> Mapping[str, Any]:
        # At a factor of 1 the model was trained on plain RoPE, and is used as ``yarn`` is; any other factor is that of
        # its extension, and stays.
        is_plain_yarn = (
            "yarn" in str(rope_parameters.get("rope_type")) and rope_parameters.get("factor") == 1
        )
        if is_plain_yarn:
            return reaching(rope_parameters, length)
        return rope_parameters

    def without_updates(self) -> dict[str, Any] | None:
        if not self.learns:
            return None
        return {
            "attention_update": "off",
            "feed_forward": False,
            "attention_norm": "none",
            "attention_init": "zero",
        }


register(
    "tape", TapeOptions, "tape_ds.encodings.tape.TapeEncoding", "tape_ds.encodings.tape.TapeLayer"
)
