"""Rows of the embeddings and tokens of the tokenizer: how they compare, and dropping rows that no token has.

A row is never added. Padding is masked and needs no token of its own; a checkpoint that got a row for one all the same
(32,001 for Llama's 32,000 tokens, as the code of LongLoRA and TAPE adds for ``[PAD]``) is taken as it is, and says so.
"""

import copy
from typing import Any

import torch
from transformers import PreTrainedConfig

from tape_ds.errors import Problem, raise_if_any
from tape_ds.models.llama import TapeForCausalLM
from tape_ds.models.loading.weight_files import fill

_TABLES = ("model.embed_tokens.weight", "lm_head.weight")


def check_rows(config: PreTrainedConfig, tokenizer: Any) -> list[Problem]:
    """Refuse a tokenizer with tokens beyond the embeddings: a lookup would fail in the middle of a run."""
    tokens = _tokens(tokenizer)
    if tokens <= config.vocab_size:
        return []
    first = ", ".join(map(repr, _names(tokenizer, config.vocab_size)))
    wrong = f"{config.vocab_size:,} rows for a tokenizer of {tokens:,} tokens: no row for {first}"
    return [Problem("model", config.vocab_size, wrong, "use the tokenizer that was saved with this model")]


def rows_note(config: PreTrainedConfig, tokenizer: Any) -> str | None:
    tokens, spare = _tokens(tokenizer), config.vocab_size - _tokens(tokenizer)
    if spare <= 0:
        return None
    unused = "the last row is" if spare == 1 else f"the last {spare:,} rows are"
    return f"{config.vocab_size:,} rows for a tokenizer of {tokens:,} tokens: {unused} never used"


def cut_rows(model: TapeForCausalLM, rows: int, tokenizer: Any) -> TapeForCausalLM:
    """Return a model with the first ``rows`` rows of embeddings and output head; all else is the same tensors. A
    padding token whose row goes is no longer named: padding is masked."""
    problems = []
    if rows > model.config.vocab_size:
        wrong = f"more than the {model.config.vocab_size:,} there are, and rows are never added"
        problems.append(Problem("rows", rows, wrong, f"give {model.config.vocab_size:,} or fewer"))
    elif _tokens(tokenizer) > rows:
        wrong = f"the tokenizer has tokens beyond them: {', '.join(map(repr, _names(tokenizer, rows)))}"
        remedy = f"give {_tokens(tokenizer):,} or more, or another tokenizer, whose tokens all stay"
        problems.append(Problem("rows", rows, wrong, remedy))
    for name in ("bos_token_id", "eos_token_id"):
        given = getattr(model.config, name)
        if any(token >= rows for token in (given if isinstance(given, list) else [given]) if token is not None):
            problems.append(Problem(f"config.{name}", given, f"not among the first {rows:,} rows", "keep its row"))
    raise_if_any(problems)

    config, generation = copy.deepcopy(model.config), copy.deepcopy(model.generation_config)
    config.vocab_size = rows
    for each in (config, generation):
        if each is not None and each.pad_token_id is not None and each.pad_token_id >= rows:
            each.pad_token_id = None
    tensors = {name: x[:rows].clone() if name in _TABLES else x for name, x in model.state_dict().items()}
    with torch.device("meta"):
        cut = TapeForCausalLM(config)
    cut = fill(cut, tensors, "model")
    cut.generation_config = generation
    return cut


def _tokens(tokenizer: Any) -> int:
    return 1 + max(tokenizer.get_vocab().values())


def _names(tokenizer: Any, start: int) -> list[str]:
    behind = sorted((number, token) for token, number in tokenizer.get_vocab().items() if number >= start)
    return [token for _, token in behind[:5]]
