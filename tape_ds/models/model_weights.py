"""The weights of a whole model, read one at a time from the files of its folder."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig

from tape_ds.errors import raise_if_any
from tape_ds.models import hollow
from tape_ds.models.file_tensors import (
    FileTensor,
    file_tensors,
    made_together,
    reverted,
    tied_names,
)
from tape_ds.models.files import exact
from tape_ds.models.files.tensor_rows import LoadedRows, StoredRows, TensorRows, pieces


class NotByTensorError(Exception):
    """Raised, with the reason, for what only a whole model in memory gives."""


class ModelWeights(ABC):
    """The parameters and persistent buffers of a model by the names of its ``state_dict``: :class:`TensorRows`."""

    model: PreTrainedModel
    """Without its weights, see :mod:`tape_ds.models.hollow`."""

    def names(self) -> list[str]:
        return list(self.model.state_dict())

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.model.get_parameter_or_buffer(name).shape)

    @abstractmethod
    def rows(self, name: str, first: int = 0, last: int | None = None) -> Tensor: ...

    @abstractmethod
    def unchanged(self, tensor: FileTensor) -> TensorRows | None:
        """Return where a tensor of the model's files, made of several parameters or a part of one, is read as it is;
        None if its parameters differ from those that are stored, or were made otherwise."""


class StoredWeights(ModelWeights):
    """The weights of a model folder."""

    def __init__(self, on_meta: PreTrainedModel, stored: StoredRows):
        """``on_meta``: the model of the folder as it was loaded onto the meta device, which has compared all names and
        shapes. Raises :class:`NotByTensorError`."""
        self.model = hollow.hollow(on_meta)
        self._on_meta = on_meta
        self._stored = stored
        self._untie_what_differs()
        self._places: dict[str, str] = {}
        self._fused: dict[str, FileTensor] = {}
        self._made: dict[str, Tensor] = {}
        kept = set(stored.names())
        self._kept = kept
        new = set()
        self._tensors = file_tensors(self.model)
        for tensor in self._tensors:
            is_there = tensor.name in kept and stored.shape(tensor.name) == tensor.shape
            if tensor.is_whole:
                (parameter,) = tensor.parameters
                if is_there:
                    self._places[parameter] = tensor.name
                else:
                    new.add(parameter)
                continue
            if not is_there:
                raise NotByTensorError(
                    f"its files have no {tensor.name}, as transformers would write it"
                )
            self._fused |= dict.fromkeys(tensor.parameters, tensor)
        for target, source in self.model.all_tied_weights_keys.items():
            self._tie(target, source, kept, new)
        self._new = new

    def _tie(self, target: str, source: str, kept: set[str], new: set[str]) -> None:
        # a file may have either of the two
        if source in new and target in kept:
            self._places[source] = target
            new.discard(source)
        if source in self._places:
            self._places.setdefault(target, self._places[source])

    def _untie_what_differs(self) -> None:
        """transformers ties what is tied by a configuration only if the files have one of the two, or equal ones."""
        kept = set(self._stored.names())
        for target, source in list(self.model.all_tied_weights_keys.items()):
            if target in kept and source in kept and not _are_equal(self._stored, target, source):
                del self.model.all_tied_weights_keys[target]
                path, _, last = target.rpartition(".")
                held = self.model.get_parameter(target)
                self.model.get_submodule(path).register_parameter(last, hollow.parameter(held))

    def unchanged(self, tensor: FileTensor) -> TensorRows | None:
        is_kept = tensor.parameters <= self._fused.keys() and tensor.name in self._kept
        if is_kept:
            return self._stored
        return None

    def rows(self, name: str, first: int = 0, last: int | None = None) -> Tensor:
        if name in self._places:
            return self._stored.rows(self._places[name], first, last)
        if name in self._new:
            return LoadedRows({name: self._initial(name)}).rows(name, first, last)
        if name not in self._fused:
            raise NotByTensorError(f"{name} is in no file of the base")
        if name not in self._made:
            self._made = {}
            self._made = self._converted(name)
        return LoadedRows(self._made).rows(name, first, last)

    def _initial(self, name: str) -> Tensor:
        """Return a parameter that no file has, such as an encoding's that the base lacks, as its class starts it."""
        path = name.rpartition(".")[0]
        while self._is_new(path.rpartition(".")[0]):
            path = path.rpartition(".")[0]
        module = copy.deepcopy(self._on_meta.get_submodule(path)).to_empty(device="cpu")
        # children first, as transformers does it
        for part in reversed(list(module.modules())):
            self._on_meta._init_weights(part)
        owner, _, last = name.removeprefix(f"{path}.").rpartition(".")
        value: Tensor = getattr(module.get_submodule(owner), last).detach()
        return value

    def _is_new(self, path: str) -> bool:
        """Whether no file has any parameter below a module."""
        return bool(path) and not any(
            each.startswith(f"{path}.") for each in self._places.keys() | self._fused.keys()
        )

    def _converted(self, name: str) -> dict[str, Tensor]:
        """Return a parameter that transformers makes of several tensors, and those that it makes with it, in fp32."""
        _, members = made_together(self._fused[name], self._tensors)
        tensors = {each: self._stored.rows(each) for each in members}
        settings = LoadStateDictConfig(
            device_map={"": "cpu"},
            dtype=torch.float32,
            weight_mapping=self._on_meta._weight_conversions,
        )
        conversions = self._on_meta._weight_conversions
        convert_and_load_state_dict_in_model(self._on_meta, dict(tensors), settings)
        self._on_meta._weight_conversions = conversions
        made: dict[str, Tensor] = {}
        for path, places in hollow.owners(self._on_meta).items():
            parameter = getattr(*places[0])
            if parameter.device.type != "meta":
                made[path] = parameter.detach()
                hollow.put(places, torch.empty_like(made[path], device="meta"))
        if name not in made:
            raise NotByTensorError(f"transformers made no {name} of {len(members)} tensors")
        for each, tensor in reverted(self._on_meta, made).items():
            if each not in tensors or not torch.equal(tensor, tensors[each].float()):
                raise NotByTensorError(f"transformers does not write {each} as it was read")
        return made


