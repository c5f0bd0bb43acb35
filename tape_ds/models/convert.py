"""Convert a Llama to a TAPE model (and, for ``rope``, to a Llama again), and cut unused rows of its vocabulary.

Nothing is matched loosely: every tensor of the source must be used, and every parameter filled, except those of the
encoding, which a Llama does not have. TAPE's have no effect at the start, so the Llama's logits stay; those of other
encodings start as in a new model, and the log names them. Padding needs no token: a checkpoint with a row for one
(32,001 for Llama's 32,000 tokens, added for ``[PAD]`` by the code of LongLoRA and TAPE) is used as it is, with a note.
"""

import copy
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from tape_ds import encodings
from tape_ds.encodings import trained_rope
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.files.config_file import LLAMA, QWEN2, QWEN3, check_llama_shaped, plain_type
from tape_ds.models.files.exact import fill, load_exact
from tape_ds.models.hollow import is_hollow
from tape_ds.models.llama import TapeForCausalLM

logger = logging.getLogger(__name__)

# Not what describes a class rather than a model: a copied ``model_type`` would shadow the new configuration's own.
_CLASS_FIELDS = {"architectures", "model_type", "transformers_version"}
_PLAIN = {LLAMA: LlamaForCausalLM, QWEN2: Qwen2ForCausalLM, QWEN3: Qwen3ForCausalLM}
_LLAMA_FIELDS = set(LlamaConfig.__dataclass_fields__) - _CLASS_FIELDS


def tape_config(source: PreTrainedConfig, **changes: Any) -> TapeConfig:
    """Return a ``TapeConfig`` with the source's sizes; ``changes`` replace or add fields."""
    raise_if_any(check_llama_shaped(source))
    fields = {
        name: copy.deepcopy(value)
        for name, value in source.to_dict().items()
        if name in _LLAMA_FIELDS
    }
    rope = trained_rope.read(source.to_dict(), source.name_or_path or source.model_type)
    fields["rope_parameters"] = dict(rope.parameters)
    fields["qkv_bias"] = source.model_type == QWEN2
    fields["qk_norm"] = source.model_type == QWEN3
    if source.model_type == TapeConfig.model_type:
        own = (
            "position_encoding",
            "position_options",
            "state_dtype",
            "attention_backend",
            "qkv_bias",
            "qk_norm",
        )
        fields |= {name: copy.deepcopy(getattr(source, name)) for name in own}
    known = set(TapeConfig.__dataclass_fields__)
    raise_if_any(
        [
            Problem(name, changes[name], "no field of TapeConfig", "see TapeConfig")
            for name in changes.keys() - known
        ]
    )
    return TapeConfig(**(fields | changes))


def load(source: str | Path, config: TapeConfig, **arguments: Any) -> TapeForCausalLM:
    """Load a Llama's (or TAPE model's) folder or hub id with ``config``, such as :func:`tape_config` of its own;
    arguments go to ``from_pretrained``."""

    def kind_of(name: str) -> str:
        """Return the end of an encoding parameter's name, the same in every layer; "" for other parameters."""
        return next(
            (name.partition(part)[2] for part in (".position.", "model.encoding.") if part in name),
            "",
        )

    def required(model: Any, missing: Collection[str]) -> list[str]:
        present = {kind_of(name) for name, _ in model.named_parameters() if name not in missing}
        if new := sorted({kind_of(name) for name in missing} - present - {""}):
            logger.info(
                "new parameters of the encoding %s: %s", config.position_encoding, ", ".join(new)
            )
        return [name for name in missing if kind_of(name) not in new]

    model: TapeForCausalLM = load_exact(
        TapeForCausalLM, source, required, config=config, **arguments
    )
    return model


