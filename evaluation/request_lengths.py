"""Requests that are longer than the model reads: an error before work starts, or cut where one says, and counted.

lm-eval cuts from the left as it goes, so that the beginning of a long text, or the shots of a few-shot prompt, are
missing from a number that does not tell. Here all requests of all tasks are measured before the first is answered.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig

from tape_ds.errors import Problem, UserError, did_you_mean, raise_if_any

if TYPE_CHECKING:
    from evaluation.language_model import LanguageModel


class Lengths:
    """The longest texts that a model is asked for, and what of them was cut.

    Args:
        lm: says how text becomes tokens, and how many there may be.
        truncate: ``left`` or ``middle``; None: requests that are too long are an error.
    """

    def __init__(self, lm: "LanguageModel", truncate: str | None):
        self.lm = lm
        self.truncate = truncate
        self.tasks: Mapping[str, Any] = {}
        """lm-eval's tasks by name, whose requests :meth:`check` measures."""
        self.cut = {"requests": 0, "tokens": 0}
        """What was cut, counted once for each request of a task."""
        self._checked = False

    def fit_pair(self, context: Sequence[int], continuation: Sequence[int]) -> tuple[list[int], list[int]]:
        """A context and its continuation that fit: the last token is predicted, not read."""
        room = self.lm.max_length + 1 - len(continuation)
        return self._fit(context, room), list(continuation)

    def fit_prompt(self, prompt: Sequence[int], new_tokens: int) -> list[int]:
        """A prompt that leaves room for the answer."""
        return self._fit(prompt, self.lm.max_length - new_tokens)

    def check(self) -> None:
        """Measure the requests of all tasks, once.

        Raises:
            UserError: one that is too long and may not be cut, or that leaves no room for any context; an option of
                generation that transformers does not know.
        """
        if self._checked:
            return
        problems = [problem for name, task in self.tasks.items() for problem in self._check_task(name, task)]
        raise_if_any(problems)
        self._checked = True

    def _fit(self, ids: Sequence[int], room: int) -> list[int]:
        too_many = len(ids) - room
        if too_many <= 0:
            return list(ids)
        assert self.truncate is not None and room > 0, "check() comes first"
        if self.truncate == "left":
            return list(ids[too_many:])
        first = room // 2
        return [*ids[:first], *ids[first + too_many :]]

    def _check_task(self, name: str, task: Any) -> list[Problem]:
        """The problems of one task's requests; counts what will be cut."""
        longest, longest_alone, unknown = 0, 0, set()
        if any(each.request_type == "loglikelihood" and not each.args[1] for each in task.instances):
            wrong = "it asks how likely an empty answer is"
            return [Problem("--tasks", name, wrong, "see its choices, and leave empty ones out")]
        for instance in task.instances:
            if instance.request_type == "loglikelihood_rolling":
                continue  # windows of the right length, nothing is cut
            tokens, alone, more = self._measure(instance)
            unknown |= more
            longest, longest_alone = max(longest, tokens), max(longest_alone, alone)
            if tokens > self.lm.max_length:
                self.cut["requests"] += 1
                self.cut["tokens"] += tokens - self.lm.max_length
        found = [
            Problem("--gen_kwargs", each, f"{name} asks for it, and generate knows none", did_you_mean(each, _FIELDS))
            for each in sorted(unknown)
        ]
        limit = self.lm.max_length
        if longest_alone >= limit:
            wrong = f"the answer alone has {longest_alone:,} tokens, max_length is {limit:,}"
            found.append(Problem("--tasks", name, wrong, "raise --max_length, or lower max_gen_toks in --gen_kwargs"))
        elif longest > limit and self.truncate is None:
            wrong = f"its longest request has {longest:,} tokens with the answer, max_length is {limit:,}"
            remedy = f"--max_length {longest}, or --truncate left|middle, which cuts contexts and counts them"
            found.append(Problem("--tasks", name, wrong, remedy))
        return found

    def _measure(self, instance: Any) -> tuple[int, int, set[str]]:
        """Tokens that are read in all, those of the answer among them, and unknown options of generation."""
        from evaluation.language_model import generation_settings

        if instance.request_type == "generate_until":
            prompt, told = instance.args
            try:
                settings = generation_settings(told)
            except (ValueError, TypeError) as error:
                raise UserError(
                    Problem("--gen_kwargs", told, str(error), "write name=value, numbers as such")
                ) from error
            new_tokens = settings["new_tokens"]
            unknown = {each for each in settings if each not in ("new_tokens", "until")} - _FIELDS
            return len(self.lm.tok_encode(prompt)) + new_tokens, new_tokens, unknown
        context, continuation = self.lm.encode_pair(*instance.args)
        return len(context) + len(continuation) - 1, len(continuation) - 1, set()


_FIELDS = frozenset(GenerationConfig().to_dict())
