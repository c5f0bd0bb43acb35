"""One layer with an adapter of peft, merged, and proven to compute the same.

The usual layer, LoRA over a linear map, is merged a few rows at a time, by the operations of peft's
``lora.Linear.merge`` in their order. For any other, peft merges the whole layer. The proof is the same for all: on
random inputs, the merged layer gives what peft's layer gave with its adapter. An adapter that no merge expresses is
refused, where peft merges a part of it. A layer reads its weights and its adapter's when it is merged, and lets go of
them when it is asked to.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import layer as lora
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import TrainableTokensWrapper
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from tape_ds.errors import Problem, UserError
from tape_ds.models import hollow
from tape_ds.models.files import exact
from tape_ds.models.files.library_errors import as_message
from tape_ds.models.files.tensor_rows import LoadedRows
from tape_ds.models.hollow import WeightSource
from tape_ds.models.model_weights import NotByTensorError

ROUNDING = 512
"""Largest difference allowed, in units of the dtype's rounding at the largest output, and half of that output at most.
In fp32 the logits of SmolLM2-135M differ by 16 where its adapters (weights of 0.01) change them by 100,000; a larger
model's sums are longer, which is why there is room."""
REMEDY = "use it by peft, unmerged, or train an adapter that can be merged"
_INPUTS = 2
"""Random inputs on which a linear map is compared."""
_TOKENS = 64
"""Tokens on which embeddings are compared, beside those that the adapter trains alone."""


class Adapter:
    """Whose layers these are, for messages."""

    def __init__(self, field: str, name: str, kinds: str):
        self.field = field
        self.name = name
        self.kinds = kinds

    def check(self, what: str, expected: Tensor, found: Tensor) -> None:
        """Raise UserError where the merged model's values of ``what`` are not the adapter model's."""
        difference = (found - expected).abs().max().item()
        largest = expected.abs().max().item()
        allowed = min(ROUNDING * torch.finfo(expected.dtype).eps, 0.5) * largest
        # not ">": a NaN is no agreement
        if not difference <= allowed:
            wrong = (
                f"merging changed {what} by {difference:.3g} of {largest:.3g}, more than rounding "
                f"({allowed:.3g}): the merged model is not the adapter (its kind: {self.kinds})"
            )
            raise UserError(Problem(self.field, self.name, wrong, REMEDY))


def kinds_of(model: PeftModel) -> str:
    """Return the kinds of a model's adapters, in words."""
    kinds = set()
    for config in model.peft_config.values():
        # a member of peft's enumeration, or a plain text in a configuration that was read from a file
        kinds.add(str(getattr(config.peft_type, "value", config.peft_type)))
    return ", ".join(sorted(kinds))


@dataclass(frozen=True)
class _Read:
    """A parameter that is read when it is needed."""

    places: list[tuple[nn.Module, str]]
    source: WeightSource
    empty: nn.Parameter
    """What has these places while it is not."""

    def fill(self, weight: Tensor) -> None:
        hollow.put(self.places, weight)

    def let_go(self) -> None:
        for module, name in self.places:
            module.register_parameter(name, self.empty)

    @property
    def weight(self) -> Tensor:
        return getattr(*self.places[0]).detach()


