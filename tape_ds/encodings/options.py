"""Settings of every encoding, as users write them under ``position_options``, and what each says of itself.

Everything that can be said before a model is built is said here, without torch: a recipe is checked in a moment. The
classes that compute are in a file for each encoding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tape_ds.encodings import layer_options
from tape_ds.errors import Problem

if TYPE_CHECKING:
    from tape_ds.models.sizes import Fields

SEPARATORS = (".", "\n")
"""What ends a segment of ``bipe_*``."""
BUCKETS = 4
"""Columns of one grid of :mod:`tape_ds.encodings.kernel_features`."""


@dataclass(frozen=True)
class Options:
    """Settings of one encoding, as the user writes them under ``position_options``; subclasses add the fields."""

    random_shift: int = 0
    """In training, each forward counts positions from a common offset drawn from 0 .. random_shift (torch's CPU
    generator). An encoding that promises invariance under shifts does not need it; the published TAPE code draws from
    twice its window, and the ablations without that invariance have to be trained with it."""
    abacus: bool = False
    """Whether digits also get a learned embedding of their place within their number, see
    :mod:`tape_ds.encodings.abacus`; the next three are about it."""
    abacus_digits: list[int] | None = None
    """Ids of the tokens that are one digit each; None: taken from the tokenizer where there is one."""
    abacus_places: int = 512
    """Places that have an embedding of their own, those of ``abacus_shift`` included; later ones share the last."""
    abacus_shift: int = 100
    """In training, each forward counts places from a common offset drawn from 0 .. this (torch's CPU generator)."""
    nope_layers: list[int] | int | None = None
    """Layers without positions: nothing is rotated, biased or updated there, and a position state passes through. A
    list counts from 0; n is every n-th layer, see :mod:`tape_ds.encodings.layer_options`."""
    log_scale: Literal["none", "all", "nope_layers"] = "none"
    """In which layers queries that see more than ``max_position_embeddings`` keys are scaled up, see
    :mod:`tape_ds.encodings.log_scale`."""

    # What an encoding says of itself: without annotations, since users set none of it.
    reads_tokens = False
    """Whether places follow from the token ids, position ids being ignored."""
    biases_scores = False
    """Whether an encoding of this kind may add to the scores of attention."""
    no_dynamic_scaling = ""
    """Why ``rope_type: dynamic``, whose angles follow from the length of the text, is refused; empty: it is not."""

    @property
    def learns(self) -> bool:
        """Whether an encoding with these options has parameters of its own."""
        return False

    def problems(self) -> list[Problem]:
        """What contradicts itself among the fields (types and names are checked before)."""
        return [self.problem("random_shift", "negative", "give 0 or more")] if self.random_shift < 0 else []

    def problems_with(self, config: Fields) -> list[Problem]:
        """What contradicts the model's other fields."""
        return []

    def problem(self, name: str, wrong: str, remedy: str) -> Problem:
        """Say what is wrong with the option ``name``."""
        return Problem(f"position_options.{name}", getattr(self, name), wrong, remedy)

    def is_alone(self) -> bool:
        """Return whether none of the options that every encoding has changes what a model computes."""
        return not self.abacus and self.nope_layers is None and self.log_scale == "none"

    def stretches(self, layers: int, last: int) -> list[int]:
        """Return the first layers of stretches whose layers are alike, of so many; ``last``: the last one that has
        positions, which may be of its own kind."""
        return sorted({0, last})

    def without_updates(self) -> dict[str, Any] | None:
        """Return fields to change so that no layer updates the position state; None where none does."""
        return None

    def for_tokenizer(self, tokenizer: Any) -> Options:
        """These options, with what depends on the tokenizer filled in where nobody gave it."""
        return self

    def default_rope_parameters(self, window: int) -> dict[str, Any]:
        """``rope_parameters`` of a model made from scratch for ``window`` tokens, where nobody says otherwise."""
        return {"rope_type": "default", "rope_theta": 10_000.0}

    def rope_parameters_at(self, rope_parameters: Mapping[str, Any], length: int) -> Mapping[str, Any]:
        """Return ``rope_parameters`` as they are used on texts of ``length`` tokens."""
        return rope_parameters

    def changes_at(self, length: int, window: int) -> dict[str, Any]:
        """Return options to change for texts of ``length`` tokens; ``window``: ``max_position_embeddings``."""
        return {}

    def at_any_length(self) -> Options:
        """These options without what changes scores with the length of a text, and no parameter."""
        return replace(self, log_scale="none")


@dataclass(frozen=True)
class YarnOptions(Options):
    """``yarn``: trained with a factor of 1 it is plain RoPE; used beyond its original window, the factor reaches the
    length of the text."""

    def problems_with(self, config: Fields) -> list[Problem]:
        """The scaling is YaRN's."""
        rope_type = (config.rope_parameters or {}).get("rope_type")
        if "yarn" in (rope_type or ""):
            return []
        remedy = "set rope_parameters.rope_type to yarn or yarn_revised, or position_encoding to rope"
        return [Problem("position_encoding", "yarn", f"rope_type is {rope_type!r}", remedy)]

    def default_rope_parameters(self, window: int) -> dict[str, Any]:
        """Return a factor of 1, from ``window`` on."""
        own = {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": window}
        return {**super().default_rope_parameters(window), **own}

    def rope_parameters_at(self, rope_parameters: Mapping[str, Any], length: int) -> Mapping[str, Any]:
        """See :func:`reaching`."""
        return reaching(rope_parameters, length)


def reaching(rope_parameters: Mapping[str, Any], length: int) -> Mapping[str, Any]:
    """YaRN's parameters with the factor that reaches ``length``; never less than the model's own."""
    factor = max(float(rope_parameters["factor"]), length / rope_parameters["original_max_position_embeddings"])
    return {**rope_parameters, "factor": factor}


@dataclass(frozen=True)
class NopeOptions(Options):
    """``nope``: scores that grow on texts longer than those of training (DroPE, Gelberg et al. 2025,
    arXiv:2512.12167): they are multiplied by ``1 + score_scale ln(length / trained_length)``, which is 1 up to
    ``trained_length``."""

    score_scale: float | None = None
    """c of that factor. Published: 0.103 for SmolLM without its RoPE, 0.412 for their model from scratch. None: scores
    stay as they are."""
    trained_length: int | None = None
    """Tokens of the texts that the model is trained on; None: ``max_position_embeddings``."""
    text_length: int | None = None
    """Tokens of the texts it is used on, at least. Scoring commands raise it to the length that they score; whatever
    else computes with the model takes it as it is. None: ``trained_length``."""

    def problems(self) -> list[Problem]:
        """Numbers are above 0, lengths say nothing without the scale, and no layer has positions to leave out."""
        problems = super().problems()
        if self.nope_layers is not None:
            problems.append(self.problem("nope_layers", "no layer of nope has positions", "remove it"))
        for name in ("score_scale", "trained_length", "text_length"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                problems.append(self.problem(name, "impossible", "give a finite number above 0, or null"))
            if value is not None and self.score_scale is None:
                remedy = "give score_scale as well, or remove it"
                problems.append(self.problem(name, "there is no score_scale", remedy))
        return problems

    def changes_at(self, length: int, window: int) -> dict[str, Any]:
        """A longer text than the factor counts for; one that was chosen for longer texts stays."""
        covered = max(self.trained_length or window, self.text_length or 0)
        return {} if self.score_scale is None or length <= covered else {"text_length": length}

    def at_any_length(self) -> Options:
        """See :meth:`Options.at_any_length`."""
        return replace(self, log_scale="none", text_length=None)

    def score_factor(self, window: int) -> float:
        """Return what scores are multiplied by; ``window``: ``max_position_embeddings``."""
        trained = self.trained_length or window
        if self.score_scale is None or self.text_length is None or self.text_length <= trained:
            return 1.0
        return 1.0 + self.score_scale * math.log(self.text_length / trained)


@dataclass(frozen=True)
class AlibiOptions(Options):
    """``alibi``: nothing of its own to set."""

    biases_scores = True


@dataclass(frozen=True)
class BipeOptions(Options):
    """What ends a segment, and how long one is told apart."""

    separators: list[int] | None = None
    """Ids of the tokens that end a segment (and belong to it); None: taken from the tokenizer where a model is made
    from scratch. Llama 2's are 869 and 13."""
    segment_length: int = 1024
    """Places within a segment that have an embedding of their own; later ones share the last."""

    learns = True
    reads_tokens = True
    no_dynamic_scaling = "dynamic scaling follows the length in tokens, these angles count segments"

    def problems(self) -> list[Problem]:
        """Ids are 0 or more, a segment has places."""
        problems = super().problems()
        if self.separators is not None and (not self.separators or min(self.separators) < 0):
            problems.append(self.problem("separators", "no token ids", "give one token id or more, each 0 or more"))
        if self.segment_length < 1:
            problems.append(self.problem("segment_length", "too small", "give 1 up"))
        if self.random_shift:
            wrong = "these places follow from the tokens, there is nothing to shift"
            problems.append(self.problem("random_shift", wrong, "remove it"))
        return problems

    def problems_with(self, config: Fields) -> list[Problem]:
        """Separators are known, and within the vocabulary."""
        if self.separators is None:
            remedy = "give the ids of the tokens that end a segment, Llama 2's are [869, 13]"
            return [self.problem("separators", "not known", remedy)]
        if max(self.separators) >= config.vocab_size:
            wrong = f"beyond the vocabulary of {config.vocab_size}"
            return [self.problem("separators", wrong, "give ids of this model")]
        return []

    def for_tokenizer(self, tokenizer: Any) -> BipeOptions:
        """Return every token that spells a separator, with or without the mark of a word's beginning."""
        if self.separators is not None:
            return self
        spelled = {
            index: tokenizer.convert_tokens_to_string([word]).strip(" ")
            for word, index in tokenizer.get_vocab().items()
        }
        found = sorted(index for index, text in spelled.items() if text in SEPARATORS)
        return replace(self, separators=found) if found else self


@dataclass(frozen=True)
class BipeAlibiOptions(BipeOptions):
    """As ``bipe_rope`` has them."""

    biases_scores = True


@dataclass(frozen=True)
class CopeOptions(Options):
    """How far tokens are counted."""

    positions: int = 64
    """Learned embeddings, of 0, 1, 2, ... counted tokens; who counts further reads the last. The published code has one
    for every count that its window allows."""

    learns = True
    biases_scores = True

    def problems(self) -> list[Problem]:
        """One embedding for all would tell nothing apart."""
        if self.positions < 2:
            return [self.problem("positions", "too few", "give 2 or more")]
        return super().problems()

    def problems_with(self, config: Fields) -> list[Problem]:
        """Whoever gives fused kernels up says so."""
        if config.attention_backend in ("sdpa", "reference"):
            return []
        wrong = "cope counts by the scores, and a fused kernel never holds them"
        remedy = (
            "give sdpa (a block of queries at a time, computed twice in training: slower than a fused kernel, the more "
            "the longer the text), or reference (all scores at once: memory by the square of the length)"
        )
        return [Problem("attention_backend", config.attention_backend, wrong, remedy)]


@dataclass(frozen=True)
class FireOptions(Options):
    """The paper's settings."""

    width: int = 32
    """Hidden units of the network."""
    curvature: float = 0.1
    """Where c starts, in ``ln(c distance + 1)``; learned."""
    threshold: float = 512.0
    """L: queries before this position are normalised by it; multiplied by a learned factor that starts at 1."""

    learns = True
    biases_scores = True

    def problems(self) -> list[Problem]:
        """All are above 0."""
        return super().problems() + [
            self.problem(name, "impossible", "give a finite number above 0")
            for name in ("width", "curvature", "threshold")
            if not 0 < getattr(self, name) < math.inf
        ]


@dataclass(frozen=True)
class FoxOptions(Options):
    """``fox``: nothing of its own to set."""

    learns = True


@dataclass(frozen=True)
class PopeOptions(Options):
    """Where what is learned of the phases starts."""

    delta_init: Literal["zero", "uniform"] = "zero"
    """``uniform``: drawn from -2 pi .. 0; in the paper slightly better within the window, worse beyond it."""

    learns = True

    def problems_with(self, config: Fields) -> list[Problem]:
        """Scaling is said of RoPE's pairs, but for positions that are divided."""
        rope_type = (config.rope_parameters or {}).get("rope_type", "default")
        if rope_type in ("default", "linear"):
            return []
        wrong = "scales the frequencies of pairs of channels, and pope has one for each channel"
        return [Problem("rope_parameters.rope_type", rope_type, wrong, "choose default or linear")]


@dataclass(frozen=True)
class PropeOptions(Options):
    """How many of RoPE's frequencies turn."""

    share: float = 0.75
    """Of the K/2 frequencies, the highest floor(share K/2) turn; 1 is RoPE."""

    no_dynamic_scaling = "its frequencies follow from each text, and prope leaves fixed ones out"

    def kept(self, head_size: int) -> int:
        """Return how many frequencies turn; 0.58 of 50 is a little less than 29 to a computer."""
        return math.floor(round(self.share * head_size / 2, 4))

    def problems(self) -> list[Problem]:
        """It is a share."""
        problems = super().problems()
        if not 0 < self.share <= 1:
            problems.append(self.problem("share", "not above 0 and at most 1", "give a share such as 0.75"))
        return problems

    def problems_with(self, config: Fields) -> list[Problem]:
        """At least one frequency turns."""
        if self.kept(config.head_dim):
            return []
        wrong = f"leaves none of the {config.head_dim // 2} frequencies of a head"
        remedy = f"give at least {2 / config.head_dim:g}, or position_encoding: nope"
        return [self.problem("share", wrong, remedy)]


@dataclass(frozen=True)
class RandpeOptions(Options):
    """How far and how densely positions are drawn."""

    max_range: int | None = None
    """Positions are drawn from 0 .. max_range - 1; None: twice ``max_position_embeddings``, as published."""
    evaluation_length: int | None = None
    """Tokens over which evaluation spreads the range; None: ``max_position_embeddings``, the density of training.
    ``max_range`` itself makes evaluation count 0, 1, 2, ... Tokens beyond it count on from ``max_range`` in steps of
    1, which training has never seen."""
    evaluation_seed: int = 0
    """Decides the fixed draw of evaluation."""

    def problems(self) -> list[Problem]:
        """Positions that are drawn need no random offset, which would only push them out of the window."""
        problems = super().problems()
        if self.random_shift:
            problems.append(self.problem("random_shift", "positions are drawn at random already", "remove it"))
        return problems

    def problems_with(self, config: Fields) -> list[Problem]:
        """A draw cannot be larger than its range."""
        whole = self.max_range if self.max_range is not None else 2 * config.max_position_embeddings
        problems = []
        if whole < config.max_position_embeddings:
            wrong = f"shorter than max_position_embeddings = {config.max_position_embeddings}"
            problems.append(self.problem("max_range", wrong, "give that or more"))
        length = self.evaluation_length
        if length is not None and not 1 <= length <= whole:
            wrong = f"not between 1 and max_range = {whole}"
            problems.append(self.problem("evaluation_length", wrong, "choose one of these"))
        if self.evaluation_seed < 0:
            problems.append(self.problem("evaluation_seed", "negative", "give 0 or more"))
        return problems


@dataclass(frozen=True)
class RepoOptions(Options):
    """Which layers predict positions, and the size of the network that does."""

    start_layer: int | None = None
    """Layers below it, counted from 0, rotate by the index; None: a third of the layers (published: 5 of 16, 10 of
    32)."""
    width: int | None = None
    """Inner width of the network; None: an eighth of the hidden size."""

    learns = True
    no_dynamic_scaling = "dynamic scaling follows the length in tokens, these positions are predicted"

    def first_predicted(self, layers: int) -> int:
        """Return the first of a model's ``layers`` that predicts."""
        return layers // 3 if self.start_layer is None else self.start_layer

    def stretches(self, layers: int, last: int) -> list[int]:
        """Those that count, and those that predict."""
        return sorted({0, self.first_predicted(layers)})

    def inner_width(self, hidden: int) -> int:
        """Return the inner width, of a model of this hidden size."""
        return hidden // 8 if self.width is None else self.width

    def problems(self) -> list[Problem]:
        """Layers count from 0, and a network has a width."""
        problems = super().problems()
        for name, least in (("start_layer", 0), ("width", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                problems.append(self.problem(name, "too small", f"give {least} or more"))
        return problems

    def problems_with(self, config: Fields) -> list[Problem]:
        """Some layer predicts, and the default width is one."""
        problems, layers, first = [], config.num_hidden_layers, self.first_predicted(config.num_hidden_layers)
        if not any(layer_options.has_positions(self, layer) for layer in range(max(first, 0), layers)):
            wrong = f"leaves none of the {layers} layers to predict positions" + " beside nope_layers" * (
                first < layers
            )
            remedy = f"give 0 .. {layers - 1}; without predicted positions it is position_encoding: rope"
            problems.append(self.problem("start_layer", wrong, remedy))
        if self.inner_width(config.hidden_size) < 1:
            wrong = f"an eighth of hidden_size = {config.hidden_size} is less than 1"
            problems.append(self.problem("width", wrong, "give 1 or more"))
        return problems


@dataclass(frozen=True)
class T5Options(Options):
    """Shape of the buckets."""

    buckets: int = 64
    """Half of them hold one distance each, the other half grow geometrically."""
    max_distance: int = 128
    """From this distance on, everything is in the last bucket."""

    learns = True
    biases_scores = True

    def problems(self) -> list[Problem]:
        """Half the buckets must end before the last one begins."""
        problems = super().problems()
        if self.buckets < 2:
            problems.append(self.problem("buckets", "too few", "give 2 or more"))
        elif self.max_distance <= self.buckets // 2:
            problems.append(
                self.problem("max_distance", f"not above half the buckets, {self.buckets // 2}", "give more")
            )
        return problems


@dataclass(frozen=True)
class TapeOptions(Options):
    """Choices of TAPE and of its ablations."""

    attention_update: Literal["mix", "scale", "off"] = "mix"
    """How ``A e`` joins the state: ``mix`` by a matrix across heads (the paper's form), ``scale`` by one scalar per
    query head (what the published code computes), ``off`` not at all."""
    feed_forward: bool = True
    """Whether the position feed-forward updates the state."""
    rank: int | None = None
    """I, the inner width of the position feed-forward; None: 4 G."""
    form: Literal["tensorial", "separate", "vector", "flattened"] = "tensorial"
    """What the updates act across: heads, the same for all channels (``tensorial``, the paper's form); heads, with
    other matrices for cosines and sines (``separate``); channels (``vector``); both (``flattened``). All but the first
    are ablations that give the invariance under shifts up: train them with ``random_shift``."""
    start: Literal["rope", "alibi"] = "rope"
    """What the state starts from: the rotation (scaled as ``rope_parameters`` say), or features of ALiBi's kernel."""
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
    def learns(self) -> bool:
        """Unless both updates are off."""
        return self.attention_update != "off" or self.feed_forward

    def problems(self) -> list[Problem]:
        """A rank must be positive; features of a kernel have no cosines and sines; an update that is off has nothing
        to set."""
        problems = super().problems()
        if self.rank is not None and self.rank < 1:
            problems.append(self.problem("rank", "too small", "give at least 1, or null for 4 x heads"))
        if self.start == "alibi" and self.form != "tensorial":
            wrong = "this start has neither cosines nor sines nor channels in an order"
            problems.append(self.problem("form", wrong, "give tensorial, or start: rope"))
        for name in ("state_norm", "attention_norm"):
            if self.start == "alibi" and getattr(self, name) == "unit":
                wrong = "this start has no pairs of cosines and sines"
                problems.append(self.problem(name, wrong, "give none, or start: rope"))
        if (self.state_norm, self.attention_update, self.form) == ("unit", "off", "tensorial") and self.feed_forward:
            wrong = "the feed-forward alone only lengthens or shortens a pair, which unit undoes"  # one factor for all
            problems.append(self.problem("state_norm", wrong, "give none, or an attention update"))
        if self.attention_update == "off" and self.attention_norm == "unit":
            problems.append(self.problem("attention_norm", "there is no attention update", "give none, or an update"))
        if self.attention_init == "identity" and (
            self.attention_update == "off" or self.form not in ("tensorial", "separate")
        ):
            wrong = "there is no attention update by a matrix across heads"
            remedy = "give zero, or attention_update: mix with form: tensorial"
            problems.append(self.problem("attention_init", wrong, remedy))
        return problems

    def problems_with(self, config: Fields) -> list[Problem]:
        """Kernel features come in fours."""
        if self.start == "alibi" and config.head_dim % BUCKETS:
            wrong = f"the features of start: alibi need a multiple of {BUCKETS}"
            return [Problem("head_dim", config.head_dim, wrong, "choose another head size, or start: rope")]
        return []

    def rope_parameters_at(self, rope_parameters: Mapping[str, Any], length: int) -> Mapping[str, Any]:
        """With YaRN at a factor of 1 the model was trained on plain RoPE, and is used as ``yarn`` is: the
        factor reaches the length of the text. Any other factor is what the model was extended with, and stays."""
        is_plain_yarn = "yarn" in str(rope_parameters.get("rope_type")) and rope_parameters.get("factor") == 1
        return reaching(rope_parameters, length) if is_plain_yarn else rope_parameters

    def without_updates(self) -> dict[str, Any] | None:
        """Return both off, and what sets them as it is by itself."""
        if not self.learns:
            return None
        return {"attention_update": "off", "feed_forward": False, "attention_norm": "none", "attention_init": "zero"}
