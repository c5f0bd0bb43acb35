"""The weights of a base with an adapter of peft merged into it, tensor by tensor.

peft wraps a model without its weights (:mod:`tape_ds.models.hollow`), with an adapter without its own
(:mod:`.hollow_adapter`), and :mod:`.merged_layers` merges a layer when it is read.
"""

from collections.abc import Callable

from peft import PeftConfig
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper, TrainableTokensWrapper
from torch import Tensor, nn
from transformers import PreTrainedModel

from tape_ds.checkpoint.hollow_adapter import HollowAdapter
from tape_ds.checkpoint.logits_by_block import logits_by_block
from tape_ds.checkpoint.merged_layers import Adapter, MergedLayer, kinds_of, merged_layer
from tape_ds.checkpoint.whole_merge import probe
from tape_ds.models import hollow
from tape_ds.models.file_tensors import FileTensor
from tape_ds.models.files.tensor_rows import LoadedRows, TensorRows
from tape_ds.models.hollow import WeightSource
from tape_ds.models.model_weights import ModelWeights, NotByTensorError
from tape_ds.models.outermost import outermost_modules

_STARTS_FROM_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga", "mica", "orthogonal", "eva")
"""Beginnings of LoRA's ways to start that read the base's weights, or change them, when the adapter is put on."""


Attach = Callable[[PreTrainedModel, Callable[[str], Tensor]], HollowAdapter]
"""(model without its weights, what returns one of them by its name) -> that model with an adapter."""


def check_kind(config: PeftConfig) -> None:
    """Raise NotByTensorError for an adapter that is only put onto a model with its weights."""
    start = getattr(config, "init_lora_weights", None)
    if isinstance(start, str) and start.lower().startswith(_STARTS_FROM_THE_BASE):
        raise NotByTensorError(
            f"its adapter starts from the base's weights (init_lora_weights: {start})"
        )


class AdaptedWeights(ModelWeights):
    def __init__(
        self, base: ModelWeights, attach: Attach, field: str, name: str, check_logits: bool = False
    ):
        """Put an adapter on.

        Args:
            base: used up.
            attach: wraps the base's model.
            field, name: of the adapter, for messages.
            check_logits: whether those of the merged model and of the adapter's are compared, and shown.

        Raises:
            NotByTensorError: an adapter of a kind that is only merged as a whole.
            UserError: by ``attach``; logits differ.
        """
        model = base.model
        self._base = base
        # noted before the adapter is put on, which renames parameters
        sources = _sources_in(base, model)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        buffers = model.state_dict().keys() - parameters.keys()
        attached = attach(model, base.rows)
        wrapped = attached.model.eval()
        sources |= attached.sources
        for path, parameter in wrapped.named_parameters():
            is_empty = parameter.is_meta or hollow.is_hollow(parameter)
            if parameter in sources and (is_empty or parameter.numel() == 1):
                continue
            if is_empty:
                raise NotByTensorError(f"its adapter has no {path}")
            sources[parameter] = WeightSource(LoadedRows({path: parameter.detach()}), path)
        adapter = Adapter(field, name, kinds_of(wrapped))
        # a tuner that overrides peft's loop over layers does more than merge one after another
        own_way = type(wrapped.base_model)._unload_and_optionally_merge
        if own_way is not BaseTuner._unload_and_optionally_merge:
            raise NotByTensorError(
                f"peft merges an adapter of its kind ({adapter.kinds}) in a way of its own"
            )
        if buffers and getattr(wrapped.active_peft_config, "layer_replication", None):
            raise NotByTensorError("its adapter repeats layers, and these have buffers")

        if check_logits:
            # with the adapter, before `unload` takes it off
            ids = probe(wrapped)
            expected = logits_by_block(wrapped, sources, ids)
        layers = _adapted(wrapped.get_base_model())
        self.model = wrapped.unload()
        self._layers: dict[str, MergedLayer] = {}
        for path, layer in layers.items():
            merged = merged_layer(path, layer, sources, adapter)
            for below in merged.names:
                self._layers[f"{path}.{below}"] = merged
        # one merged layer is in memory at a time, this one
        self._read: MergedLayer | None = None
        self._sources: dict[str, WeightSource] = {}
        """Of what is not merged."""
        for each in self.model.state_dict().keys() - self._layers.keys():
            held = self.model.get_parameter_or_buffer(each)
            if each in buffers:
                self._sources[each] = WeightSource(base, each)
            else:
                self._sources[each] = sources[held]
        self._untie()
        if check_logits:
            self._check_logits(adapter, expected, ids)

    def _check_logits(self, adapter: Adapter, expected: Tensor, ids: Tensor) -> None:
        logits = logits_by_block(self.model, _sources_in(self, self.model), ids)
        adapter.check("logits", expected, logits)
        difference = (logits - expected).abs().max().item()
        largest = expected.abs().max().item()
        print(
            f"logits: merged, they differ from the adapter's by {difference:.2g} of {largest:.3g}",
            flush=True,
        )

    def _untie(self) -> None:
        """Note in the configuration, as peft does after a merge, that head and embeddings are not the same any more."""
        head = self.model.get_output_embeddings()
        embeddings = self.model.get_input_embeddings()
        if head is None or embeddings is None:
            return
        is_tied = getattr(self.model.config, "tie_word_embeddings", False)
        if is_tied and head.weight is not embeddings.weight:
            self.model.config.tie_word_embeddings = False

    def unchanged(self, tensor: FileTensor) -> TensorRows | None:
        for parameter in tensor.parameters:
            if self._sources.get(parameter) != WeightSource(self._base, parameter):
                return None
        return self._base.unchanged(tensor)

    def rows(self, name: str, first: int = 0, last: int | None = None) -> Tensor:
        if name in self._sources:
            return self._sources[name].rows(first, last)
        layer = self._layers[name]
        if self._read is not None and self._read is not layer:
            self._read.forget()
        self._read = layer
        return layer.rows(name.removeprefix(f"{layer.path}."), first, last)


def _sources_in(weights: ModelWeights, model: nn.Module) -> dict[nn.Parameter, WeightSource]:
    return {parameter: WeightSource(weights, name) for name, parameter in model.named_parameters()}


def _adapted(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of peft that a merge replaces by what they wrap, by path, without those inside of them."""
    layers: dict[str, nn.Module] = {}
    adapted = (BaseTunerLayer, TrainableTokensWrapper)
    for path, module in outermost_modules(
        model, (BaseTunerLayer, AuxiliaryTrainingWrapper)
    ).items():
        if isinstance(module, ModulesToSaveWrapper):
            if any(isinstance(inner, adapted) for inner in module.modules()):
                raise NotByTensorError(f"{path} is both trained whole and adapted")
        elif isinstance(module, adapted):
            layers[path] = module
        else:
            raise NotByTensorError(
                f"its adapter has a layer of another kind ({path}: {type(module).__name__})"
            )
    return layers
