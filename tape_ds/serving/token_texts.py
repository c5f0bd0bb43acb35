"""The text and bytes of a tokenizer's single tokens, and how its decoder writes several."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from transformers.convert_slow_tokenizer import bytes_to_unicode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNREADABLE = "\ufffd"
"""Written by decoders for bytes that are no character."""
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# characters: clean_up_tokenization_spaces and WordPiece remove spaces before " n't" at most
_TIDIED = 8


class TokenTexts:
    """Of one tokenizer. Threads may share it: it decodes, which changes nothing in a tokenizer, as encoding does."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase"):
        self.tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab()
        self.longest = max((len(token) for token in vocabulary), default=1)
        """Characters of the longest token; a byte at least."""
        special = set(tokenizer.all_special_ids)
        single_bytes = {index for token, index in vocabulary.items() if _BYTE.fullmatch(token)}
        self.run_tokens = frozenset(single_bytes | special) if single_bytes else frozenset()
        """Tokens of one byte each, whose decoder writes a run of them as text only if the whole run is UTF-8, and
        special tokens, which interrupt no run since an answer's text leaves them out."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        decoder = getattr(backend, "decoder", None)
        state = b"" if decoder is None else bytes(decoder.__getstate__())
        tidies = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
        self.unsettled = _TIDIED if tidies or b'"WordPiece"' in state or b'"CTC"' in state else 0
        """Characters at the end of a text that the next token may still change."""
        self._bytes_of = {}
        if b'"ByteLevel"' in state:
            self._bytes_of = {character: byte for byte, character in bytes_to_unicode().items()}
        ordinary = (index for index in range(len(tokenizer)) if index not in special | single_bytes)
        self._first = next(
            index for index in ordinary if self.decode([index]).strip(f" {UNREADABLE}")
        )
        self.of = lru_cache(maxsize=65_536)(self._of)

    def decode(self, ids: Sequence[int]) -> str:
        """Return an answer's text, without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def decode_all(self, ids: Sequence[int]) -> str:
        """Return a text with its special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def _of(self, token: int) -> tuple[str, tuple[int, ...] | None]:
        """Return a token's text within a text, with the space it begins with, and its bytes, if they are known. The
        text of bytes that are no character is OpenAI's ``bytes:\\xe2\\x80``."""
        # after another token: alone, it would lose the space that many decoders remove at a text's begin
        before = self.decode_all([self._first])
        text = self.decode_all([self._first, token]).removeprefix(before)
        if UNREADABLE not in text:
            return text, tuple(text.encode())
        written = str(self.tokenizer.convert_ids_to_tokens(token))
        match = _BYTE.fullmatch(written)
        if match:
            parts: tuple[int, ...] = (int(match[1], 16),)
        elif self._bytes_of and all(character in self._bytes_of for character in written):
            parts = tuple(self._bytes_of[character] for character in written)
        else:
            return text, None
        return "bytes:" + "".join(f"\\x{part:02x}" for part in parts), parts