def _are_equal(tensors: TensorRows, one: str, other: str) -> bool:
    if tensors.shape(one) != tensors.shape(other):
        return False
    return all(
        torch.equal(a, b) for a, b in zip(pieces(tensors, one), pieces(tensors, other), strict=True)
    )


class ReplacedWeights(ModelWeights):
    """The weights of a base with some of them replaced."""

    def __init__(self, base: ModelWeights, replaced: TensorRows):
        self.model = base.model
        self._base = base
        self._replaced = replaced
        self._names = set(replaced.names())

    def unchanged(self, tensor: FileTensor) -> TensorRows | None:
        if tensor.parameters & self._names:
            return None
        return self._base.unchanged(tensor)

    def rows(self, name: str, first: int = 0, last: int | None = None) -> Tensor:
        source = self._replaced if name in self._names else self._base
        return source.rows(name, first, last)


def fill(weights: ModelWeights, dtype: torch.dtype, field: str, name: str) -> PreTrainedModel:
    """Return the model with its weights in memory, in ``dtype`` (buffers as the class makes them), in evaluation mode;
    ``weights`` is used up. Raises UserError for weights that are not finite; ``field`` and ``name`` are for it."""
    model = weights.model
    tied = tied_names(model)
    parameters = {each for each, _ in model.named_parameters(remove_duplicate=False)}
    wrong = []
    for each in weights.names():
        held = model.get_parameter_or_buffer(each)
        if each in tied:
            continue
        if each not in parameters:
            held.copy_(weights.rows(each))
            continue
        filled = torch.empty(held.shape, dtype=dtype if held.is_floating_point() else held.dtype)
        if not _copy_into(filled, pieces(weights, each)):
            wrong.append(each)
        _set(model, each, nn.Parameter(filled, requires_grad=filled.is_floating_point()))
    raise_if_any(exact.not_finite_weights(sorted(wrong), field, name))
    for target, source in tied.items():
        _set(model, target, model.get_parameter(source))
    return model.eval()


def _copy_into(filled: Tensor, rows: Iterable[Tensor]) -> bool:
    """Copy a tensor from its pieces, and return whether it is finite."""
    first = 0
    finite = True
    for piece in rows:
        finite = finite and exact.is_finite(piece)
        if piece.dim():
            filled[first : first + len(piece)] = piece
            first += len(piece)
        else:
            filled.copy_(piece)
    return finite


def _set(model: nn.Module, name: str, parameter: nn.Parameter) -> None:
    path, _, last = name.rpartition(".")
    model.get_submodule(path).register_parameter(last, parameter)
