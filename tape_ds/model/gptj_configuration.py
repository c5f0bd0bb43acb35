"""``ScaledGPTJConfig``: GPT-J's configuration plus RoPE scaling, which transformers' own does not have.

PoSE (Zhu et al. 2023, arXiv:2309.10400) extends GPT-J-6B beside the Llamas. Its positions are rotary ones of its own
kind: the first ``rotary_dim`` columns of a head in neighbouring pairs, base 10,000, and no scaling in transformers.
"""

import copy
from collections.abc import Mapping
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import GPTJConfig, PreTrainedConfig

from tape_ds.errors import Problem, did_you_mean, raise_if_any
from tape_ds.model import attention
from tape_ds.model.positions import scaling

ENCODING = "rope"
"""The one encoding that this model computes."""
_DROPOUTS = ("attn_pdrop", "embd_pdrop", "resid_pdrop")


@strict
class ScaledGPTJConfig(GPTJConfig):
    """Everything of ``GPTJConfig``, and:

    Attributes:
        rope_parameters: transformers' terms, see :mod:`tape_ds.model.positions.scaling`; None: GPT-J's own.
        position_encoding: ``rope``; no other can be computed by this model.
        position_options: None.
        attention_backend: "auto" or a name of :func:`tape_ds.model.attention.available`.

    Raises:
        UserError: (a ValueError) naming every unknown name or impossible value.
    """

    model_type = "tape_gptj"
    feed_forward_matrices = 2
    base_model_tp_plan = None  # GPT-J's own are for transformers' class
    base_model_pp_plan = None

    rope_parameters: dict | None = None
    position_encoding: str = ENCODING
    position_options: dict | None = None
    attention_backend: str = "auto"

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        raise_if_any(self.problems())

    def validate_rope(self) -> None:
        """In place of transformers' own, which knows neither ``ntk`` nor ``yarn_revised``: see :meth:`problems`."""

    @property
    def head_dim(self) -> int:
        """Columns of a head, rotated ones and others."""
        return int(self.n_embd // self.n_head)

    @property
    def num_key_value_heads(self) -> int:
        """As many as query heads."""
        return self.n_head

    @property
    def intermediate_size(self) -> int:
        """Columns inside the feed-forward."""
        return self.n_inner if self.n_inner is not None else 4 * self.n_embd

    def problems(self) -> list[Problem]:
        """Return everything wrong with the fields."""
        problems = check_encoding(self.position_encoding, self.position_options)
        problems += scaling.check(self.rope_parameters or {})
        if scaling.is_dynamic(self.rope_parameters or {}):
            remedy = "choose linear, ntk, yarn or yarn_revised"
            problems.append(Problem("rope_parameters.rope_type", "dynamic", "not computed for GPT-J", remedy))
        problems += attention.problems(self.attention_backend)
        if self.n_embd % self.n_head:
            problems.append(
                Problem("n_head", self.n_head, f"does not divide n_embd = {self.n_embd}", "choose a divisor")
            )
        elif not self.rotary_dim or self.rotary_dim % 2 or not 0 < self.rotary_dim <= self.head_dim:
            wrong = f"not an even number from 2 to the {self.head_dim} columns of a head"
            problems.append(Problem("rotary_dim", self.rotary_dim, wrong, "give the columns that are rotated"))
        problems += [
            Problem(name, getattr(self, name), "no backend computes dropout", "set it to 0")
            for name in _DROPOUTS
            if getattr(self, name)
        ]
        return problems


def check_encoding(name: str, options: Mapping[str, Any] | None = None) -> list[Problem]:
    """Why GPT-J cannot be extended with this positional encoding; empty where it can."""
    problems = []
    if name != ENCODING:
        wrong = "GPT-J has RoPE of its own kind, on a part of each head: nothing else was built for it"
        problems.append(Problem("position_encoding", name, wrong, f"give {ENCODING}, or extend a Llama-shaped model"))
    if options:
        problems.append(Problem("position_options", options, "GPT-J's RoPE takes no options", "leave them out"))
    return problems


def recognises(config: PreTrainedConfig) -> bool:
    """Return whether ``config`` is a GPT-J's, transformers' or this one."""
    return isinstance(config, GPTJConfig)


def configure(native: PreTrainedConfig, **changes: Any) -> ScaledGPTJConfig:
    """Return the configuration of a GPT-J as this model computes it.

    Args:
        native: of the checkpoint, transformers' or of this class.
        changes: fields of :class:`ScaledGPTJConfig` (``rope_parameters``, ``max_position_embeddings``,
            ``attention_backend``, ...) in place of the checkpoint's. ``state_dtype`` may be given as None, as for a
            Llama.

    Raises:
        UserError: a field that does not exist, or values that are impossible.
    """
    own = set(ScaledGPTJConfig.__dataclass_fields__) - {"architectures", "transformers_version"}
    fields = {name: copy.deepcopy(value) for name, value in native.to_dict().items() if name in own}
    changes = {ScaledGPTJConfig.attribute_map.get(name, name): value for name, value in changes.items()}
    problems = []
    if changes.pop("state_dtype", None) is not None:
        problems.append(Problem("state_dtype", "given", "GPT-J has no position state", "leave it out"))
    if getattr(native, "quantization_config", None) is not None:
        name = native.name_or_path or native.model_type
        remedy = "give the model as it was before it was quantised"
        problems.append(Problem("model", name, "its weights are quantised", remedy))
    for name in sorted(changes.keys() - own):
        problems.append(Problem(name, changes[name], "no field of ScaledGPTJConfig", did_you_mean(name, own)))
    raise_if_any(problems)
    return ScaledGPTJConfig(**(fields | changes))
