"""Tensor parallelism (Megatron-LM, Shoeybi et al. 2019, arXiv:1909.08053) with sequence-parallel norms (Korthikanti et
al. 2022, arXiv:2205.05198), for every encoding.

``tensor_parallel_plan`` of a model names what is cut: heads and columns in front, rows behind, the vocabulary of
embeddings and output head. Parameters are cut in place; what processes exchange is declared by the model
(:mod:`tape_ds.models.sharding`).

TAPE's state has a part for each key/value head, and its updates act across heads. A process keeps the state of its own
tokens, all heads of them. Two exchanges a layer, of a P-th of the state each, bring it to the heads that are rotated by
it and bring back what attention made of it; so the updates are computed once, not in every process.

``tensor_parallel.autotp_size`` and ``ds_autotp_parsed`` (the model has been cut) have DeepSpeed's engine use the
process groups, ZeRO's sharding, the norm of the gradients and the checkpoints of its own AutoTP.

Shape letters: those of :mod:`tape_ds.models.sharding`, and P processes.
"""

import functools
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from tape_ds.distributed import vocabulary
from tape_ds.distributed.cuts import cut_of, cut_parameter
from tape_ds.distributed.group import GroupShards, RankGroup
from tape_ds.distributed.layout import TENSOR, Layout, check_cuts
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.models.output_head import OutputHead

COLUMNS = "colwise"
ROWS = "rowwise"
_DIMENSION = {
    COLUMNS: {"weight": 0, "bias": 0, "lora_A": None, "lora_B": 0},
    ROWS: {"weight": 1, "lora_A": 1, "lora_B": None},
}
"""Along which each parameter of a linear map, adapters among them, is cut; None: whole in every process."""


def use_tensor_parallelism(
    model: nn.Module, layout: Layout, rank: int, timeout: timedelta | None = None
) -> None:
    """Have ``model`` share its heads, columns and vocabulary with the processes of this one's group, always.

    All processes of a group must be given the same sequences, and call the model equally often; all processes of the
    job must call this function, in the same place, with the same weights. Losses, logits and the gradients of pieces
    are then whole in each of them; gradients of what is whole everywhere are added up as they come.

    ``model`` may be what wraps it, such as peft's; what is trained must be marked already. Raises UserError if a part
    of it cannot be cut, ValueError if it has no plan, RuntimeError if the processes' weights are not the same.
    """
    # by its class: a wrapper such as peft's answers for what it wraps
    bare: Any = next(
        (module for module in model.modules() if hasattr(type(module), "tensor_parallel_plan")),
        None,
    )
    if bare is None:
        raise ValueError(f"{type(model).__name__} has no tensor_parallel_plan")
    raise_if_any(list(check_cuts(bare.config, layout.tensor)))
    plan: Mapping[str, str] = bare.tensor_parallel_plan
    modules = dict(bare.named_modules())
    planned = []
    for name in modules:
        for pattern, style in plan.items():
            # a * is the number of a layer
            if re.fullmatch(re.escape(pattern).replace(r"\*", r"\d+"), name):
                planned.append((style, name))
    for style, name in planned:
        if problem := _check(style, name, modules[name], layout.tensor):
            raise UserError(problem)

    group = RankGroup.of(layout, rank, timeout)
    # pieces of different weights, put side by side, would show nowhere else
    sums = [float(weight.detach().sum(dtype=torch.float64)) for weight in model.parameters()]
    if any(others != sums for others in RankSync().numbers(sums)):
        raise RuntimeError("the processes that are to share the model hold different weights")
    part = vocabulary.VocabularyShard(group, tuple(_sizes(bare.config.vocab_size, group.size)))
    sharding = ModelSharding(part, bare.config)
    for style, name in planned:
        if style == "key_value":
            # fewer heads than processes: all of them in each
            if not sharding.cuts_key_heads:
                continue
            style = COLUMNS
        _cut(modules[name], style, part)
    for parameter in model.parameters():
        # each process has only its tokens' part of the gradient of what is whole
        if parameter.requires_grad and cut_of(parameter) is None:
            parameter.register_hook(group.sum)
    sharding.attach(bare.base_model)
    marked: Any = model
    marked.ds_autotp_parsed = True


def _check(style: str, place: str, module: nn.Module, size: int) -> Problem | None:
    """Check that each parameter's owner still computes the right thing with a piece of it."""
    for name, parameter in module.named_parameters():
        kind = _kind(name)
        fits = kind is not None
        if style == "vocabulary":
            owner = module.get_submodule(name.rpartition(".")[0])
            fits = kind in ("weight", "bias") and isinstance(owner, nn.Embedding | OutputHead)
        if not fits or getattr(parameter, "quant_state", None) is not None:
            wrong = f"{place}.{name} is of a kind that cannot be cut"
            remedy = "adapt linear layers of the blocks, unquantised, by plain LoRA; or use ZeRO-3"
            return Problem(TENSOR, size, wrong, remedy)
    return None


def _kind(name: str) -> str | None:
    """Return which of a linear map's parameters this is, whatever wraps it; None: of an unknown kind."""
    if ".lora_" in f".{name}":
        adapter = re.search(r"(lora_[AB])\.default\.weight$", name)
        return adapter and adapter[1]
    end = name.rpartition(".")[2]
    return end if end in ("weight", "bias") else None


def _sizes(total: int, size: int) -> list[int]:
    return [len(piece) for piece in torch.arange(total).tensor_split(size)]