def to_plain(model: TapeForCausalLM) -> LlamaForCausalLM | Qwen2ForCausalLM | Qwen3ForCausalLM:
    """Return transformers' own model with the same weights and RoPE parameters: a Llama, a Qwen2 (biases on queries,
    keys and values alone), or a Qwen3 (norms on queries and keys)."""
    config = model.config
    rope_parameters = encodings.llama_rope_parameters(config)
    if rope_parameters is None:
        remedy = "only RoPE scaling that transformers knows makes a plain Llama; keep others as model type 'tape'"
        encoding = f"{config.position_encoding}, {config.rope_parameters['rope_type']} RoPE"
        encoding += f", {config.position_options}" if config.position_options else ""
        raise UserError(
            Problem("position_encoding", encoding, "not expressible as a Llama", remedy)
        )
    kind: Any = _PLAIN[plain_type(config)]
    known = set(kind.config_class.__dataclass_fields__) - _CLASS_FIELDS
    fields = {name: value for name, value in config.to_dict().items() if name in known}
    if config.qkv_bias and config.head_dim * config.num_attention_heads != config.hidden_size:
        # no field of Qwen2's, but its attention reads it
        fields["head_dim"] = config.head_dim
    with torch.device("meta"):
        plain = kind(kind.config_class(**fields | {"rope_parameters": rope_parameters}))
    plain = fill(plain, model.state_dict(), "state dict")
    # its frequencies are a buffer outside the state dict, still on the meta device
    plain.model.rotary_emb = type(plain.model.rotary_emb)(plain.config).to(model.device)
    plain.generation_config = copy.deepcopy(model.generation_config)
    return plain


def check_rows(config: PreTrainedConfig, tokenizer: Any) -> list[Problem]:
    """Refuse a tokenizer with tokens beyond the embeddings: a lookup would fail in the middle of a run."""
    tokens = 1 + max(tokenizer.get_vocab().values())
    if tokens <= config.vocab_size:
        return []
    first = _tokens_from(config.vocab_size, tokenizer)
    wrong = f"{config.vocab_size:,} rows for a tokenizer of {tokens:,} tokens: no row for {first}"
    return [
        Problem(
            "model", config.vocab_size, wrong, "use the tokenizer that was saved with this model"
        )
    ]


def rows_note(config: PreTrainedConfig, tokenizer: Any) -> str | None:
    tokens = 1 + max(tokenizer.get_vocab().values())
    spare = config.vocab_size - tokens
    if spare <= 0:
        return None
    unused = "the last row is" if spare == 1 else f"the last {spare:,} rows are"
    return f"{config.vocab_size:,} rows for a tokenizer of {tokens:,} tokens: {unused} never used"


def cut_rows(model: TapeForCausalLM, rows: int, tokenizer: Any) -> TapeForCausalLM:
    """Return a model with the first ``rows`` rows of embeddings and output head, and the same tensors otherwise. A
    padding token whose row is cut loses its id: padding is masked. Rows are never added.

    Raises:
        UserError: more rows than there are, or one would be cut that a token needs.
    """
    tokens = 1 + max(tokenizer.get_vocab().values())
    problems = []
    if rows > model.config.vocab_size:
        wrong = f"more than the {model.config.vocab_size:,} there are, and rows are never added"
        problems.append(Problem("rows", rows, wrong, f"give {model.config.vocab_size} or fewer"))
    elif tokens > rows:
        wrong = f"the tokenizer has tokens beyond them: {_tokens_from(rows, tokenizer)}"
        remedy = f"give {tokens} or more, or another tokenizer, whose tokens all stay"
        problems.append(Problem("rows", rows, wrong, remedy))
    for name in ("bos_token_id", "eos_token_id"):
        given = getattr(model.config, name)
        if any(
            token >= rows
            for token in (given if isinstance(given, list) else [given])
            if token is not None
        ):
            problems.append(
                Problem(
                    f"config.{name}", given, f"not among the first {rows:,} rows", "keep its row"
                )
            )
    raise_if_any(problems)

    config = copy.deepcopy(model.config)
    generation = copy.deepcopy(model.generation_config)
    config.vocab_size = rows
    for each in (config, generation):
        if each is not None and each.pad_token_id is not None and each.pad_token_id >= rows:
            each.pad_token_id = None
    tensors = model.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        kept = tensors[name][:rows]
        tensors[name] = kept if is_hollow(kept) else kept.clone()
    with torch.device("meta"):
        cut = TapeForCausalLM(config)
    cut = fill(cut, tensors, "model")
    cut.generation_config = generation
    return cut


def _tokens_from(start: int, tokenizer: Any) -> str:
    beyond = sorted(
        (number, token) for token, number in tokenizer.get_vocab().items() if number >= start
    )
    return ", ".join(repr(token) for _, token in beyond[:5])
