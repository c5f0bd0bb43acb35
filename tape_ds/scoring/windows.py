"""Windows of a text that are read, and their tokens that are scored: a function for each published convention.

Perplexity at a length means different things in different papers, and the numbers do not compare:

- ``all_tokens``: a window at every multiple of the stride, every token of it but the first scored, so most tokens are
  scored many times, with short and long context. LongLoRA's evaluation and TAPE's (stride 256, Table 2).
- ``new_tokens``: the same windows, but only the tokens that no earlier window scored: each once, and except in the
  first window with at least ``length - stride`` tokens of context. PoSE's and YaRN's evaluations, and Hugging Face's
  guide to perplexity of models of fixed length.
- ``blocks``: disjoint windows, every token but the first scored. TAPE's evaluation of models trained from scratch
  (Tables 6 and 7).

With ``begin`` each window is read after one further token (BOS), which counts towards its length and gives its first
token a context; PoSE and YaRN do so.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """A part of a text that is read at once; positions count from the text's first token."""

    start: int
    """First token that is read."""
    end: int
    """One past the last."""
    first: int
    """First token that is scored, with all after it."""

    @property
    def targets(self) -> int:
        return self.end - self.first


Convention = Callable[[int, int, int, bool], list[Window]]
"""``convention(tokens, length, stride, begin)``: the windows of a text of ``tokens`` tokens, in order; none if it is
too short."""


def all_tokens(tokens: int, length: int, stride: int, begin: bool = False) -> list[Window]:
    """Return windows at 0, stride, 2 stride, ... that start before ``tokens - length``.

    That bound is the published code's: a window that would end with the text's last token is left out, and so is a text
    of exactly ``length`` tokens.
    """
    size = _size(length, stride, begin)
    return [
        Window(start, start + size, start + 1 - begin) for start in range(0, tokens - size, stride)
    ]


def new_tokens(tokens: int, length: int, stride: int, begin: bool = False) -> list[Window]:
    """Return windows at 0, stride, 2 stride, ...; the last one ends with the text and may be shorter.

    A text shorter than ``length`` is one window. With a stride of the whole window and without ``begin``, the first
    token of a window has no context and is not scored.
    """
    size = _size(length, stride, begin)
    windows: list[Window] = []
    scored = 0
    for start in range(0, tokens, stride):
        end = min(start + size, tokens)
        # a token that was scored in the window before is context here
        first = max(scored, start + 1 - begin)
        if end > first:
            windows.append(Window(start, end, first))
        scored = end
        if end == tokens:
            break
    return windows


def blocks(
    tokens: int, length: int, stride: int | None = None, begin: bool = False
) -> list[Window]:
    """Return consecutive windows; a rest too short for one is dropped. ``stride`` has no effect."""
    # a stride of 1 is always allowed
    size = _size(length, 1, begin)
    return [
        Window(start, start + size, start + 1 - begin)
        for start in range(0, tokens - size + 1, size)
    ]


def _size(length: int, stride: int, begin: bool) -> int:
    """Return tokens of the text in a full window."""
    if length < 2:
        raise ValueError(f"length = {length}: a window needs 2 tokens, the first is no target")
    if not 1 <= stride <= length - begin:
        raise ValueError(f"stride = {stride}: 1 to {length - begin}, or tokens are left out")
    return length - begin


CONVENTIONS: dict[str, Convention] = {
    "all_tokens": all_tokens,
    "new_tokens": new_tokens,
    "blocks": blocks,
}


@dataclass(frozen=True)
class Scoring:
    """Options that choose the windows of a text."""

    convention: str
    stride: int
    """No effect for ``blocks``."""
    begin: int | None
    """Token that each window is read after."""
    first_window: bool
    """Whether only the first window of each text is scored."""
    drop_last: bool
    """Whether the last window of each text is left out."""
    spans: int | None
    """Positions per span of the loss by position; None: it is not computed."""

    def room(self, length: int) -> int:
        """Return tokens of a text in a full window."""
        return length - (self.begin is not None)

    def windows(self, tokens: int, length: int) -> list[Window]:
        """Return the windows of a text of ``tokens`` tokens."""
        cut = CONVENTIONS[self.convention]
        windows = cut(tokens, length, self.stride, self.begin is not None)
        # before the first is taken: of a single window none is left
        if self.drop_last:
            windows = windows[:-1]
        if self.first_window:
            return windows[:1]
        return windows
