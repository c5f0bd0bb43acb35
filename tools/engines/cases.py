"""Folders of small models with random weights, one for each scaling and spelling, and what transformers computes of
them: log-probabilities, and cosines and sines for the engines that are compared by them.

The weights are sharp enough that a wrong angle shows: a wrong scaling changes log-probabilities by 0.5 to 7, and a
right one by less than :data:`tools.engines.comparison.RIGHT`.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tape_ds.engines import table
from tape_ds.export import config_json
from tape_ds.models.library_messages import quieten_libraries
from tape_ds.models.saving import without_bar

NATIVE = 256
"""Tokens of context before scaling."""
LENGTHS = {"short": 100, "long": 600}
"""Tokens of the prompts."""
TABLE_LENGTHS = {**LENGTHS, "edge": NATIVE + 1}
"""Positions of the tables; ``edge``: the first text that is longer than before scaling."""
_TARGET = 4 * NATIVE
_VOCABULARY = 320
# half of a head
_FREQUENCIES = 32
_SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": _VOCABULARY,
    "initializer_range": 0.08,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": NATIVE}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LONG = [1.0 + 3.0 * index / (_FREQUENCIES - 1) for index in range(_FREQUENCIES)]
_LONGROPE = {
    "rope_type": "longrope",
    "factor": 4.0,
    "original_max_position_embeddings": NATIVE,
    "long_factor": _LONG,
}
SCALINGS: Mapping[str, Mapping[str, Any]] = {
    "none": {"rope_type": "default"},
    "theta": {"rope_type": "default", "rope_theta": 500_000.0},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": _YARN,
    "yarn_attention": {**_YARN, "attention_factor": 1.0},
    "yarn_exact_ramp": {**_YARN, "truncate": False},
    "yarn_exact_ramp_attention": {**_YARN, "truncate": False, "attention_factor": 1.0},
    "yarn_betas": {**_YARN, "beta_fast": 8.0, "beta_slow": 1.0},
    "llama3": {**_LLAMA3, "original_max_position_embeddings": NATIVE},
    "longrope": {**_LONGROPE, "short_factor": [1.0] * _FREQUENCIES},
}
FAMILIES = ("llama", "qwen2", "qwen3", "olmo2")
"""The last one is extended by transformers' own class."""
_SPELLED = {
    "rope_parameters_only": ("theta", "yarn"),
    "older_keys_only": ("theta", "yarn"),
}
"""Spellings beside the exported one, and the scalings that are tried with them."""


@dataclass(frozen=True)
class Case:
    family: str
    scaling: str
    spelling: str = "exported"

    @property
    def name(self) -> str:
        parts = [self.family, self.scaling]
        if self.spelling != "exported":
            parts.append(self.spelling)
        return "-".join(parts)


def cases() -> Iterator[Case]:
    for family in FAMILIES:
        for scaling in SCALINGS:
            yield Case(family, scaling)
        for spelling, scalings in _SPELLED.items():
            for scaling in scalings:
                yield Case(family, scaling, spelling)


def prompt(name: str) -> list[int]:
    """Return the token ids of a prompt: seeded, without special tokens."""
    chosen = np.random.default_rng(0).integers(3, _VOCABULARY, max(TABLE_LENGTHS.values()))
    return [int(token) for token in chosen[: TABLE_LENGTHS[name]]]


def write(folder: Path) -> None:
    """Write every case's model folder to ``folder / NAME``, and ``prompts.json``. References in a folder, by the names
    of prompts: ``transformers.npz``, log-probabilities fp32 [T, V] (:data:`LENGTHS`); ``tables.npz``, cosines and sines
    times the factor on attention, fp32 [T, 2 F] (:data:`TABLE_LENGTHS`)."""
    folder.mkdir(parents=True, exist_ok=True)
    prompts = {name: prompt(name) for name in TABLE_LENGTHS}
    (folder / "prompts.json").write_text(json.dumps(prompts), encoding="utf-8")
    weights: dict[str, Any] = {}
    quieten_libraries()
    with without_bar():
        for case in cases():
            _write_case(case, folder / case.name, weights, prompts)


def configuration(case: Case) -> PreTrainedConfig:
    """Return the configuration of a case's model, as transformers has it."""
    # dynamic scaling begins beyond the model's length, which is the native one
    rope = {"rope_theta": 10_000.0, **SCALINGS[case.scaling]}
    length = NATIVE if rope["rope_type"] == "dynamic" else _TARGET
    kind = CONFIG_MAPPING[case.family]
    return kind(**_SIZES, max_position_embeddings=length, rope_parameters=copy.deepcopy(rope))


def spelled(case: Case, written: dict[str, Any]) -> dict[str, Any]:
    """Return the ``config.json`` of a case in its spelling, from what transformers wrote."""
    if case.spelling == "rope_parameters_only":
        return written
    exported = config_json.for_engines(written, CONFIG_MAPPING[case.family])
    if case.spelling == "older_keys_only":
        exported.pop("rope_parameters")
    return exported


def _write_case(
    case: Case, out: Path, weights: dict[str, Any], prompts: Mapping[str, list[int]]
) -> None:
    config = configuration(case)
    config.dtype = torch.float32
    # the weights of a family are the same in all its cases: what differs is the scaling alone
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    if case.family in weights:
        model.load_state_dict(weights[case.family])
    else:
        weights[case.family] = model.state_dict()
    model.save_pretrained(out)
    _tokenizer().save_pretrained(out)
    exported = spelled(case, json.loads((out / "config.json").read_text(encoding="utf-8")))
    (out / "config.json").write_text(json.dumps(exported, indent=2), encoding="utf-8")
    flags = {}
    for verdict in table.verdicts(exported):
        if verdict.result == "flag":
            flags[verdict.engine.name] = verdict.says
    # which readers pass on
    (out / "flags.json").write_text(json.dumps(flags), encoding="utf-8")

    # the reference is of the folder, as it is read, since the spelling is what is tried
    again: Any = AutoModelForCausalLM.from_pretrained(
        out, attn_implementation="eager", dtype=torch.float32
    ).eval()
    log_probabilities: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    rotary = copy.deepcopy(again.model.rotary_emb)
    for name, ids in prompts.items():
        # a dynamic one remembers the longest text
        tables[name] = _table(copy.deepcopy(rotary), len(ids))
        if name not in LENGTHS:
            continue
        with torch.no_grad():
            logits = again(torch.tensor([ids])).logits[0]
            as_made = model(torch.tensor([ids])).logits[0]
        assert torch.equal(logits, as_made), (
            f"{case.name}: transformers reads another model from its folder"
        )
        log_probabilities[name] = torch.log_softmax(logits.float(), -1).numpy()
    np.savez(out / "transformers.npz", **log_probabilities)
    np.savez(out / "tables.npz", **tables)


def _table(rotary: Any, length: int) -> np.ndarray:
    """Return the cosines and sines of positions 0 to ``length``, times the factor on attention: fp32 [T, 2 F]."""
    positions = torch.arange(length)[None]
    cosines, sines = rotary(torch.zeros(1), positions)
    # both halves of a head have the same angles
    return torch.cat([cosines[0, :, :_FREQUENCIES], sines[0, :, :_FREQUENCIES]], -1).numpy()


def _tokenizer() -> PreTrainedTokenizerFast:
    # some engines read no folder without a tokenizer, although prompts are ids
    vocabulary = {f"w{index}": index for index in range(_VOCABULARY)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="w0", bos_token="w1", eos_token="w2", pad_token="w0"
    )
