"""lm-eval's own model class on a model of this project: nothing is cut in silence, and no logits exist as a whole.

``HFLM`` knows the tokenizer, chat templates and how a context is split from its continuation. It would load the model
itself (no adapters of ours), make logits for every position, cut long prompts from the left with no more than a line in
the log, and obey the checkpoint's generation settings: these four are replaced.

Every process is given all requests and forms the same batches, and ``run_jobs`` shares *them* out. So results depend
on the number of processes in no bit, and a batch that is done is known by what it holds, whoever did it.
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from lm_eval.api.instance import Instance
from lm_eval.models import huggingface
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.models.utils_hf import stop_sequences_criteria
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from transformers import GenerationConfig, PreTrainedModel

from evaluation.models import FoundModel, used_at
from tape_ds.data.prompting import appended
from tape_ds.errors import Problem, UserError, did_you_mean, raise_if_any
from tape_ds.scoring import CHUNK, continuations
from tape_ds.scoring.continuations import ContinuationScore, ContinuationSequence
from tape_ds.scoring.generation import continue_prompts, ends_of

Jobs = Sequence[tuple[str, Any]]
RunJobs = Callable[[Jobs, Callable[[Any], Any]], Mapping[str, Any]]
"""Does every job, once, and gives what came of it by key: see :meth:`evaluation.journal.Evaluation.run_jobs`."""

AUTO_TOKENS = 16_384
"""Tokens of a batch, padding among them, where its size is ``auto``; a longer sequence is a batch of its own."""
GENERATION_FIELDS = frozenset(GenerationConfig().to_dict())


class Prompt(NamedTuple):
    """What is continued."""

    settings: str
    """The task's, as JSON."""
    ids: tuple[int, ...]
    nth: int
    """Of equal prompts: a greedy answer is the same each time, a drawn one is another."""


def in_turn(jobs: Jobs, work: Callable[[Any], Any]) -> dict[str, Any]:
    """Return every job here and now."""
    return {key: work(each) for key, each in jobs}


