"""Put an adapter of peft onto a base without its weights (:mod:`tape_ds.models.hollow`), and say where the adapter's
own are read, so that neither's are in memory but while a layer is merged."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from peft import PeftConfig, PeftModel, get_peft_model
from peft.utils.other import ModulesToSaveWrapper
from peft.utils.save_and_load import set_peft_model_state_dict
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from tape_ds.models import hollow
from tape_ds.models.files.tensor_rows import TensorRows
from tape_ds.models.hollow import WeightSource


@dataclass(frozen=True)
class HollowAdapter:
    """A base with an adapter."""

    model: PeftModel
    sources: Mapping[nn.Parameter, WeightSource]
    """Of what its files have in place of the base's and in addition, but for what is in memory."""


def wrap(model: PreTrainedModel, config: PeftConfig) -> PeftModel:
    """Return the base's model with an adapter whose parameters are still to be given, on the meta device."""
    # peft warns where it is not the model's
    config.base_model_name_or_path = None
    config.inference_mode = True
    # where peft makes parameters on the meta device, layers that are repeated lose those of the base
    repeats = bool(getattr(config, "layer_replication", None))
    of_the_base = set(model.parameters())
    with init.no_init_weights():
        wrapped: PeftModel = get_peft_model(
            model, config, autocast_adapter_dtype=False, low_cpu_mem_usage=not repeats
        )
    if repeats:
        for places in hollow.owners(wrapped).values():
            held = getattr(*places[0])
            if held not in of_the_base:
                # of the adapter: in memory until here, and read from its files from here on
                empty = torch.empty_like(held, device="meta")
                _place(places, nn.Parameter(empty, requires_grad=False))
    if getattr(config, "ensure_weight_tying", False):
        _tie_copies(model)
    return wrapped


def _tie_copies(model: PreTrainedModel) -> None:
    """Tie again what peft tied, such as a head to embeddings that are trained whole: on the meta device each place got
    a parameter of its own."""
    for target, source in model.all_tied_weights_keys.items():
        copies = []
        for name in (target, source):
            path, _, last = name.rpartition(".")
            module = model.get_submodule(path)
            if isinstance(module, ModulesToSaveWrapper):
                # peft keeps a copy for each adapter, by its name
                copies += [(copy, last) for copy in module.modules_to_save.values()]
        if len(copies) > 1:
            _place(copies, getattr(*copies[-1]))


def read_from(
    wrapped: PeftModel, places: Mapping[str, nn.Parameter], tensors: TensorRows
) -> HollowAdapter:
    """Let parameters of :func:`wrap`'s be read from the tensors of these names."""
    names: dict[nn.Parameter, str] = {}
    for name, parameter in places.items():
        names.setdefault(parameter, name)
    sources: dict[nn.Parameter, WeightSource] = {}
    for owners in hollow.owners(wrapped).values():
        held: nn.Parameter = getattr(*owners[0])
        if held in names:
            empty = hollow.parameter(held, torch.float32)
            _place(owners, empty)
            sources[empty] = WeightSource(tensors, names[held])
    return HollowAdapter(wrapped, sources)


def load(wrapped: PeftModel, tensors: TensorRows) -> tuple[HollowAdapter, list[str], list[str]]:
    """Let peft find the places of tensors in :func:`wrap`'s model. Raises what peft does, as for a tensor of another
    shape.

    Returns:
        The adapter.
        Names of its parameters that are in no tensor.
        Names of tensors without a place.
    """
    given = set(wrapped.parameters())
    shared = [places for places in hollow.owners(wrapped).values() if len(places) > 1]
    sources: dict[nn.Parameter, WeightSource] = {}
    stand_ins: dict[str, Tensor] = {}
    for name in tensors.names():
        stand_in = hollow.parameter(torch.empty(tensors.shape(name), device="meta"))
        stand_ins[name] = stand_in
        sources[stand_in] = WeightSource(tensors, name)
    unexpected = _assign(wrapped, stand_ins, shared)
    # peft made others of them, such as one for all experts: then the adapter's own are in memory after all
    if set(wrapped.parameters()) - given - sources.keys():
        loaded = {name: tensors.rows(name).float() for name in stand_ins}
        unexpected = _assign(wrapped, loaded, shared)
        sources = {}
    missing = [name for name, parameter in wrapped.named_parameters() if parameter.is_meta]
    return HollowAdapter(wrapped, sources), missing, unexpected


def _assign(
    wrapped: PeftModel, tensors: dict[str, Tensor], shared: list[list[tuple[nn.Module, str]]]
) -> list[str]:
    """Put tensors where peft wants them; those that take one place of ``shared`` parameters take the others, too.
    Returns the names of those without a place."""
    before = [getattr(*places[0]) for places in shared]
    # low_cpu_mem_usage puts the given tensors in the places of peft's, instead of copying into those
    loaded = set_peft_model_state_dict(wrapped, tensors, low_cpu_mem_usage=True)
    for places, old in zip(shared, before, strict=True):
        new = None
        for module, name in places:
            held = getattr(module, name)
            if held is not old:
                new = held
        if new is not None:
            _place(places, new)
    unexpected: list[str] = loaded.unexpected_keys
    return unexpected


def _place(places: list[tuple[nn.Module, str]], parameter: nn.Parameter) -> None:
    for module, name in places:
        module.register_parameter(name, parameter)
