"""One layer with an adapter of peft, merged, and proven to compute the same.

The usual layer, LoRA over a linear map, is merged a few rows at a time, by the operations of peft's
``lora.Linear.merge`` in their order. For any other, peft merges the whole layer. The proof is the same for all: on
random inputs, the merged layer gives what peft's layer gave with its adapter. An adapter that no merge expresses is
refused, where peft merges a part of it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from peft.tuners.lora import layer as lora
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import TrainableTokensWrapper
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from tape_ds.errors import Problem, UserError
from tape_ds.models import hollow
from tape_ds.models.files import exact
from tape_ds.models.files.library_errors import as_message
from tape_ds.models.files.tensor_rows import LoadedRows, TensorRows
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
        if not difference <= allowed:  # not ">": a NaN is no agreement
            wrong = f"merging changed {what} by {difference:.3g} of {largest:.3g}, more than rounding "
            wrong += f"({allowed:.3g}): the merged model is not the adapter (its kind: {self.kinds})"
            raise UserError(Problem(self.field, self.name, wrong, REMEDY))


class MergedLayer:
    """A layer that peft merges."""

    def __init__(self, path: str, layer: nn.Module, origins: Mapping[nn.Parameter, str], adapter: Adapter):
        """``origins``: parameters without their weights -> names in the base. Raises NotByTensorError."""
        self.path = path
        self._layer: Any = layer
        self._adapter = adapter
        self._base = _base_of(layer)
        self._places: dict[str, list[tuple[nn.Module, str]]] = {}
        self._origins: dict[str, str] = {}
        for name, places in hollow.owners(self._base).items():
            origin = origins.get(getattr(*places[0]))
            if origin is not None:
                self._places[name] = places
                self._origins[name] = origin
                # its own from here on: merging into a head must not change the embeddings that it was tied to
                hollow.put(places, _without_memory(getattr(*places[0])))
        self._merged: dict[str, Tensor] = {}
        self._check_kind()

    @property
    def names(self) -> list[str]:
        """Names of its base's parameters, below :attr:`path`."""
        return list(self._origins)

    def _check_kind(self) -> None:
        if isinstance(self._layer, lora.ParamWrapper):
            return
        if not isinstance(self._base, (nn.Linear, nn.Embedding, Conv1D)):
            kind = f"{type(self._layer).__name__} over {type(self._base).__name__}"
            raise NotByTensorError(f"its adapter has a layer of another kind ({self.path}: {kind})")

    def rows(self, base: TensorRows, name: str, first: int, last: int | None) -> Tensor:
        if name not in self._merged:
            self._merged = self._merge(base)
        return LoadedRows(self._merged).rows(name, first, last)

    def forget(self) -> None:
        """Let go of merged weights."""
        self._merged = {}

    @torch.no_grad()
    def _merge(self, base: TensorRows) -> dict[str, Tensor]:
        """Return the merged parameters in fp32; the base's where those are not finite, which others refuse."""
        before = {name: _own_fp32(base.rows(origin)) for name, origin in self._origins.items()}
        if not all(map(exact.is_finite, before.values())):
            return before
        held = {name: getattr(*places[0]) for name, places in self._places.items()}
        for name, places in self._places.items():
            hollow.put(places, before[name])
        del before
        try:
            expected = self._outputs()
            wrong = f"peft could not merge its adapter ({self._adapter.kinds})"
            with as_message(wrong, self._adapter.field, self._adapter.name, REMEDY):
                self._let_peft_merge()
            self._adapter.check(f"the output of {self.path}", expected, self._outputs())
            return {name: getattr(*places[0]).detach() for name, places in self._places.items()}
        finally:
            for wrapper in self._wrappers():
                wrapper.merged_adapters = []
                getattr(wrapper, "_caches", {}).clear()
            for name, places in self._places.items():
                for module, own in places:
                    module.register_parameter(own, held[name])

    def _wrappers(self) -> list[Any]:
        """Return peft's layer, and those that are nested in it, each for one parameter of a module."""
        if isinstance(self._layer, TrainableTokensWrapper):
            return [self._layer.token_adapter]
        found = [self._layer]
        while isinstance(found[-1].base_layer, BaseTunerLayer):
            found.append(found[-1].base_layer)
        return found

    def _let_peft_merge(self) -> None:
        for wrapper in self._wrappers():
            wrapper.merge(safe_merge=True)

    def _outputs(self) -> Tensor:
        """Return what the layer computes of some inputs, as it is now."""
        random = torch.Generator().manual_seed(0)
        if isinstance(self._layer, lora.ParamWrapper):
            outputs = [_parameter_outputs(wrapper, random).flatten() for wrapper in self._wrappers()]
            return torch.cat(outputs)
        if isinstance(self._base, nn.Embedding):
            ids = torch.randint(self._base.num_embeddings, (_TOKENS,), generator=random)
            trained = getattr(self._wrappers()[0], "token_indices", {})
            chosen = [torch.tensor(list(each), dtype=torch.long) for each in trained.values()]
            outputs = self._layer(torch.cat([ids, *chosen]))
        else:
            width: Any = self._base.nx if isinstance(self._base, Conv1D) else self._base.in_features
            outputs = self._layer(torch.randn(_INPUTS, width, generator=random))
        assert isinstance(outputs, Tensor)
        return outputs