class HarnessModel(huggingface.HFLM):
    """A model that lm-eval can ask; its weights are read when the first batch needs them.

    Args:
        found: see :func:`evaluation.models.find`.
        batch_size: sequences that are read at once, or ``auto``: as many as hold ``AUTO_TOKENS``.
        max_length: tokens that prompt and answer may have together; default: the model's native length.
        truncate: ``left`` or ``middle``: where a context that is too long is cut. None: such a request is an error.
        use_cache: off, all of a text is read again for every new token.
        chunk: tokens of a prompt that are read at once, where the model promises that pieces change nothing.
        seed: of text that is drawn because a task asks for it.
        run_jobs: does the batches.
    """

    def __init__(
        self,
        found: FoundModel,
        *,
        batch_size: int | str = 1,
        max_length: int | None = None,
        truncate: str | None = None,
        use_cache: bool = True,
        chunk: int = CHUNK,
        seed: int = 0,
        run_jobs: RunJobs = in_turn,
    ):
        logging.getLogger(huggingface.__name__).setLevel(logging.ERROR)  # it warns of every model that is an object
        super().__init__(
            cast(Any, found),  # of a model that is an object it asks for device and configuration alone
            backend="causal",
            tokenizer=cast(Any, found.tokenizer()),
            max_length=max_length if max_length is not None else found.native_length,
            batch_size=batch_size,
        )
        self.found, self.truncate = found, truncate
        self._model: Any = found
        self.use_cache, self.chunk, self.seed, self.run_jobs = use_cache, chunk, seed, run_jobs
        self.tasks: Mapping[str, Any] = {}
        """lm-eval's tasks by name: all their requests are measured before the first is answered."""
        self.cut = {"requests": 0, "tokens": 0}
        """What was cut, counted once for each request of a task."""
        self.new_tokens: dict[tuple[str | None, int | None], int] = {}
        """How long each written answer is, by task and number of the document."""
        self._measured = False
        self._appended = appended(self.tokenizer)

    def tok_encode(self, string: str, *args: Any, **kwargs: Any) -> list[int]:
        """As lm-eval's, without the end that some tokenizers append (:mod:`tape_ds.data.prompting`)."""
        ids: list[int] = super().tok_encode(string, *args, **kwargs)
        if self._appended and ids != self.tokenizer.encode(string, add_special_tokens=False):
            return ids[: -self._appended]
        return ids

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        """(log-probability, whether greedy) of each request; equal requests, and equal texts before, are read once."""
        self.measure()
        room = self.max_length + 1  # the last token is predicted, not read
        return self._score([(self._fit(context, room - len(target)), target) for _, context, target in requests])

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of each text, in windows of ``max_length`` that score every token once."""
        self.measure()
        windows = [
            [
                make_disjoint_window(window)
                for window in get_rolling_token_windows(
                    self.tok_encode(request.args[0]), self.prefix_token_id, self.max_length, context_len=1
                )
            ]
            for request in requests
        ]
        found = iter(self._score([pair for each in windows for pair in each]))
        return [sum(next(found)[0] for _ in each) for each in windows]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the text behind each prompt, up to the first of its task's stops; greedy unless a task asks to
        draw."""
        self.measure()
        asked: list[Prompt] = []
        drawn: Counter[tuple[str, tuple[int, ...]]] = Counter()
        for request in requests:
            settings = generation_settings(request.args[1])
            name = json.dumps(settings, sort_keys=True)
            ids = tuple(self._fit(self.tok_encode(request.args[0]), self.max_length - settings["new_tokens"]))
            asked.append(Prompt(name, ids, drawn[name, ids]))
            drawn[name, ids] += settings["do_sample"]
        jobs = []
        for name in dict.fromkeys(each.settings for each in asked):
            alike = dict.fromkeys(each for each in asked if each.settings == name)
            jobs += [(_key("generate", batch), batch) for batch in self._batches(list(alike), lambda each: each.ids)]
        found = self.run_jobs(jobs, self._generate_batch)
        written = {each: said for key, batch in jobs for each, said in zip(batch, found[key], strict=True)}
        for request, each in zip(requests, asked, strict=True):
            self.new_tokens[request.task_name, request.doc_id] = written[each][1]
        return [written[each][0] for each in asked]

    def measure(self) -> None:
        """Measure the requests of all tasks, once.

        Raises:
            UserError: one that is too long and may not be cut, or that leaves no room for any context; an option of
                generation that transformers does not know.
        """
        if not self._measured:
            raise_if_any([problem for name, task in self.tasks.items() for problem in self._check(name, task)])
        self._measured = True

    def _check(self, name: str, task: Any) -> list[Problem]:
        """Return the problems of one task's requests; counts what will be cut."""
        if any(each.request_type == "loglikelihood" and not each.args[1] for each in task.instances):
            wrong = "it asks how likely an empty answer is"
            return [Problem("--tasks", name, wrong, "see its choices, and leave empty ones out")]
        longest, longest_alone, unknown, limit = 0, 0, set(), self.max_length
        for instance in task.instances:
            if instance.request_type == "loglikelihood_rolling":
                continue  # windows of the right length, nothing is cut
            if instance.request_type == "generate_until":
                settings = generation_settings(instance.args[1])
                alone = settings["new_tokens"]
                tokens = len(self.tok_encode(instance.args[0])) + alone
                unknown |= set(settings) - GENERATION_FIELDS - {"new_tokens", "until"}
            else:
                context, target = self._pair(*instance.args)
                alone = len(target) - 1
                tokens = len(context) + alone
            longest, longest_alone = max(longest, tokens), max(longest_alone, alone)
            self.cut["requests"] += tokens > limit
            self.cut["tokens"] += max(0, tokens - limit)
        found = []
        for each in sorted(unknown):
            remedy = did_you_mean(each, GENERATION_FIELDS)
            found.append(Problem("--gen_kwargs", each, f"{name} asks for it, and generate knows none", remedy))
        if longest_alone >= limit:
            wrong = f"the answer alone has {longest_alone:,} tokens, max_length is {limit:,}"
            found.append(Problem("--tasks", name, wrong, "raise --max_length, or lower max_gen_toks in --gen_kwargs"))
        elif longest > limit and self.truncate is None:
            wrong = f"its longest request has {longest:,} tokens with the answer, max_length is {limit:,}"
            remedy = f"--max_length {longest}, or --truncate left|middle, which cuts contexts and counts them"
            found.append(Problem("--tasks", name, wrong, remedy))
        return found

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Token ids of both, as ``loglikelihood`` splits them."""
        if context:
            return cast(tuple[list[int], list[int]], self._encode_pair(context, continuation))
        ids = self.tok_encode(continuation, add_special_tokens=False)
        return (ids[:1], ids[1:]) if ids[0] == self.prefix_token_id else ([self.prefix_token_id], ids)

    def _fit(self, ids: Sequence[int], room: int) -> list[int]:
        """``room`` tokens at most."""
        too_many = len(ids) - room
        if too_many <= 0:
            return list(ids)
        assert self.truncate is not None and room > 0, "measure() comes first"
        first = 0 if self.truncate == "left" else room // 2
        return [*ids[:first], *ids[first + too_many :]]

    def _score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, bool]]:
        """(log-probability, whether greedy) of each pair of context and continuation."""
        asked = [((*context, *target[:-1]), tuple(target)) for context, target in pairs]
        by_text: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}
        for read, target in asked:
            by_text.setdefault(read, {})[target] = None
        sequences = [ContinuationSequence(read, tuple(targets)) for read, targets in by_text.items()]
        jobs = [
            (_key("score", [vars(sequence) for sequence in batch]), batch)
            for batch in self._batches(sequences, lambda sequence: sequence.read)
        ]
        found = self.run_jobs(jobs, self._score_batch)
        scores = {
            (sequence.read, target): (log_probability, greedy)
            for key, batch in jobs
            for sequence, own in zip(batch, found[key], strict=True)
            for target, (log_probability, greedy) in zip(sequence.continuations, own, strict=True)
        }
        return [scores[each] for each in asked]

    def _batches(self, sequences: Sequence[Any], ids: Callable[[Any], Sequence[int]]) -> list[list[Any]]:
        """Return sequences in batches, the longest first; of one length each, where a sequence's RoPE scaling follows
        from the longest one."""
        apart = (getattr(self.config, "rope_parameters", None) or {}).get("rope_type") in ("dynamic", "longrope")
        batches: list[list[Any]] = []
        for sequence in sorted(sequences, key=lambda sequence: (-len(ids(sequence)), ids(sequence))):
            longest = len(ids(batches[-1][0])) if batches else 0
            limit = max(1, AUTO_TOKENS // max(1, longest)) if self.batch_size == "auto" else self.batch_size
            if not batches or len(batches[-1]) == limit or (apart and len(ids(sequence)) != longest):
                batches.append([])
            batches[-1].append(sequence)
        return batches

    def _score_batch(self, sequences: Sequence[ContinuationSequence]) -> list[list[ContinuationScore]]:
        with self._as_used() as model:
            return continuations.score(model, sequences)

    def _generate_batch(self, batch: Sequence[Prompt]) -> list[tuple[str, int]]:
        """Text and number of tokens behind each prompt; all have the same settings."""
        settings = json.loads(batch[0].settings)
        until, new_tokens = settings.pop("until"), settings.pop("new_tokens")
        end = None if self.eot_token_id is None else self.tokenizer.decode(self.eot_token_id)
        stops = handle_stop_sequences(until, eos=end)
        prompts = [each.ids for each in batch]
        stop = stop_sequences_criteria(self.tokenizer, stops, max(map(len, prompts)), len(prompts))
        devices = [self.device] if self.device.type == "cuda" else []
        with self._as_used() as model, torch.random.fork_rng(devices):
            torch.manual_seed(int(_key(self.seed, batch)[:15], 16))
            new = continue_prompts(
                model,
                prompts,
                new_tokens=new_tokens,
                ends=ends_of(model, self.tokenizer),
                use_cache=self.use_cache,
                chunk=self.chunk,
                stop=stop,
                settings=settings,
            )
        texts = [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in new]
        return [(postprocess_generated_text(text, stops, None), len(ids)) for text, ids in zip(texts, new, strict=True)]

    @contextmanager
    def _as_used(self) -> Iterator[PreTrainedModel]:
        """The model; it answers all requests as a text of ``max_length``, so that no answer depends on its batch."""
        if self._model is self.found:
            self._model = self.found.load()
        with used_at(self._model, self.max_length):
            yield self._model


def generation_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a task's ``generation_kwargs`` ask for: ``new_tokens``, ``until`` and fields of ``GenerationConfig``.

    Text is greedy unless it says ``do_sample: true`` or gives a temperature above 0, as everywhere in lm-eval.

    Raises:
        UserError: values that lm-eval cannot read.
    """
    try:
        settings: dict[str, Any] = dict(normalize_gen_kwargs(dict(given)))
        settings["until"] = handle_stop_sequences(settings.get("until"), eos=None)
    except (ValueError, TypeError) as error:
        raise UserError(Problem("--gen_kwargs", given, str(error), "write name=value, numbers as such")) from error
    settings["new_tokens"] = settings.pop("max_gen_toks")
    if not settings["do_sample"]:
        for drawing in ("temperature", "top_p", "top_k", "min_p"):
            settings.pop(drawing, None)
    return settings


def _key(*content: Any) -> str:
    """Return a name that follows from the content of a batch."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
