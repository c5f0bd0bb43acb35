"""Which windows of a text are read, and which of their tokens are scored: one function for each published convention.

Perplexity at a length means different things in different papers, and the numbers do not compare:

- ``all_tokens``: a window at every multiple of the stride, every token of it but the first scored, so most tokens many
  times, with little context and with much. LongLoRA's evaluation and TAPE's (stride 256, Table 2).
- ``new_tokens``: the same windows, but only tokens that no window before has scored: each once, and but for the first
  window with at least ``length - stride`` tokens before it. PoSE's evaluation, YaRN's, and Hugging Face's guide to
  perplexity of models of fixed length.
- ``blocks``: windows that do not overlap, every token of them but the first scored. TAPE's evaluation of models trained
  from scratch (Tables 6 and 7).

With ``begin`` each window is read behind one further token (BOS), which counts towards its length and gives its first
token a context; PoSE and YaRN do so.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """A piece of a text that is read at once; positions count from the text's first token."""

    start: int
    """First token that is read."""
    end: int
    """One past the last."""
    first: int
    """First token that is scored; all from there to the end are."""

    @property
    def targets(self) -> int:
        """Tokens that are scored."""
        return self.end - self.first


Convention = Callable[[int, int, int, bool], list[Window]]
"""``convention(tokens, length, stride, begin)``: the windows of a text of ``tokens`` tokens, in order; none where the
text is too short for the convention."""


def all_tokens(tokens: int, length: int, stride: int, begin: bool = False) -> list[Window]:
    """Windows at 0, stride, 2 stride, ... while they start before ``tokens - length``.

    That bound is the published code's: a window that would end with the text's last token is left out, and so is a text
    of exactly ``length`` tokens.
    """
    size = _size(length, stride, begin)
    return [Window(start, start + size, start + 1 - begin) for start in range(0, tokens - size, stride)]


def new_tokens(tokens: int, length: int, stride: int, begin: bool = False) -> list[Window]:
    """Windows at 0, stride, 2 stride, ..., the last of them ending with the text and perhaps shorter.

    A text shorter than ``length`` is one window. With a stride of the whole window and without ``begin``, its first
    token has no context and is not scored.
    """
    size = _size(length, stride, begin)
    found: list[Window] = []
    scored = 0
    for start in range(0, tokens, stride):
        end = min(start + size, tokens)
        first = max(scored, start + 1 - begin)
        if end > first:
            found.append(Window(start, end, first))
        scored = end
        if end == tokens:
            break
    return found


def blocks(tokens: int, length: int, stride: int | None = None, begin: bool = False) -> list[Window]:
    """Consecutive windows; what is left at the end, too little for one, is dropped. There is no ``stride``."""
    size = _size(length, 1, begin)
    return [Window(start, start + size, start + 1 - begin) for start in range(0, tokens - size + 1, size)]


def _size(length: int, stride: int, begin: bool) -> int:
    """Return tokens of the text in a full window.

    Raises:
        ValueError: a window without a target, a stride that leaves tokens out.
    """
    if length < 2:
        raise ValueError(f"length = {length}: a window needs 2 tokens, the first is no target")
    if not 1 <= stride <= length - begin:
        raise ValueError(f"stride = {stride}: 1 to {length - begin}, or tokens are left out")
    return length - begin


CONVENTIONS: dict[str, Convention] = {"all_tokens": all_tokens, "new_tokens": new_tokens, "blocks": blocks}
"""By the names that people type."""


@dataclass(frozen=True)
class Scoring:
    """Which windows are scored, and how."""

    convention: str
    stride: int
    """Ignored by a convention that has none."""
    begin: int | None
    """Token that begins each window."""
    first_window: bool
    """Whether only the first window of each text is scored."""
    drop_last: bool
    """Whether the last window of each text is left out."""
    spans: int | None
    """Positions per span of the loss by position; None: it is not computed."""

    def room(self, length: int) -> int:
        """Return how many tokens of a text fill a window."""
        return length - (self.begin is not None)

    def windows(self, tokens: int, length: int) -> list[Window]:
        """Return the windows of one text."""
        windows = CONVENTIONS[self.convention](tokens, length, self.stride, self.begin is not None)
        windows = windows[:-1] if self.drop_last else windows
        return windows[:1] if self.first_window else windows
