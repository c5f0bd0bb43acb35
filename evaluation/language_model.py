"""lm-eval's view of a model: log-likelihoods and greedy text, in batches by length, nothing cut in silence.

It is a ``TemplateLM``, which owns the field's way of splitting a context from its continuation, and not an ``HFLM``:
that one loads the model itself (no adapters of ours), makes logits for every position, cuts long prompts from the left
with no more than a line in the log, and obeys the checkpoint's generation settings.

lm-eval may share documents out over processes, and each then forms batches of its own. Here every process is given all
requests instead, the same batches are formed everywhere, and ``carry_out`` shares *them* out. So results depend on the
number of processes in no bit, and a batch that is done is known by what it holds, whoever did it.

After ``import evaluation.language_model`` it is also the model ``tape_ds`` of ``lm_eval.simple_evaluate``.
"""

import argparse
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, cast

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.models.utils_hf import stop_sequences_criteria
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from transformers import PreTrainedModel

from evaluation import models
from evaluation.models import FoundModel
from evaluation.request_lengths import Lengths
from tape_ds.scoring import CHUNK, continuations
from tape_ds.scoring.continuations import Row
from tape_ds.scoring.generation import continue_prompts, ends_of

Jobs = Sequence[tuple[str, Any]]
CarryOut = Callable[[Jobs, Callable[[Any], Any]], Mapping[str, Any]]
"""Does every job, once, and gives what came of it by key: see :meth:`evaluation.journal.Evaluation.carry_out`."""

AUTO_TOKENS = 16_384
"""Tokens of a batch, padding among them, where its size is ``auto``; a longer row is a batch of its own."""
REPLY = 256
"""Tokens of an answer where a task does not say: lm-eval's default."""


def in_turn(jobs: Jobs, work: Callable[[Any], Any]) -> dict[str, Any]:
    """Every job here and now."""
    return {key: work(each) for key, each in jobs}


