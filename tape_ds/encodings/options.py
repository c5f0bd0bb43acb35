"""Options that every encoding has, as users write them under ``position_options``, and what they forbid.

No torch here: a recipe is checked, and its help shown, without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol

from tape_ds.errors import Problem

DIGITS = "0123456789"
WITHOUT_LOG_SCALE: Mapping[str, Any] = {
    "log_scale": "none",
    "log_scale_from": None,
    "log_scale_by": "keys",
}


class ModelConfig(Protocol):
    """The fields of a model's configuration that encodings read."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    position_encoding: str
    state_dtype: str | None
    attention_backend: str

    @property
    def rope_parameters(self) -> Any: ...

    @property
    def position_options(self) -> Any: ...


def bounded(default: Any, **bounds: float) -> Any:
    return field(default=default, metadata=bounds)


@dataclass(frozen=True)
class Options:
    """Settings of one encoding; subclasses add theirs."""

    random_shift: int = bounded(0, ge=0)
    """In training, each forward counts positions from a common offset drawn from 0 .. random_shift (torch's CPU
    generator). Encodings that are invariant under shifts do not need it; the published TAPE code draws from twice its
    window, and the ablations without that invariance have to be trained with it."""
    abacus: bool = False
    """Add a learned embedding of each digit's place within its number, see :mod:`tape_ds.encodings.abacus`."""
    abacus_digits: list[int] | None = None
    """Ids of the tokens that are one digit each; None: taken from the tokenizer where there is one."""
    abacus_places: int = bounded(512, ge=1)
    """Places with an embedding, those of ``abacus_shift`` included; later ones share the last."""
    abacus_shift: int = bounded(100, ge=0)
    """In training, each forward counts places from a common offset drawn from 0 .. this (torch's CPU generator)."""
    nope_layers: list[int] | int | None = None
    """Layers without positions: nothing is rotated, biased or updated there, and a position state passes through. A
    list counts from 0; n is every n-th layer, as in SmolLM3 and Llama 4 (4: layers 3, 7, 11, ...). The published
    models with such layers also change attention in the others (chunks, windows), which is not done here."""
    log_scale: Literal["none", "all", "nope_layers"] = "none"
    """Layers in which queries that see more than ``log_scale_from`` keys are scaled up, see
    :mod:`tape_ds.encodings.log_scale`."""
    log_scale_from: int | None = bounded(None, ge=2)
    """Keys up to which nothing is scaled; None: ``max_position_embeddings``. A run that extends a model sets the length
    that the model has natively."""
    log_scale_by: Literal["keys", "positions"] = "keys"
    """What is counted: the keys that a query sees, or its position id, so that positions that PoSE skips count too."""

    # Properties of an encoding, without annotations: users do not set them.
    reads_tokens = False
    """Whether positions follow from the token ids, and position ids are ignored."""
    reads_positions = True
    """Whether position ids change anything that the encoding computes."""
    biases_scores = False
    """Whether the encoding may add to the scores of attention."""
    no_random_shift = ""
    """Why ``random_shift`` is refused; empty: it is not."""
    no_dynamic_scaling = ""
    """Why ``rope_type: dynamic``, whose angles follow from the length of the text, is refused; empty: it is not."""

    @property
    def learns(self) -> bool:
        """Whether the encoding has parameters, those of abacus left out."""
        return False

    @property
    def draws(self) -> bool:
        """Whether a forward in training draws positions at random."""
        return self.random_shift > 0 or (self.abacus and self.abacus_shift > 0)

    def problem(self, name: str, wrong: str, remedy: str) -> Problem:
        return Problem(f"position_options.{name}", getattr(self, name), wrong, remedy)

    def problems(self) -> Iterator[Problem]:
        """Yield contradictions among the options themselves."""
        if self.random_shift and self.no_random_shift:
            yield self.problem("random_shift", self.no_random_shift, "remove it")
        for each in fields(self):
            if (
                not self.abacus
                and each.name.startswith("abacus_")
                and getattr(self, each.name) != each.default
            ):
                yield self.problem(
                    each.name, "an option of abacus, which is off", "add abacus: true, or remove it"
                )
        if self.abacus and self.abacus_shift >= self.abacus_places:
            wrong = (
                f"some offsets leave no place of the {self.abacus_places} that have an embedding"
            )
            yield self.problem("abacus_shift", wrong, "give less, or more abacus_places")
        if self.log_scale == "nope_layers" and not self.nope_layers:
            yield self.problem(
                "log_scale", "there are no such layers", "add nope_layers, or give log_scale: all"
            )
        for each in fields(self):
            is_own = each.name.startswith("log_scale_")
            if is_own and self.log_scale == "none" and getattr(self, each.name) != each.default:
                yield self.problem(
                    each.name,
                    "an option of log_scale, which is none",
                    "add log_scale: all, or remove it",
                )
        if self.log_scale_by == "positions" and (self.reads_tokens or not self.reads_positions):
            wrong = "this encoding reads no position ids, and would depend on them"
            yield self.problem(
                "log_scale_by", wrong, "remove it (keys are counted then), or give another encoding"
            )

    def problems_with(self, config: ModelConfig) -> Iterator[Problem]:
        """Yield what does not fit the model."""
        layers = self.nope_layers
        count = config.num_hidden_layers
        if self.abacus:
            remedy = "give the ids of the tokens that are one digit each (unknown for a tokenizer that joins digits)"
            yield from self.problems_of_ids("abacus_digits", config.vocab_size, remedy)

        if isinstance(layers, int):
            exist = 2 <= layers <= count
        else:
            exist = all(0 <= layer < count for layer in layers or ())
        if not exist:
            remedy = f"give some of 0 .. {count - 1}, or 2 .. {count} for every n-th"
            yield self.problem("nope_layers", f"there are {count} layers, counted from 0", remedy)
        elif not any(map(self.has_positions, range(count))):
            remedy = "give less, or position_encoding: nope"
            yield self.problem("nope_layers", "no layer would keep its positions", remedy)

        window = config.max_position_embeddings
        if self.log_scale != "none" and self.log_scale_from is None and window < 2:
            wrong = "log_scale divides by its logarithm"
            yield Problem("max_position_embeddings", window, wrong, "give 2 or more")

    def problems_of_ids(self, name: str, vocabulary: int, remedy: str) -> Iterator[Problem]:
        """Yield what is wrong with a list of token ids that a model needs."""
        ids = getattr(self, name)
        if not ids:
            yield self.problem(name, "not known", remedy)
        elif min(ids) < 0 or max(ids) >= vocabulary:
            yield self.problem(
                name, f"beyond the vocabulary of {vocabulary}", "give ids of this model"
            )

    def has_positions(self, layer: int) -> bool:
        if isinstance(self.nope_layers, list):
            return layer not in self.nope_layers
        return self.nope_layers is None or (layer + 1) % self.nope_layers != 0

    def last_placed(self, layers: int) -> int:
        return next(layer for layer in reversed(range(layers)) if self.has_positions(layer))

    def stretches(self, layers: int) -> list[int]:
        """Return the first layers of stretches whose layers are alike; the last one with positions may differ."""
        return sorted({0, self.last_placed(layers)})

    def alike(self, layers: int) -> dict[int, int]:
        """Return the first layer of each kind with positions -> how many layers are of that kind."""

        def placed_before(layer: int) -> int:
            if isinstance(self.nope_layers, list):
                return layer - sum(each < layer for each in set(self.nope_layers))
            if self.nope_layers:
                return layer - layer // self.nope_layers
            return layer

        begins = self.stretches(layers)
        found = {}
        for begin, end in zip(begins, [*begins[1:], layers], strict=True):
            # counted, not listed: a mistyped number of layers may be in the billions
            if count := placed_before(end) - placed_before(begin):
                found[next(layer for layer in range(begin, end) if self.has_positions(layer))] = (
                    count
                )
        return found

    def is_alone(self) -> bool:
        """Return whether no option that every encoding has changes what a model computes."""
        return not self.abacus and not self.nope_layers and self.log_scale == "none"

    def from_tokenizer(self, tokenizer: Any) -> dict[str, Any]:
        """Return missing token ids that the tokenizer gives."""
        if not self.abacus or self.abacus_digits is not None:
            return {}
        vocabulary = tokenizer.get_vocab()
        digits = sorted(vocabulary[digit] for digit in DIGITS if digit in vocabulary)
        # A token that joins several digits would hide places within them: the digits stay unknown.
        joined = any(len(word) > 1 and set(word) <= set(DIGITS) for word in vocabulary)
        if digits and not joined:
            return {"abacus_digits": digits}
        return {}

    def default_rope_parameters(self, window: int) -> dict[str, Any]:
        return {"rope_type": "default", "rope_theta": 10_000.0}

    def rope_parameters_at(
        self, rope_parameters: Mapping[str, Any], length: int
    ) -> Mapping[str, Any]:
        return rope_parameters

    def changes_at(self, length: int, window: int) -> dict[str, Any]:
        """Return options to change for texts of ``length`` tokens; ``window``: ``max_position_embeddings``."""
        return {}

    def at_any_length(self) -> Options:
        """Return these options without those that change scores with the length of a text, and no parameter."""
        return replace(self, **WITHOUT_LOG_SCALE)

    def without_updates(self) -> dict[str, Any] | None:
        """Return changes after which no layer updates the position state; None where none does."""
        return None
