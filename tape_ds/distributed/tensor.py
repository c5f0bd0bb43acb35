"""Tensor parallelism (Megatron-LM, Shoeybi et al. 2019, arXiv:1909.08053) with sequence-parallel norms (Korthikanti et
al. 2022, arXiv:2205.05198), for every encoding.

``tensor_parallel_plan`` of a model names what is cut: heads and columns in front, rows behind, the vocabulary of
embeddings and output head. Parameters are cut where they are, so that linear maps, adapters and whatever wraps them
compute unchanged; what processes exchange is declared by the model (:mod:`tape_ds.models.sharding`).

TAPE's state has a part for each key/value head, and its updates act across heads. A process keeps the state of its own
tokens, all heads of them. Two exchanges a layer, of a P-th of the state each, bring it to the heads that are rotated by
it and bring back what attention made of it; so the updates are computed once, not in every process.

DeepSpeed's engine is told by ``tensor_parallel.autotp_size``, and that the model has been cut (``ds_autotp_parsed``):
its process groups, ZeRO's sharding, the norm of the gradients and its checkpoints are those of its own AutoTP.

Shape letters: those of :mod:`tape_ds.models.sharding`, and P processes.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from tape_ds.distributed import vocabulary
from tape_ds.distributed.cuts import cut, cut_of
from tape_ds.distributed.group import GroupShards, RankGroup
from tape_ds.distributed.layout import TENSOR, Layout, check_cuts
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import Problem, raise_if_any
from tape_ds.models.output_head import OutputHead

COLUMNS, ROWS = "colwise", "rowwise"
_DIMENSION = {
    COLUMNS: {"weight": 0, "bias": 0, "lora_A": None, "lora_B": 0},
    ROWS: {"weight": 1, "lora_A": 1, "lora_B": None},
}
"""Along which each parameter of a linear map, adapters among them, is cut; None: whole in every process."""


def use_tensor_parallelism(model: nn.Module, layout: Layout, rank: int, timeout: timedelta | None = None) -> None:
    """Have ``model`` share its heads, columns and vocabulary with the processes of this one's group, always.

    All processes of a group must be given the same sequences, and call the model equally often; all processes of the
    job must call this function, in the same place, with the same weights. Losses, logits and the gradients of pieces
    are then whole in each of them; gradients of what is whole everywhere are added up as they come.

    Args:
        model: or what wraps it, such as peft's; what is trained must be marked already.
        layout: of the job, whose process group exists.
        rank: of this process.
        timeout: of a collective; None: torch's own.

    Raises:
        UserError: something in it cannot be cut so.
        ValueError: it has no decoder that shares sequences.
        RuntimeError: the processes' weights are not the same.
    """
    # by its class: a wrapper such as peft's answers for what it wraps
    bare: Any = next((module for module in model.modules() if hasattr(type(module), "tensor_parallel_plan")), None)
    if bare is None:
        raise ValueError(f"{type(model).__name__} has no tensor_parallel_plan")
    raise_if_any(list(check_cuts(bare.config, layout.tensor)))
    raise_if_any(list(_problems(bare, layout.tensor)))
    group = RankGroup.of(layout, rank, timeout)
    # pieces of different weights, put side by side, would show nowhere else
    sums = [float(each.detach().sum(dtype=torch.float64)) for each in model.parameters()]
    if any(others != sums for others in RankSync().numbers(sums)):
        raise RuntimeError("the processes that are to share the model hold different weights")
    part = vocabulary.VocabularyShard(group, tuple(_sizes(bare.config.vocab_size, group.size)))
    for style, module in _planned(bare):
        if style == "vocabulary":
            _cut_vocabulary(module, part)
        elif style != "key_value" or _cuts_key_heads(bare.config, group.size):
            _cut_linear(module, COLUMNS if style == "key_value" else style, group)
    for parameter in model.parameters():
        if parameter.requires_grad and cut_of(parameter) is None:
            parameter.register_hook(group.sum)
    ModelSharding(part, bare.config).attach(bare.base_model)
    marked: Any = model
    marked.ds_autotp_parsed = True


def _cuts_key_heads(config: Any, size: int) -> bool:
    """Where there are fewer key/value heads than processes, all of them are in every process, which reads one."""
    return config.num_key_value_heads % size == 0


def _planned(bare: Any) -> Iterator[tuple[str, nn.Module]]:
    """Modules of the plan, with how they are cut."""
    plan: Mapping[str, str] = bare.tensor_parallel_plan
    patterns = [(re.compile(re.escape(name).replace(r"\*", r"\d+")), style) for name, style in plan.items()]
    for name, module in bare.named_modules():
        yield from ((style, module) for pattern, style in patterns if pattern.fullmatch(name))


def _problems(bare: Any, size: int) -> Iterator[Problem]:
    names = {id(module): name for name, module in bare.named_modules()}
    for style, module in _planned(bare):
        for name, parameter in module.named_parameters():
            owner, kind = module.get_submodule(name.rpartition(".")[0]), _kind(name)
            # whether the owner still computes the right thing with a piece of it
            fits = kind is not None
            if style == "vocabulary":
                fits = kind in ("weight", "bias") and isinstance(owner, nn.Embedding | OutputHead)
            if fits and getattr(parameter, "quant_state", None) is None:
                continue
            wrong = f"{names[id(module)]}.{name} is of a kind that cannot be cut"
            remedy = "adapt linear layers of the blocks, unquantised, by plain LoRA; or use ZeRO-3"
            yield Problem(TENSOR, size, wrong, remedy)
            return


def _kind(name: str) -> str | None:
    """Return which of a linear map's parameters this is, whatever wraps it; None: of a kind that is not known here."""
    if ".lora_" in f".{name}":
        return next((kind for kind in ("lora_A", "lora_B") if name.endswith(f"{kind}.default.weight")), None)
    end = name.rpartition(".")[2]
    return end if end in ("weight", "bias") else None