class MergedLayer:
    """A layer that peft merges."""

    def __init__(
        self,
        path: str,
        layer: nn.Module,
        sources: Mapping[nn.Parameter, WeightSource],
        adapter: Adapter,
    ):
        """``sources``: of all parameters but those of an adapter that is in memory. Raises NotByTensorError."""
        self.path = path
        self._layer: Any = layer
        self._adapter = adapter
        self._base = _base_of(layer)
        self._weights: dict[str, _Read] = {}
        for name, places in hollow.owners(self._base).items():
            held = getattr(*places[0])
            # its own from here on: merging into a head must not change the embeddings that it was tied to
            read = _Read(places, sources[held], hollow.parameter(held))
            read.let_go()
            self._weights[name] = read
        self._of_adapter: list[_Read] = []
        for places in hollow.owners(layer).values():
            held = getattr(*places[0])
            if held in sources:
                self._of_adapter.append(_Read(places, sources[held], held))
        self._merged: dict[str, Tensor] = {}
        self._check_kind()

    @property
    def names(self) -> list[str]:
        """Names of its base's parameters, below :attr:`path`."""
        return list(self._weights)

    def _check_kind(self) -> None:
        if isinstance(self._layer, lora.ParamWrapper):
            return
        if not isinstance(self._base, (nn.Linear, nn.Embedding, Conv1D)):
            kind = f"{type(self._layer).__name__} over {type(self._base).__name__}"
            raise NotByTensorError(f"its adapter has a layer of another kind ({self.path}: {kind})")

    def rows(self, name: str, first: int = 0, last: int | None = None) -> Tensor:
        if name not in self._merged:
            self._merged = self._merge()
        return LoadedRows(self._merged).rows(name, first, last)

    def forget(self) -> None:
        """Let go of merged weights."""
        self._merged = {}

    @torch.no_grad()
    def _merge(self) -> dict[str, Tensor]:
        """Return the merged parameters in fp32; the base's where those are not finite, which others refuse."""
        before = {name: _own_fp32(read.source.rows()) for name, read in self._weights.items()}
        if not all(map(exact.is_finite, before.values())):
            return before
        # In this order: the outputs with the adapter, peft's merge in place, the outputs of what it made.
        self._fill_adapter()
        for name, read in self._weights.items():
            read.fill(before.pop(name))
        try:
            expected = self._outputs()
            wrong = f"peft could not merge its adapter ({self._adapter.kinds})"
            with as_message(wrong, self._adapter.field, self._adapter.name, REMEDY):
                self._let_peft_merge()
            self._adapter.check(f"the output of {self.path}", expected, self._outputs())
            return {name: read.weight for name, read in self._weights.items()}
        finally:
            # The layer is as before: peft would refuse to merge it a second time, and its caches are of these weights.
            for wrapper in self._wrappers():
                wrapper.merged_adapters = []
                getattr(wrapper, "_caches", {}).clear()
            for read in [*self._weights.values(), *self._of_adapter]:
                read.let_go()

    def _fill_adapter(self) -> None:
        for read in self._of_adapter:
            read.fill(_own_fp32(read.source.rows()))

    def _wrappers(self) -> list[Any]:
        """Return peft's layer, and those that are nested in it, each for one parameter of a module."""
        if isinstance(self._layer, TrainableTokensWrapper):
            return [self._layer.token_adapter]
        wrappers = [self._layer]
        while isinstance(wrappers[-1].base_layer, BaseTunerLayer):
            wrappers.append(wrappers[-1].base_layer)
        return wrappers

    def _let_peft_merge(self) -> None:
        for wrapper in self._wrappers():
            wrapper.merge(safe_merge=True)

    def _outputs(self) -> Tensor:
        """Return what the layer computes of some inputs, as it is now."""
        random = torch.Generator().manual_seed(0)
        if isinstance(self._layer, lora.ParamWrapper):
            return torch.cat(
                [_parameter_outputs(wrapper, random).flatten() for wrapper in self._wrappers()]
            )
        if isinstance(self._base, nn.Embedding):
            ids = torch.randint(self._base.num_embeddings, (_TOKENS,), generator=random)
            trained = getattr(self._wrappers()[0], "token_indices", {})
            # those that the adapter trains alone, which a draw would miss
            chosen = torch.tensor([*chain.from_iterable(trained.values())], dtype=torch.long)
            outputs = self._layer(torch.cat([ids, chosen]))
        else:
            width: Any = self._base.nx if isinstance(self._base, Conv1D) else self._base.in_features
            outputs = self._layer(torch.randn(_INPUTS, width, generator=random))
        assert isinstance(outputs, Tensor)
        return outputs


