"""The text of an answer while its tokens come: pieces that together are the text of all tokens, up to a stop string.

A piece is given once no later token can change it: a token may end in the middle of a character, and a text may begin
a stop string. Only the last tokens are decoded each time, from a place where the text before them is known.
"""

from collections.abc import Callable, Sequence

from tape_ds.serving.token_texts import UNREADABLE, TokenTexts

# tokens that are decoded again at most, unless their text cannot be cut
_WINDOW = 64


class AnswerText:
    """Takes tokens and gives text.

    Args:
        texts: of the tokenizer.
        stops: strings before which the text ends.
        context: tokens of a prompt that the text continues; without, the text is that of the answer's tokens alone.
        decode: from ids to text; default: without special tokens.
    """

    def __init__(
        self,
        texts: TokenTexts,
        stops: Sequence[str] = (),
        context: Sequence[int] = (),
        decode: Callable[[Sequence[int]], str] | None = None,
    ):
        self._texts = texts
        self._decode = decode or texts.decode
        self._stops = stops
        self._ids = list(context)
        # of the window, in tokens
        self._start = 0
        # characters before the window
        self._before = 0
        self._origin = len(self._decode(self._ids)) if context else 0
        # characters that were given
        self._sent = self._origin
        self.stopped = False
        """Whether a stop string was found."""

    @property
    def length(self) -> int:
        """Characters of the answer that are settled."""
        return max(self._before + len(self._settled()), self._sent) - self._origin

    @property
    def sent(self) -> int:
        """Characters of the answer that were given."""
        return self._sent - self._origin

    def add(self, token: int) -> str:
        """Return the text that is settled with one more token."""
        self._ids.append(token)
        piece = self._given(self._settled(), is_whole=False)
        if len(self._ids) - self._start > _WINDOW:
            self._move()
        return piece

    def finish(self) -> str:
        """Return the rest."""
        if self.stopped:
            return ""
        return self._given(self._decode(self._ids[self._start :]), is_whole=True)

    def _settled(self) -> str:
        end = len(self._ids)
        # a run of bytes may still become a character, whose text is then another
        while end > self._start and self._ids[end - 1] in self._texts.run_tokens:
            end -= 1
        text = self._decode(self._ids[self._start : end]).rstrip(UNREADABLE)
        if self._texts.unsettled:
            return text[: len(text) - self._texts.unsettled]
        return text

    def _given(self, window_text: str, *, is_whole: bool) -> str:
        fresh = window_text[self._sent - self._before :]
        places = [fresh.index(stop) for stop in self._stops if stop in fresh]
        if places:
            self.stopped = True
            fresh = fresh[: min(places)]
        elif not is_whole:
            fresh = fresh[: len(fresh) - self._begun(fresh)]
        self._sent += len(fresh)
        return fresh

    def _begun(self, text: str) -> int:
        """Return how many characters at the end of a text may be the beginning of a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0

    def _move(self) -> None:
        """Let the window begin later, where the text falls into two parts that were both given."""
        # half of it, so that the next many tokens need no move
        start = len(self._ids) - _WINDOW // 2
        whole = self._decode(self._ids[self._start :])
        rest = self._decode(self._ids[start:])
        first = whole.removesuffix(rest)
        # where a character, or a run of bytes, would be cut, the window stays: the next token tries again
        cut_through = (
            rest.startswith(UNREADABLE)
            or first.endswith(UNREADABLE)
            or self._ids[start] in self._texts.run_tokens
        )
        if (
            rest
            and whole.endswith(rest)
            and not cut_through
            and self._before + len(first) <= self._sent
        ):
            self._start = start
            self._before += len(first)
