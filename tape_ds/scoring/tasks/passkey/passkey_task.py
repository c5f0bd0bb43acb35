"""The passkey tasks of lm-eval: prompts made for the tokenizer at hand, replies scored by two rules, also by length.

``--metadata`` of lm-eval (and the model's arguments, which it adds) decides the prompts: ``lengths``,
``depths``, ``trials``, ``seed``, and the ``tokenizer`` (else ``pretrained``, else ``model``: a folder or a hub id).
The prompts are those of ``tape-ds evaluate passkey`` with the same settings.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import datasets
from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask

from tape_ds.data import passkey, tokenizer
from tape_ds.data.passkey import REPLY_TOKENS, same_ids
from tape_ds.scoring.passkey import first_integer

TOKENIZER_NAMES = ("tokenizer", "pretrained", "model")
"""Under which lm-eval's model arguments may name a tokenizer, the first one found counts."""
RULES = ("exact_match", "exact_ids")


def documents(
    *,
    form: str,
    lengths: Sequence[int],
    depths: Sequence[float],
    trials: int,
    seed: int,
    **metadata: Any,
) -> dict[str, datasets.Dataset]:
    """Return the split ``test``: a row per prompt, with ``length``, ``depth``, ``trial``, ``key`` and ``prompt``."""
    named = list(filter(None, map(metadata.get, TOKENIZER_NAMES)))
    # the model may be an object, which has no name
    named = [name for name in named if isinstance(name, str)]
    if not named:
        raise ValueError(
            "the passkey tasks count tokens, and nothing names a tokenizer: add it to --metadata, "
            'such as {"tokenizer": "MODEL FOLDER OR HUB ID"}'
        )
    loaded = load(named[0])
    rows = []
    for question in passkey.grid(
        loaded, lengths, depths, trials, seed=seed, form=form, reply=REPLY_TOKENS
    ):
        prompt = question.write()
        shared = {
            "length": prompt.length,
            "depth": prompt.depth,
            "trial": prompt.trial,
            "key": prompt.key,
        }
        rows.append({**shared, "prompt": prompt.text, "tokenizer": named[0]})
    return {"test": datasets.Dataset.from_list(rows)}


load = cache(tokenizer.load_tokenizer)


def score(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """1 or 0 by each rule, for all lengths and for this prompt's."""
    (reply,) = results
    found = (
        first_integer(reply) == doc["key"],
        same_ids(load(doc["tokenizer"]), reply, doc["key"]),
    )
    by_rule = dict(zip(RULES, map(float, found), strict=True))
    of_length = {f"{rule}_{doc['length']}": right for rule, right in by_rule.items()}
    return by_rule | of_length


class PasskeyTask(ConfigurableTask):
    """A task of lm-eval's YAML whose metrics are also those of each length that was asked for."""

    def __init__(self, config: dict[str, Any]):
        super().__init__(config={name: value for name, value in config.items() if name != "class"})
        lengths = sorted(set(self.dataset["test"]["length"]))
        self.metrics = [*RULES, *(f"{rule}_{length}" for length in lengths for rule in RULES)]

    def aggregation(self) -> dict[str, Callable[[Sequence[float]], float]]:
        return dict.fromkeys(self.metrics, mean)

    def higher_is_better(self) -> dict[str, bool]:
        return dict.fromkeys(self.metrics, True)