class MergedLinear(MergedLayer):
    """LoRA over a linear map, whose weight is merged a few rows at a time."""

    def __init__(
        self,
        path: str,
        layer: nn.Module,
        sources: Mapping[nn.Parameter, WeightSource],
        adapter: Adapter,
    ):
        super().__init__(path, layer, sources, adapter)
        (self._active,) = self._layer.active_adapters
        self._scale = self._layer.scaling[self._active]
        self._factors: _Factors | None = None

    @staticmethod
    def fits(layer: Any) -> bool:
        """Whether peft would merge this layer by the operations of :meth:`rows`."""
        # a variant (DoRA) has another formula, and another class another merge
        if type(layer) is not lora.Linear or layer.fan_in_fan_out or layer.lora_variant:
            return False
        active = layer.active_adapters
        # several adapters would be added to the weight one after another
        if len(active) != 1 or active[0] not in layer.lora_A:
            return False
        if not isinstance(layer.base_layer, nn.Linear) or layer.lora_bias[active[0]]:
            return False
        return bool(layer.lora_A[active[0]].weight.dtype == torch.float32)

    @torch.no_grad()
    def rows(self, name: str, first: int = 0, last: int | None = None) -> Tensor:
        rows = self._weights[name].source.rows(first, last)
        if name != "weight":
            return rows
        rows_TI = rows.float()
        if self._factors is None:
            self._factors = self._read_adapter()
        factors = self._factors
        # product, scale, sum: peft's order, which decides how the result is rounded
        merged_TI = (factors.up_OR[first:last] @ factors.down_RI).mul_(self._scale).add_(rows_TI)
        expected_NT = factors.probe_NI @ rows_TI.T + factors.added_NO[:, first:last]
        # others refuse weights that are not
        if bool(expected_NT.isfinite().all()):
            self._adapter.check(
                f"the output of {self.path}", expected_NT, factors.probe_NI @ merged_TI.T
            )
        return merged_TI

    def _read_adapter(self) -> "_Factors":
        self._fill_adapter()
        down = self._layer.lora_A[self._active]
        up = self._layer.lora_B[self._active]
        down_RI = down.weight.detach()
        up_OR = up.weight.detach()
        probe_NI = torch.randn(
            _INPUTS, down_RI.shape[1], generator=torch.Generator().manual_seed(0)
        )
        added_NO = up(down(probe_NI)) * self._scale
        for read in self._of_adapter:
            read.let_go()
        return _Factors(down_RI, up_OR, probe_NI, added_NO)

    def forget(self) -> None:
        self._factors = None


@dataclass(frozen=True)
class _Factors:
    """An adapter while its map is merged."""

    down_RI: Tensor
    up_OR: Tensor
    probe_NI: Tensor
    """Inputs."""
    added_NO: Tensor
    """What peft's layers add to the map's outputs for them."""


def merged_layer(
    path: str, layer: nn.Module, sources: Mapping[nn.Parameter, WeightSource], adapter: Adapter
) -> MergedLayer:
    kind = MergedLinear if MergedLinear.fits(layer) else MergedLayer
    return kind(path, layer, sources, adapter)


def _base_of(layer: Any) -> nn.Module:
    if isinstance(layer, TrainableTokensWrapper):
        layer = layer.token_adapter
    base: nn.Module = layer.get_base_layer()
    return base


def _own_fp32(tensor: Tensor) -> Tensor:
    """Return a tensor in fp32 that is not the given one, which peft may write into."""
    return tensor.clone() if tensor.dtype == torch.float32 else tensor.float()


def _parameter_outputs(wrapper: Any, random: torch.Generator) -> Tensor:
    """Return what a wrapped parameter, [I, O] or one for each expert, gives on random inputs: the base's and, where it
    is not merged, the adapter's: by its two factors, as peft's forward adds them (before 0.21 by their product)."""
    weight = wrapper.get_param()
    weight_EIO = weight.reshape(-1, *weight.shape[-2:])
    inputs_EOT = torch.randn(len(weight_EIO), weight.shape[-1], _INPUTS, generator=random)
    outputs_EIT = weight_EIO @ inputs_EOT
    if wrapper.merged:
        return outputs_EIT
    for active in wrapper.active_adapters:
        if active not in wrapper.lora_A:
            continue
        if hasattr(wrapper, "get_delta_factors"):
            left, right, scale = wrapper.get_delta_factors(active)
            added_EIT = scale * (left @ (right @ inputs_EOT))
        else:
            added_EIT = wrapper.get_delta_weight(active).reshape(weight_EIO.shape) @ inputs_EOT
        outputs_EIT = outputs_EIT + added_EIT
    return outputs_EIT
