"""lm-eval's own ``HFLM`` with the models of this project and without silent truncation.

Batches, scores and stored answers are lm-eval's, but for the beginning of a text whose likelihood is asked for whole
(perplexity tasks, ``loglikelihood_rolling``): where the tokenizer begins every text with BOS, lm-eval reads BOS twice,
and scores the second as a token of the text. Here it is read once, as in training, and not scored. ``tape-ds evaluate
harness`` evaluates with it.
"""

import inspect
import itertools
import logging
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import starmap
from operator import itemgetter
from typing import Any, cast

import torch
from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.models import huggingface
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig

from tape_ds.data.prompting import around, beginning
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import Problem, UserError
from tape_ds.models.files import exact
from tape_ds.scoring import CHUNK
from tape_ds.scoring.generation import ends_of
from tape_ds.scoring.models import FoundModel, check_tokens, used_at
from tape_ds.scoring.replies import reads_in_pieces

AUTO_TOKENS = 16_384
"""Tokens of a batch, padding included, if its size is ``auto``."""


class HarnessModel(huggingface.HFLM):
    """A model of this project for lm-eval.

    Args:
        found: is loaded here.
        max_length: tokens of prompt and answer together; default: the model's native length.
        truncate: ``left``: lm-eval cuts prompts that are too long; None: they are an error.
        batch_size: ``auto``: as many sequences as have ``AUTO_TOKENS`` together.
    """

    def __init__(
        self,
        found: FoundModel,
        *,
        max_length: int | None = None,
        truncate: str | None = None,
        batch_size: int | str = 1,
    ):
        scaling = (getattr(found.config, "rope_parameters", None) or {}).get("rope_type")
        if scaling in ("dynamic", "longrope") and str(batch_size) != "1":
            wrong = f"with {scaling} scaling a text's numbers would depend on the longest text of its batch"
            raise UserError(Problem("--batch_size", batch_size, wrong, "leave it out, or give 1"))
        # it warns of every model that is an object
        logging.getLogger(huggingface.__name__).setLevel(logging.ERROR)
        self._found = found
        model: Any = found.load()
        # a checkpoint's own settings may sample or forbid repetition: scores would depend on them
        model.generation_config = GenerationConfig(
            eos_token_id=ends_of(model, found.tokenizer()) or None
        )
        super().__init__(
            model,
            backend="causal",
            tokenizer=cast(Any, found.tokenizer()),
            max_length=max_length or found.native_length,
            batch_size=batch_size,
            softmax_dtype="float32",
        )
        self._ranks = RankSync()
        self._rank = self._ranks.rank
        self._world_size = self._ranks.world
        self.truncate = truncate
        self.tasks: Mapping[str, Any] = {}
        """lm-eval's tasks by name, if they are known: all their requests are measured before the first answer."""
        self.cut = {"requests": 0, "tokens": 0}
        """Of this process's requests."""
        self._measured = False
        self._whole: dict[str, array[int]] = {}
        """Ids of texts whose likelihood is asked for whole, from when they are measured until they are scored."""
        _, self._appended = around(self.tokenizer)
        self._beginning = beginning(self.tokenizer)
        self._kept: dict[str, int] = {}
        self._takes_kept = "logits_to_keep" in inspect.signature(model.forward).parameters

    def tok_encode(self, string: str, *args: Any, **kwargs: Any) -> list[int]:
        """Tokenise as HFLM does, without the end that some tokenizers append (:mod:`tape_ds.data.prompting`)."""
        if string in self._whole and not (args or kwargs):
            return self._whole.pop(string).tolist()
        ids: list[int] = super().tok_encode(string, *args, **kwargs)
        if self._appended and ids != self.tokenizer.encode(string, add_special_tokens=False):
            return ids[: -self._appended]
        return ids

    def tok_batch_encode(
        self,
        strings: Sequence[str],
        padding_side: str = "left",
        left_truncate_len: int | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        """Return ids and mask of prompts, padded on the left; each is encoded by :meth:`tok_encode`."""
        most = left_truncate_len or self.max_length
        rows = []
        for string in strings:
            rows.append(torch.tensor(self.tok_encode(string)[-most:], dtype=torch.int64))
        pad = partial(pad_sequence, batch_first=True, padding_side="left")
        ids_BT = pad(rows, padding_value=self.tokenizer.pad_token_id)
        return ids_BT, pad(list(map(torch.ones_like, rows)))

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        self.measure(requests)
        return cast(list[tuple[float, bool]], super().loglikelihood(requests, disable_tqdm))

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return each text's log-likelihood, summed over windows of ``max_length`` as lm-eval cuts them. The
        tokenizer's beginning of a text is only the context of its first window; without one, all is lm-eval's."""
        self.measure(requests)
        if not self._beginning:
            return cast(list[float], super().loglikelihood_rolling(requests, disable_tqdm))
        windows: list[tuple[None, list[int], list[int]]] = []
        owners: list[int] = []
        for number, request in enumerate(requests):
            for context, continuation in self._rolling_windows(request.args[0]):
                windows.append((None, context, continuation))
                owners.append(number)
        totals = [0.0] * len(requests)
        size = self._detect_batch_size() if self.batch_size == "auto" else int(self.batch_size)
        for start in range(0, len(windows), size):
            batch = windows[start : start + size]
            scores = self._loglikelihood_tokens(batch, disable_tqdm=True, override_bs=len(batch))
            for owner, (score, _) in zip(owners[start:], scores, strict=False):
                totals[owner] += score
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _rolling_windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        """Return context and continuation of each window of a text."""
        *more, last = self._beginning
        ids = self.tok_encode(text)
        if ids[: len(self._beginning)] == self._beginning:
            ids = ids[len(self._beginning) :]
        room = self.max_length - len(more)
        rolling = utils.get_rolling_token_windows(ids, last, room, context_len=1)
        windows = list(map(utils.make_disjoint_window, rolling))
        # the first has the rest of the beginning too
        if windows:
            windows[0] = (more + windows[0][0], windows[0][1])
        return windows

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        self.measure(requests)
        return cast(list[str], super().generate_until(requests, disable_tqdm))

    def measure(self, requests: Sequence[Instance]) -> None:
        """Refuse requests that cannot be answered and count what will be cut; if the tasks are known, once for all."""
        if self._measured:
            return
        self._measured = bool(self.tasks)
        by_task = {name: task.instances for name, task in self.tasks.items()} or {"all": requests}
        problems = list(itertools.chain.from_iterable(starmap(self._check, by_task.items())))
        if problems:
            error = UserError(problems)
            # each process measures its own share
            error.on_one_rank = True
            raise error

    def _check(self, task: str, requests: Sequence[Instance]) -> list[Problem]:
        longest = 0
        longest_answer = 0
        for request in requests:
            # read in windows that fit
            if request.request_type == "loglikelihood_rolling":
                ids = self.tok_encode(request.args[0])
                if beyond := check_tokens("--tasks", ids, self._found):
                    return [replace(problem, value=task) for problem in beyond]
                self._whole[request.args[0]] = array("i", ids)
                continue
            if request.request_type == "generate_until":
                try:
                    settings: dict[str, Any] = dict(normalize_gen_kwargs(dict(request.args[1])))
                    handle_stop_sequences(settings.get("until"), eos=None)
                except (ValueError, TypeError) as error:
                    remedy = "write name=value, numbers as such"
                    return [Problem("--gen_kwargs", request.args[1], str(error), remedy)]
                answer = settings["max_gen_toks"]
                prompt = self.tok_encode(request.args[0])
                target = []
                tokens = len(prompt) + answer
            elif not request.args[1]:
                reason = "it asks for the likelihood of an empty answer"
                return [Problem("--tasks", task, reason, "leave it out")]
            else:
                prompt = [self.prefix_token_id]
                target = self.tok_encode(request.args[1], add_special_tokens=False)
                if request.args[0]:
                    prompt, target = self._encode_pair(*request.args)
                # the last token is predicted, not read
                answer = len(target) - 1
                tokens = len(prompt) + answer
            if beyond := check_tokens("--tasks", [*prompt, *target], self._found):
                return [replace(problem, value=task) for problem in beyond]
            longest = max(longest, tokens)
            longest_answer = max(longest_answer, answer)
            cut = max(0, tokens - self.max_length) + (request.doc.get("cut_tokens") or 0)
            self.cut["requests"] += cut > 0
            self.cut["tokens"] += cut

        if longest_answer >= self.max_length:
            reason = (
                f"the answer alone has {longest_answer:,} tokens, max_length is {self.max_length:,}"
            )
            remedy = "raise --max_length, or lower max_gen_toks in --gen_kwargs"
            return [Problem("--tasks", task, reason, remedy)]
        if longest > self.max_length and self.truncate is None:
            reason = f"its longest request has {longest:,} tokens with the answer, max_length is {self.max_length:,}"
            remedy = (
                f"--max_length {longest}, or --truncate left, which cuts prompts and counts them"
            )
            return [Problem("--tasks", task, reason, remedy)]
        return []

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        # HFLM reads the last logits of a text: a batch of one needs no others, which saves most of the memory
        self._kept = {}
        if self._takes_kept and self.batch_size == 1:
            longest = max(map(len, map(itemgetter(-1), requests)), default=1)
            self._kept["logits_to_keep"] = longest
        scores = super()._loglikelihood_tokens(requests, disable_tqdm, override_bs)
        exact.require_numbers(list(map(itemgetter(0), scores)), self.model)
        return cast(list[tuple[float, bool]], scores)

    def _detect_batch_size(self, requests: Sequence[Any] | None = None, pos: int = 0) -> int:
        # lm-eval would double sizes until the memory is full, which ends a process on the CPU
        longest = self.max_length
        if requests:
            longest = len(requests[pos][1]) + len(requests[pos][2])
        return max(1, AUTO_TOKENS // longest)

    def _model_call(
        self, inps: Tensor, attn_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> Tensor:
        # every request is answered as a text of max_length, so that it does not depend on the others of its batch
        with torch.no_grad(), used_at(self.model, self.max_length):
            return cast(Tensor, self.model(inps, use_cache=False, **self._kept).logits)

    def _model_generate(
        self, context: Tensor, max_length: int, stop: list[str], **settings: Any
    ) -> Tensor:
        if context.shape[1] > CHUNK and reads_in_pieces(self.model):
            settings["prefill_chunk_size"] = CHUNK
        with torch.no_grad(), used_at(self.model, self.max_length):
            return cast(Tensor, super()._model_generate(context, max_length, stop, **settings))

    # lm-eval's processes exchange their answers through these

    def all_gather(self, tensor: Tensor) -> Tensor:
        return torch.tensor(self._ranks.objects(tensor.tolist())).flatten()

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        objects = self._ranks.objects(obj)
        if self.rank == dst:
            return objects
        return None

    def barrier(self) -> None:
        self._ranks.objects(None)