@register_model("tape_ds")
class LanguageModel(TemplateLM):
    """A model that lm-eval can ask; its weights are read when the first batch needs them.

    Args:
        pretrained: an address, see :mod:`evaluation.models`, or what was found there.
        batch_size: rows that are read at once, or ``auto``: as many as hold ``AUTO_TOKENS``.
        max_length: tokens that prompt and answer may have together; default: the model's native length.
        truncate: ``left`` or ``middle``: where a context that is too long is cut. None: such a request is an error.
        use_cache: off, all of a text is read again for every new token.
        chunk: tokens of a prompt that are read at once, where the model promises that pieces change nothing.
        seed: of text that is drawn because a task asks for it.
        carry_out: does the batches.
        address: the rest of the options of :func:`evaluation.options.add_model`, where ``pretrained`` is an address.

    Raises:
        UserError: a model that cannot be found.
    """

    def __init__(
        self,
        pretrained: str | FoundModel,
        *,
        batch_size: int | str = 1,
        max_length: int | None = None,
        truncate: str | None = None,
        use_cache: bool = True,
        chunk: int = CHUNK,
        seed: int = 0,
        carry_out: CarryOut = in_turn,
        **address: Any,
    ):
        super().__init__()
        self.found = pretrained if isinstance(pretrained, FoundModel) else _find(pretrained, address)
        self.tokenizer = cast(Any, self.found.tokenizer())
        self.batch_size = batch_size
        self.max_length = max_length if max_length is not None else self.found.native_length
        self.use_cache = use_cache
        self.chunk = chunk
        self.seed = seed
        self.carry_out = carry_out
        self.lengths = Lengths(self, truncate)

    @cached_property
    def model(self) -> PreTrainedModel:
        """The model itself."""
        return self.found.load()

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.found.device

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return cast(int, self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """The token that stands for an empty context: BOS, or EOS where there is none."""
        bos = self.tokenizer.bos_token_id
        return cast(int, bos if bos is not None else self.tokenizer.eos_token_id)

    @property
    def tokenizer_name(self) -> str:
        """For lm-eval's file names."""
        return self.found.tokenizer_address.replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation in the tokenizer's own form."""
        return cast(
            str,
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            ),
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids with the tokenizer's own beginning, unless the text has it already (a chat template's may)."""
        if add_special_tokens is None and string.startswith(self.tokenizer.decode(self.prefix_token_id)):
            add_special_tokens = False
        told = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return cast(list[int], self.tokenizer.encode(string, **told))

    def encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Token ids of both, as lm-eval splits them; neither is empty."""
        if context:
            return cast(tuple[list[int], list[int]], self._encode_pair(context, continuation))
        ids = self.tok_encode(continuation, add_special_tokens=False)
        return (ids[:1], ids[1:]) if ids[0] == self.prefix_token_id else ([self.prefix_token_id], ids)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """(log-probability, whether greedy) of each request; equal requests, and equal texts before, are read once."""
        self.lengths.check()
        return self._score([self.lengths.fit_pair(context, target) for _, context, target in requests])

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of each text, in windows of ``max_length`` that score every token once."""
        self.lengths.check()
        windows = [self._windows(*request.args) for request in requests]
        found = iter(self._score([pair for each in windows for pair in each]))
        return [sum(next(found)[0] for _ in each) for each in windows]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text behind each prompt, up to the first of its task's stops; greedy unless a task asks to draw."""
        self.lengths.check()
        by_settings: dict[str, dict[tuple[tuple[int, ...], int], list[int]]] = {}
        repeated: dict[tuple[str, tuple[int, ...]], int] = {}
        for number, request in enumerate(requests):
            prompt, told = request.args
            settings = generation_settings(told)
            name = json.dumps(settings, sort_keys=True)
            ids = tuple(self.lengths.fit_prompt(self.tok_encode(prompt), settings["new_tokens"]))
            # a greedy answer is the same each time; a drawn one is another
            nth = repeated.get((name, ids), 0) if settings["do_sample"] else 0
            repeated[name, ids] = nth + 1
            by_settings.setdefault(name, {}).setdefault((ids, nth), []).append(number)
        texts = [""] * len(requests)
        jobs = [
            (_key("generate", name, batch), (json.loads(name), batch))
            for name, asked in by_settings.items()
            for batch in self._batches(list(asked), lambda each: each[0])
        ]
        found = self.carry_out(jobs, self._generate_batch)
        for key, (settings, batch) in jobs:
            asked = by_settings[json.dumps(settings, sort_keys=True)]
            for each, text in zip(batch, found[key], strict=True):
                for number in asked[each]:
                    texts[number] = text
        return texts

    def _windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        windows = get_rolling_token_windows(
            token_list=self.tok_encode(text),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length,
            context_len=1,
        )
        return [make_disjoint_window(window) for window in windows]

    def _score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, bool]]:
        """(log-probability, whether greedy) of each pair of context and continuation."""
        asked = [((*context, *target[:-1]), tuple(target)) for context, target in pairs]
        by_text: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}
        for read, target in asked:
            by_text.setdefault(read, {})[target] = None
        rows = [Row(read, tuple(targets)) for read, targets in by_text.items()]
        batches = self._batches(rows, lambda row: row.read)
        jobs = [(_key("score", [vars(row) for row in batch]), batch) for batch in batches]
        found = self.carry_out(jobs, self._score_batch)
        scores: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, bool]] = {}
        for key, batch in jobs:
            for row, of_row in zip(batch, found[key], strict=True):
                for target, (log_probability, greedy) in zip(row.continuations, of_row, strict=True):
                    scores[row.read, target] = (log_probability, greedy)
        return [scores[each] for each in asked]

    def _batches(self, rows: Sequence[Any], ids: Callable[[Any], Sequence[int]]) -> list[list[Any]]:
        """Rows in batches, the longest first; of one length each, where a row's angles follow from the longest one."""
        ordered = sorted(rows, key=lambda row: (-len(ids(row)), ids(row)))
        apart = _angles_follow_length(self.found.config)
        batches: list[list[Any]] = []
        for row in ordered:
            longest = len(ids(batches[-1][0])) if batches else 0
            limit = max(1, AUTO_TOKENS // max(1, longest)) if self.batch_size == "auto" else int(self.batch_size)
            if not batches or len(batches[-1]) == limit or (apart and len(ids(row)) != longest):
                batches.append([])
            batches[-1].append(row)
        return batches

    def _score_batch(self, rows: Sequence[Row]) -> list[list[tuple[float, bool]]]:
        with self._as_used():
            found = continuations.score(self.model, rows)
        return [[(each.log_probability, each.greedy) for each in of_row] for of_row in found]

    def _generate_batch(self, job: tuple[dict[str, Any], Sequence[tuple[tuple[int, ...], int]]]) -> list[str]:
        told, batch = job
        settings = dict(told)
        prompts = [ids for ids, _ in batch]
        until, new_tokens = settings.pop("until"), settings.pop("new_tokens")
        stops = handle_stop_sequences(list(until), eos=self.tokenizer.decode(self.eot_token_id))
        longest = max(map(len, prompts))
        devices = [self.device] if self.device.type == "cuda" else []
        with self._as_used(), torch.random.fork_rng(devices):
            torch.manual_seed(int(_key(self.seed, told, batch)[:15], 16))
            new = continue_prompts(
                self.model,
                prompts,
                new_tokens=new_tokens,
                ends=ends_of(self.model, self.tokenizer),
                use_cache=self.use_cache,
                chunk=self.chunk,
                stop=stop_sequences_criteria(self.tokenizer, stops, longest, len(prompts)),
                settings=settings,
            )
        texts = [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in new]
        return [cast(str, postprocess_generated_text(text, stops, None)) for text in texts]

    def _as_used(self) -> AbstractContextManager[None]:
        """All requests are answered as a text of ``max_length`` would be, so that no answer depends on its batch."""
        return models.used_at(self.model, self.max_length)


def generation_settings(told: Mapping[str, Any]) -> dict[str, Any]:
    """What a task's ``generation_kwargs`` ask for: ``new_tokens``, ``until`` and fields of ``GenerationConfig``.

    Text is greedy unless it says ``do_sample: true`` or gives a temperature above 0, as everywhere in lm-eval.
    """
    settings: dict[str, Any] = dict(normalize_gen_kwargs(dict(told), REPLY))
    settings["new_tokens"] = settings.pop("max_gen_toks")
    settings["until"] = handle_stop_sequences(settings.get("until"), eos=None)
    if not settings["do_sample"]:
        for drawing in ("temperature", "top_p", "top_k", "min_p"):
            settings.pop(drawing, None)
    return settings


def _find(address: str, told: Mapping[str, Any]) -> FoundModel:
    plain = {"tokenizer": None, "dtype": "auto", "device": "auto", "trust_remote_code": False, "position_updates": "on"}
    unknown = set(told) - set(plain)
    if unknown:
        raise TypeError(f"the model tape_ds takes no {', '.join(sorted(unknown))}")
    return models.find(argparse.Namespace(model=address, **(plain | dict(told))))


def _angles_follow_length(config: Any) -> bool:
    """Whether a text's rotations depend on how long it is, so that rows of a batch would decide about each other."""
    return (getattr(config, "rope_parameters", None) or {}).get("rope_type") in ("dynamic", "longrope")


def _key(*content: Any) -> str:
    """A name that follows from the content of a batch."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def all_instances(tasks: Mapping[str, Any]) -> Iterable[tuple[str, Instance]]:
    """Every request of every task, with the task's name."""
    return ((name, instance) for name, task in tasks.items() for instance in task.instances)