def _sizes(total: int, size: int) -> list[int]:
    return [len(piece) for piece in torch.arange(total).tensor_split(size)]


def _cut_linear(module: nn.Module, style: str, group: RankGroup) -> None:
    for name, parameter in module.named_parameters():
        kind = _kind(name)
        dim = None if kind is None else _DIMENSION[style][kind]
        if dim is not None:
            cut(parameter, dim, _sizes(parameter.shape[dim], group.size), group)
    _tell_sizes(module)


def _cut_vocabulary(module: nn.Module, part: vocabulary.VocabularyShard) -> None:
    for each in module.modules():
        if not isinstance(each, nn.Embedding | OutputHead):
            continue
        for parameter in each.parameters():
            cut(parameter, 0, part.sizes, part.group)
        if isinstance(each, OutputHead):
            each.part = part
        elif each.padding_idx is not None:
            inside = part.begin <= each.padding_idx < part.end
            each.padding_idx = each.padding_idx - part.begin if inside else None
    _tell_sizes(module)


def _tell_sizes(module: nn.Module) -> None:
    """What modules say of themselves."""
    for each in module.modules():
        if isinstance(each, nn.Linear):
            each.out_features, each.in_features = each.weight.shape
        elif isinstance(each, nn.Embedding):
            each.num_embeddings = len(each.weight)


class ModelSharding:
    """The exchanges of a decoder that is cut, as hooks on its modules; see
    :class:`tape_ds.models.sharding.SequenceSharding`."""

    always = caches = True

    def __init__(self, part: vocabulary.VocabularyShard, config: Any):
        self.part = part
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.cuts_key_heads = _cuts_key_heads(config, part.group.size)
        index, size = part.group.index, part.group.size
        first = index * self.groups // size
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
                    projection.register_forward_hook(functools.partial(self._local_key_heads, head_dim=head_dim))

    def _embed(self, embed: Callable[[Tensor], Tensor], ids_BT: Tensor) -> Tensor:
        """Look up this process's entries of the vocabulary, and sum over the processes."""
        self.part.check(ids_BT, "a token")
        absent_BT, local_BT = self.part.local(ids_BT)
        return self.shards.scatter(embed(local_BT).masked_fill(absent_BT[..., None], 0))

    def _before_attention(self, _: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        x_BtD, state, inputs = positional
        self.shards = shards = inputs.shards
        start = inputs.start
        if start is not None and start.dim() == 4 and start.shape[1] > 1:  # one for each key/value head
            start = start[:, self.local_groups]
        if state is not None:
            copies = 1 if self.cuts_key_heads else self.part.group.size // self.groups
            state = shards.to_heads(state.repeat_interleave(copies, dim=1) if copies > 1 else state)
        inputs = inputs._replace(start=start, heads=shards.local_heads(self.heads))
        return (shards.gather(x_BtD), state, inputs), named

    def _after_attention(self, _: nn.Module, __: Any, output: tuple[Any, ...]) -> tuple[Any, ...]:
        out_BTD, weights, attended = output
        return self.shards.scatter(out_BTD), weights, None if attended is None else self.shards.all_heads(attended)

    def _local_key_heads(self, _: nn.Module, __: Any, x_BTC: Tensor, head_dim: int) -> Tensor:
        """All key/value heads -> the one that this process's query heads read."""
        return x_BTC.unflatten(-1, (-1, head_dim))[..., self.local_groups, :].flatten(-2)


class TensorShards(GroupShards):
    def gather(self, x_BtD: Tensor) -> Tensor:
        """Return all tokens of the sequences."""
        return self.stretches.join(self.group.gather(x_BtD), dim=1)

    def scatter(self, y_BTD: Tensor) -> Tensor:
        """Parts of a sum -> the sum, of this process's tokens."""
        return self.group.reduce(self.stretches.cut(y_BTD, dim=1))

    def to_heads(self, state_BGtC: Tensor) -> Tensor:
        """[B, G, t, C] -> [B, g, T, C]."""
        swapped = self.group.swap(state_BGtC.unflatten(1, (self.group.size, -1)).movedim(1, 0))
        return self.stretches.join(swapped, dim=2)
