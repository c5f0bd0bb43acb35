"""How the tokens of an answer are drawn: what a request says, else what the model's generation_config says, else
OpenAI's defaults.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tape_ds.errors import Problem

GREEDY_BELOW = 1e-4
"""A temperature below it draws the most likely token, as its limit does: logits divided by less leave fp32."""


@dataclass(frozen=True)
class Defaults:
    """Of a request that does not say; OpenAI's, unless the model's generation_config says something else."""

    temperature: float = 1.0
    top_p: float = 1.0
    # 0: all
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None

    @property
    def changed(self) -> dict[str, Any]:
        """Return the fields that differ from OpenAI's."""
        usual = asdict(Defaults())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}


# of generation_config: what ends a text is tape_ds.scoring.generation.ends_of, how long it may be is --max_length, and
# the rest changes no text
_ELSEWHERE = {
    *(
        "eos_token_id",
        "bos_token_id",
        "pad_token_id",
        "decoder_start_token_id",
        "max_length",
        "do_sample",
    ),
    *(
        "use_cache",
        "cache_implementation",
        "cache_config",
        "return_legacy_cache",
        "prefill_chunk_size",
    ),
    *(
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "output_logits",
        "return_dict_in_generate",
    ),
    *(
        "transformers_version",
        "disable_compile",
        "compile_config",
        "token_healing",
        "_from_model_config",
    ),
}


def of_model(config: GenerationConfig) -> tuple[Defaults, list[Problem]]:
    """Return what a model's generation_config says, with a problem for each field that this server does not do."""
    named: dict[str, Any] = {}
    problems = []
    usual = Defaults()
    for name, value in config.to_diff_dict().items():
        asks_nothing = value is None or value is False or value == [] or value == {} or value == ""
        if name in _ELSEWHERE or asks_nothing:
            continue
        if hasattr(usual, name) and name != "changed":
            named[name] = value
        elif value is True or value not in (0, 1):
            # 1 beam, a factor of 1, a least length of 0
            wrong = "the server does not do what this field asks"
            remedy = "--defaults openai, which uses none of the model's own settings"
            problems.append(Problem(f"generation_config.json: {name}", value, wrong, remedy))
    return Defaults(**named), problems


@dataclass(frozen=True)
class AnswerSettings:
    """Of one answer."""

    temperature: float
    top_p: float
    max_tokens: int
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stops: tuple[str, ...] = ()
    likeliest: int | None = None
    """Of how many tokens each step's probabilities are told; None: not even the answer's own."""

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def takes_likeliest(self) -> bool:
        """Whether each token is that with the model's largest logit."""
        unchanged = (
            self.repetition_penalty == 1
            and not self.presence_penalty
            and not self.frequency_penalty
        )
        return self.is_greedy and unchanged and not self.logit_bias

    def processors(self, prompt_tokens: int) -> LogitsProcessorList:
        """Return what changes the logits before a token is drawn, in the order of transformers' ``generate``."""
        processors = LogitsProcessorList()
        if self.repetition_penalty != 1:
            processors.append(RepetitionPenaltyLogitsProcessor(self.repetition_penalty))
        if self.presence_penalty or self.frequency_penalty:
            processors.append(
                Penalties(self.presence_penalty, self.frequency_penalty, prompt_tokens)
            )
        if self.logit_bias:
            processors.append(Biased(self.logit_bias))
        # the rest moves no token to the first place
        if self.is_greedy:
            return processors
        if self.temperature != 1:
            processors.append(TemperatureLogitsWarper(self.temperature))
        if self.top_k:
            processors.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            processors.append(TopPLogitsWarper(self.top_p))
        if self.min_p:
            processors.append(MinPLogitsWarper(self.min_p))
        return processors


class Penalties(LogitsProcessor):
    """OpenAI's: a token that occurs ``c > 0`` times in the answer loses ``c * frequency + presence``."""

    def __init__(self, presence: float, frequency: float, prompt_tokens: int):
        self.presence = presence
        self.frequency = frequency
        self.prompt_tokens = prompt_tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        ids, counts = input_ids[0, self.prompt_tokens :].unique(return_counts=True)
        changed = scores.clone()
        changed[0, ids] -= self.frequency * counts.to(scores.dtype) + self.presence
        return changed


class Biased(LogitsProcessor):
    """Adds a number to the logits of some tokens."""

    def __init__(self, biases: Mapping[int, float]):
        self.ids = torch.tensor([*biases])
        self.biases = torch.tensor([*biases.values()])

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        changed = scores.clone()
        changed[:, self.ids.to(scores.device)] += self.biases.to(scores)
        return changed