def _cut(module: nn.Module, style: str, part: vocabulary.VocabularyShard) -> None:
    """Keep this process's piece of a module's parameters, and correct the sizes that its layers store."""
    if style != "vocabulary":
        for name, parameter in module.named_parameters():
            kind = _kind(name)
            dim = None if kind is None else _DIMENSION[style][kind]
            if dim is not None:
                cut_parameter(
                    parameter, dim, _sizes(parameter.shape[dim], part.group.size), part.group
                )
    for layer in module.modules():
        if style == "vocabulary" and isinstance(layer, nn.Embedding | OutputHead):
            for parameter in layer.parameters():
                cut_parameter(parameter, 0, part.sizes, part.group)
            if isinstance(layer, OutputHead):
                layer.part = part
            elif layer.padding_idx is not None:
                # torch keeps this row's gradient at zero, in the process that has it
                inside = part.begin <= layer.padding_idx < part.end
                layer.padding_idx = layer.padding_idx - part.begin if inside else None
        if isinstance(layer, nn.Linear):
            layer.out_features, layer.in_features = layer.weight.shape
        elif isinstance(layer, nn.Embedding):
            layer.num_embeddings = len(layer.weight)


class ModelSharding:
    """The exchanges of a decoder that is cut, as hooks on its modules; see
    :class:`tape_ds.models.sharding.SequenceSharding`."""

    always = caches = True

    def __init__(self, part: vocabulary.VocabularyShard, config: Any):
        self.part = part
        self.heads = config.num_attention_heads
        self.groups = config.num_key_value_heads
        size = part.group.size
        self.cuts_key_heads = self.groups % size == 0
        """Else every process has all of the key/value heads, which are fewer than the processes, and reads one."""
        first = part.group.index * self.groups // size
        self.local_groups = slice(first, first + max(1, self.groups // size))
        """Key/value heads that this process's query heads read."""
        self.shards = TensorShards(part.group, 0)
        """Those of the forward, or of the block that is computed again in a backward."""

    def __call__(self, tokens: int) -> "TensorShards":
        self.shards = TensorShards(self.part.group, tokens)
        return self.shards

    def attach(self, decoder: Any) -> None:
        """Have the modules of a decoder exchange tokens, heads and position states."""
        decoder.sequence_sharding = self
        embedding = decoder.embed_tokens
        embedding.forward = functools.partial(self._embed, embedding.forward)
        decoder.norm.register_forward_hook(lambda _, __, x_BtD: self.shards.gather(x_BtD))
        for layer in decoder.layers:
            layer.self_attn.register_forward_pre_hook(self._before_attention, with_kwargs=True)
            layer.self_attn.register_forward_hook(self._after_attention)
            layer.mlp.register_forward_pre_hook(lambda _, inputs: self.shards.gather(inputs[0]))
            layer.mlp.register_forward_hook(lambda _, __, y_BTD: self.shards.scatter(y_BTD))
            if not self.cuts_key_heads:
                head_dim = layer.self_attn.config.head_dim
                for projection in (layer.self_attn.k_proj, layer.self_attn.v_proj):
                    projection.register_forward_hook(
                        functools.partial(self._local_key_heads, head_dim=head_dim)
                    )

    def _embed(self, embed: Callable[[Tensor], Tensor], ids_BT: Tensor) -> Tensor:
        """Look up this process's entries of the vocabulary, and sum over the processes."""
        self.part.check(ids_BT, "a token")
        absent_BT, local_BT = self.part.local(ids_BT)
        return self.shards.scatter(embed(local_BT).masked_fill(absent_BT[..., None], 0))

    def _before_attention(
        self, _: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        x_BtD, state, inputs = positional
        self.shards = shards = inputs.shards
        start = inputs.start
        # one for each key/value head
        if start is not None and start.dim() == 4 and start.shape[1] > 1:
            start = start[:, self.local_groups]
        if state is not None:
            # a head for each process that reads it
            if not self.cuts_key_heads:
                state = state.repeat_interleave(self.part.group.size // self.groups, dim=1)
            state = shards.to_heads(state)
        inputs = inputs._replace(start=start, heads=shards.local_heads(self.heads))
        return (shards.gather(x_BtD), state, inputs), named

    def _after_attention(self, _: nn.Module, __: Any, output: tuple[Any, ...]) -> tuple[Any, ...]:
        out_BTD, weights, attended = output
        out_BtD = self.shards.scatter(out_BTD)
        if attended is not None:
            attended = self.shards.all_heads(attended)
        return out_BtD, weights, attended

    def _local_key_heads(self, _: nn.Module, __: Any, x_BTC: Tensor, head_dim: int) -> Tensor:
        """All key/value heads -> the one that this process's query heads read."""
        return x_BTC.unflatten(-1, (-1, head_dim))[..., self.local_groups, :].flatten(-2)


class TensorShards(GroupShards):
    def gather(self, x_BtD: Tensor) -> Tensor:
        """Return all tokens of the sequences."""
        return self.join(self.group.gather(x_BtD), dim=1)

    def scatter(self, y_BTD: Tensor) -> Tensor:
        """Parts of a sum -> the sum, of this process's tokens."""
        return self.group.reduce(self.cut(y_BTD, dim=1))

    def to_heads(self, state_BGtC: Tensor) -> Tensor:
        """[B, G, t, C] -> [B, g, T, C]."""
        swapped = self.group.swap(state_BGtC.unflatten(1, (self.group.size, -1)).movedim(1, 0))
        return self.join(swapped, dim=2)