class MergedLinear(MergedLayer):
    """LoRA over a linear map, whose weight is merged a few rows at a time."""

    def __init__(self, path: str, layer: nn.Module, origins: Mapping[nn.Parameter, str], adapter: Adapter):
        super().__init__(path, layer, origins, adapter)
        (active,) = self._layer.active_adapters
        self._scale = self._layer.scaling[active]
        self._down_RI = self._layer.lora_A[active].weight.detach()
        self._up_OR = self._layer.lora_B[active].weight.detach()
        self._probe_NI: Tensor | None = None
        self._added_NO: Tensor | None = None

    @staticmethod
    def fits(layer: Any) -> bool:
        """Whether peft would merge this layer by the operations of :meth:`rows`."""
        if type(layer) is not lora.Linear or layer.fan_in_fan_out or layer.lora_variant:
            return False
        active = layer.active_adapters
        plain = isinstance(layer.base_layer, nn.Linear) and len(active) == 1 and active[0] in layer.lora_A
        return plain and not layer.lora_bias[active[0]] and layer.lora_A[active[0]].weight.dtype == torch.float32

    @torch.no_grad()
    def rows(self, base: TensorRows, name: str, first: int, last: int | None) -> Tensor:
        rows = base.rows(self._origins[name], first, last)
        if name != "weight":
            return rows
        rows_TI = rows.float()
        merged_TI = (self._up_OR[first:last] @ self._down_RI).mul_(self._scale).add_(rows_TI)
        probe_NI, added_NO = self._with_adapter()
        expected_NT = probe_NI @ rows_TI.T + added_NO[:, first:last]
        if bool(expected_NT.isfinite().all()):  # others refuse weights that are not
            self._adapter.check(f"the output of {self.path}", expected_NT, probe_NI @ merged_TI.T)
        return merged_TI

    def _with_adapter(self) -> tuple[Tensor, Tensor]:
        """Return inputs, and what the adapter adds to the map's outputs for them."""
        if self._probe_NI is None or self._added_NO is None:
            random = torch.Generator().manual_seed(0)
            (active,) = self._layer.active_adapters
            self._probe_NI = torch.randn(_INPUTS, self._down_RI.shape[1], generator=random)
            hidden_NR = self._layer.lora_A[active](self._probe_NI)
            self._added_NO = self._layer.lora_B[active](hidden_NR) * self._scale
        return self._probe_NI, self._added_NO

    def forget(self) -> None:
        self._probe_NI = None
        self._added_NO = None


def merged_layer(path: str, layer: nn.Module, origins: Mapping[nn.Parameter, str], adapter: Adapter) -> MergedLayer:
    kind = MergedLinear if MergedLinear.fits(layer) else MergedLayer
    return kind(path, layer, origins, adapter)


def _base_of(layer: Any) -> nn.Module:
    if isinstance(layer, TrainableTokensWrapper):
        layer = layer.token_adapter
    base: nn.Module = layer.get_base_layer()
    return base


def _without_memory(parameter: nn.Parameter) -> Tensor:
    return torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)


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
    if not wrapper.merged:
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
