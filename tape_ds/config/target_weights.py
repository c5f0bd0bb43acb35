"""The section of every recipe about how much each target counts in the loss."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from tape_ds import encodings
from tape_ds.config.trainer import RecipeView
from tape_ds.errors import Problem
from tape_ds.fields import RISKY, Section, Tokens, rule

_READ_BY = {
    "exact": ("exact_tail", "exact_extra", "exact_ratio"),
    "longce": ("longce_short", "longce_stride", "longce_most"),
}
_FIELDS = ("target_weights", *(name for names in _READ_BY.values() for name in names))


class TargetWeights(Section):
    """How much each target counts in the loss."""

    target_weights: Annotated[Literal["equal", "exact", "longce"], RISKY] = "equal"
    """``equal``; ``exact``: more where a target has a long context of its own document before it, by how rare that is;
    ``longce``: by how much better the model predicts a target with its whole context than with a short one
    (docs/target_weights.md)."""
    exact_tail: Annotated[Tokens | None, RISKY] = Field(None, ge=1)
    """``exact``: tokens of left context from which a target counts more; null: a quarter of the window."""
    exact_extra: Annotated[float, RISKY] = Field(1.0, gt=0)
    """``exact``: what is added to the weight 1 of those targets, in their mean."""
    exact_ratio: Annotated[float, RISKY] = Field(2.0, gt=1)
    """``exact``: the longest context of a bucket over its shortest."""
    longce_short: Annotated[Tokens, RISKY] = Field(4096, ge=1)
    """``longce``: tokens of the shortest short context."""
    longce_stride: Annotated[Tokens, RISKY] = Field(1024, ge=1)
    """``longce``: targets that share the beginning of a short context; fewer cost more."""
    longce_most: Annotated[float, RISKY] = Field(5.0, gt=0)
    """``longce``: the largest weight."""

    @property
    def unused_fields(self) -> set[str]:
        """Fields that are not in a checkpoint's identity, so that runs before there were weights resume."""
        if self.target_weights == "equal":
            return set(_FIELDS)
        return set(_FIELDS) - {"target_weights", *_READ_BY[self.target_weights]}

    def tail(self, window: int) -> int:
        if self.exact_tail is None:
            return max(1, window // 4)
        return self.exact_tail

    def outline(self, window: int) -> str:
        """Return the settings in words."""
        if self.target_weights == "exact":
            return (
                f"exact: +{self.exact_extra:g} in the mean from {self.tail(window):,} tokens of left context, "
                f"by inverse frequency in buckets of x{self.exact_ratio:g}"
            )
        return (
            f"longce: min(exp(short - long), {self.longce_most:g}) of losses with {self.longce_short:,} to "
            f"{self.longce_short + self.longce_stride - 1:,} tokens and with all"
        )

    @rule(*_FIELDS)
    def _unread(self, recipe: RecipeView) -> Iterator[Problem]:
        for field in sorted(recipe.given & (self.unused_fields - {"target_weights"})):
            value = getattr(self, field)
            if value is None:
                continue
            kind = next(kind for kind, names in _READ_BY.items() if field in names)
            wrong = f"target_weights = {self.target_weights!r} does not read it"
            yield Problem(field, value, wrong, f"remove it, or target_weights: {kind}")

    @rule("target_weights", "exact_tail", "longce_short", "longce_stride", "window", "max_tokens")
    def _lengths(self, recipe: RecipeView) -> Iterator[Problem]:
        window = recipe.window
        if self.target_weights == "exact" and self.tail(window) >= window:
            wrong = f"no target of a sequence of {window:,} tokens has so many before it"
            yield Problem(
                "exact_tail", self.tail(window), wrong, f"give {max(1, window // 4)} or less"
            )
        shared = self.longce_short + self.longce_stride
        if self.target_weights == "longce" and shared >= window:
            wrong = f"with longce_stride = {self.longce_stride:,} the first short context has all {window:,} tokens "
            wrong += "of a sequence, and every weight would be 1"
            remedy = (
                f"longce_short: {max(1, window // 4)} and longce_stride: {max(1, window // 16)}"
            )
            if window < 4:
                remedy = "target_weights: equal"
            yield Problem("longce_short", self.longce_short, wrong, remedy)

    @rule(
        "target_weights",
        "method",
        "distill",
        "torch_compile",
        "position_encoding",
        "position_options",
    )
    def _possible(self, recipe: RecipeView) -> Iterator[Problem]:
        if self.target_weights == "equal":
            return
        # a kind without the section trains whole models
        method = getattr(recipe, "method", None)
        encoding = getattr(recipe.model, "position_encoding", None)
        reasons = {
            "nothing is trained": not recipe.trains,
            "distill weighs two losses over the same targets": method is not None
            and method.distill,
            f"method = {getattr(method, 'method', None)!r} attends within groups, so a target does not attend to all "
            "that is before it": method is not None and method.chosen.grouped,
            "torch_compile does not take weights": bool(recipe.trainer.torch_compile),
            "positions are drawn at random, and the two losses would differ by the draw": self.target_weights
            == "longce"
            and _draws(encoding, getattr(recipe.model, "position_options", {})),
        }
        wrong = "; ".join(reason for reason, holds in reasons.items() if holds)
        if wrong:
            yield Problem(
                "target_weights",
                self.target_weights,
                wrong,
                "change that, or target_weights: equal",
            )


def _draws(encoding: str | None, options: dict[str, object]) -> bool:
    """Return whether a forward in training draws positions; False if the encoding's name or options are wrong."""
    if encoding is None or encodings.check_options(encoding, options):
        return False
    chosen = encodings.options_of(encoding, options)
    return chosen.draws
