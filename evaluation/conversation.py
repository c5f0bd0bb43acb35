"""A text that a person and a model write in turns: its tokens, the cache that spares reading them again, the stream.

Plain text goes on where the model stopped; with a chat template, turns are messages. Where the model promises that a
cache changes nothing (``cache_exact``), the cache of one turn is the beginning of the next; otherwise the whole text is
read again.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase, TextStreamer
from transformers.cache_utils import DynamicCache

from evaluation.models import used_at
from tape_ds.model import positions
from tape_ds.model.llama import TapeForCausalLM
from tape_ds.scoring import CHUNK
from tape_ds.scoring.generation import ends_of
from tape_ds.scoring.passkey import reads_in_pieces


@dataclass(frozen=True)
class Drawing:
    """How the next token is chosen. Without anything given it is the most likely one."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    @property
    def greedy(self) -> bool:
        """Nothing is drawn."""
        return self.temperature == 0 or (self.temperature is None and self.top_p is None and self.top_k is None)

    def settings(self) -> dict[str, Any]:
        """The fields of a ``GenerationConfig``: every one that could draw, so that no default counts."""
        if self.greedy:
            return {"do_sample": False}
        temperature = 1.0 if self.temperature is None else self.temperature
        top_p = 1.0 if self.top_p is None else self.top_p
        return {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": self.top_k or 0}


@dataclass(frozen=True)
class Said:
    """One reply, with what it took."""

    text: str
    read_tokens: int
    """Of the whole text, those that were not in the cache."""
    prompt_tokens: int
    """Of the whole text before the reply."""
    new_tokens: int
    first_token_seconds: float
    """From the beginning to the first new token."""
    later_seconds: float
    """From the first new token to the last."""

    def __str__(self) -> str:
        again = "" if self.read_tokens == self.prompt_tokens else f" ({self.read_tokens:,} of them new)"
        rate = f", {(self.new_tokens - 1) / self.later_seconds:.1f} tokens/s" if self.later_seconds > 0 else ""
        return (
            f"prompt {self.prompt_tokens:,} tokens{again}, read in {self.first_token_seconds:.2f} s; "
            f"reply {self.new_tokens:,} tokens{rate}"
        )


@dataclass
class Text:
    """What was said so far, as the tokenizer sees it."""

    tokenizer: PreTrainedTokenizerBase
    chat: bool
    messages: list[dict[str, str]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    def with_turn(self, words: str) -> list[int]:
        """The ids of everything so far and a person's next words; nothing is kept."""
        if self.chat:
            turns = [*self.messages, {"role": "user", "content": words}]
            made: Mapping[str, Any] = self.tokenizer.apply_chat_template(
                turns, add_generation_prompt=True, tokenize=True, return_dict=True
            )
            return list(made["input_ids"])
        if not self.ids:
            return list(self.tokenizer(words, verbose=False)["input_ids"])
        return self.ids + self.tokenizer(f"\n{words}", add_special_tokens=False, verbose=False)["input_ids"]

    def add(self, words: str, reply: str, ids: list[int]) -> None:
        """Keep a turn and its reply; ``ids`` are those of everything."""
        self.messages += [{"role": "user", "content": words}, {"role": "assistant", "content": reply}]
        self.ids = ids


class Conversation:
    """A model in the middle of a text.

    Args:
        model: a causal LM; its own generation settings are put aside for good.
        tokenizer: its tokenizer.
        drawing: how tokens are chosen.
        new_tokens: of a reply, at most.
        chat: whether turns are messages of the tokenizer's chat template.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        drawing: Drawing,
        new_tokens: int,
        chat: bool,
    ):
        self.text = Text(tokenizer, chat)
        self.ends = ends_of(model, tokenizer)
        self.model: Any = model
        self.model.generation_config = GenerationConfig()
        self.drawing, self.new_tokens = drawing, new_tokens
        self.in_pieces = reads_in_pieces(model)
        self.cached: list[int] = []
        self.cache: DynamicCache | None = None
        self.angles: dict[str, Any] | None = None

    def say(self, words: str) -> Said:
        """The model's reply to ``words``, streamed to standard output; Ctrl-C ends it after the token at hand."""
        ids = self.text.with_turn(words)
        cache = self._cache_for(ids)
        known = len(self.cached) if cache is not None else 0
        settings = GenerationConfig(
            max_new_tokens=self.new_tokens,
            eos_token_id=self.ends or None,
            pad_token_id=0,  # one row: nothing is padded
            prefill_chunk_size=CHUNK if self.in_pieces and len(ids) - known > CHUNK else None,
            **self.drawing.settings(),
        )
        stream = _Stream(self.text.tokenizer)
        whole_1T = torch.tensor([ids], device=self.model.device)
        used = used_at(self.model, len(ids) + self.new_tokens)
        with used, _interrupted() as stop, torch.no_grad():
            out_1T = self.model.generate(
                whole_1T,
                attention_mask=torch.ones_like(whole_1T),
                past_key_values=cache,
                generation_config=settings,
                streamer=stream,
                stopping_criteria=[lambda *_: stop.is_set()],
            )
        new = out_1T[0, len(ids) :].tolist()
        kept = new[:-1] if new and new[-1] in self.ends else new
        reply: str = self.text.tokenizer.decode(kept, skip_special_tokens=True)
        self.text.add(words, reply, ids + kept)
        self.cache, self.cached = cache, (ids + new)[:-1] if cache is not None else []
        return Said(reply, len(ids) - known, len(ids), len(new), *stream.seconds())

    def _cache_for(self, ids: list[int]) -> DynamicCache | None:
        """The last turn's cache where it holds the beginning of ``ids``, else a new one; None where none is kept."""
        if not self.in_pieces:
            return None
        config = self.model.config
        if isinstance(self.model, TapeForCausalLM):
            config = positions.config_at(config, len(ids) + self.new_tokens)
        angles = getattr(config, "rope_parameters", None)
        same_angles, self.angles = angles == self.angles, angles
        if self.cache is None or not same_angles or self.cached != ids[: len(self.cached)]:
            self.cache, self.cached = DynamicCache(config=self.model.config), []
        return self.cache


class _Stream(TextStreamer):
    """transformers' own, without the prompt, and with the times of the first and the last token."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.times = [time.monotonic()]

    def put(self, value: Tensor) -> None:
        """Called with the prompt, then with each token."""
        if not self.next_tokens_are_prompt:
            self.times.append(time.monotonic())
        super().put(value)

    def seconds(self) -> tuple[float, float]:
        """To the first token, and from there to the last."""
        first = self.times[1] if len(self.times) > 1 else self.times[0]
        return first - self.times[0], self.times[-1] - first


@contextlib.contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second one interrupts, as ever.

    An exception in the middle of a forward would leave a cache that holds the token in some layers only.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals come to the main thread alone
        return
    before = signal.getsignal(signal.SIGINT)

    def first(*_: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, first)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
