"""Whole models from trained weights and from adapters: tensor by tensor from the files of the base, and what that does
not reach as a whole in memory."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from transformers import PreTrainedModel

from tape_ds.checkpoint import peft_adapter, trained, whole_merge
from tape_ds.checkpoint.adapted_weights import AdaptedWeights, check_kind
from tape_ds.checkpoint.hollow_adapter import HollowAdapter
from tape_ds.checkpoint.trained import find_base, load_trained, read_record
from tape_ds.errors import is_main_process
from tape_ds.models import model_weights, saving, writing
from tape_ds.models.files import exact, weight_files
from tape_ds.models.files.library_errors import READ_AGAIN, as_message
from tape_ds.models.files.tensor_rows import StoredRows
from tape_ds.models.loading import extendable, model_folder
from tape_ds.models.model_weights import (
    ModelWeights,
    NotByTensorError,
    ReplacedWeights,
    StoredWeights,
)
from tape_ds.run_folder import WHOLE_WEIGHTS

_META = {"": "meta"}
_OF_RUN = "trained weights"


@dataclass(frozen=True)
class WholeModel:
    """A model to be written or loaded, adapters merged."""

    weights: Callable[[], ModelWeights]
    """Its weights, to be read one at a time. Raises NotByTensorError."""
    load: Callable[[torch.dtype], PreTrainedModel]
    """All of it, in a dtype; in a wider one than fp32's only if nothing is merged."""
    is_merged: bool
    """Whether its folder has not all of its weights."""
    field: str
    name: str
    """For messages, as is ``field``."""

    def write(
        self,
        folder: Path,
        dtype: torch.dtype,
        change: Callable[[PreTrainedModel], PreTrainedModel] = lambda model: model,
    ) -> PreTrainedModel:
        """Write a new model folder, and return the model, which may be without its weights; ``change`` makes of it the
        one that is written. Raises UserError: the adapter cannot be merged, or weights are not finite."""
        try:
            weights = self.weights()
            model = change(weights.model)
            writing.write(weights, folder, dtype, self.field, self.name, model)
            return model
        except NotByTensorError as reason:
            self._say(reason)
        shutil.rmtree(folder, ignore_errors=True)
        model = change(self.load(torch.float32).to(dtype))
        exact.require_finite(model, self.field, self.name)
        saving.save(model, folder)
        return model

    def fill(self, dtype: torch.dtype) -> PreTrainedModel:
        """Return the model in ``dtype`` in memory, in evaluation mode. Raises UserError, as :meth:`write`; a model that
        is whole as it is stored may have weights that are not finite."""
        if not self.is_merged:
            return self.load(dtype)
        try:
            return model_weights.fill(self.weights(), dtype, self.field, self.name)
        except NotByTensorError as reason:
            self._say(reason)
        model = self.load(torch.float32)
        exact.require_finite(model, self.field, self.name)
        # the module's own cast would round the rotary frequencies, too
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        return model

    def _say(self, reason: NotByTensorError) -> None:
        if is_main_process():
            print(
                f"note: {self.name} is read and merged as a whole, in fp32: {reason}",
                file=sys.stderr,
                flush=True,
            )


def of_run(
    folder: str | Path, *, base_anyway: bool = False, check_logits: bool = False
) -> WholeModel:
    """Return the whole model of a folder of trained weights; ``check_logits``: see :class:`AdaptedWeights`."""
    folder = Path(folder)

    def load_merged(dtype: torch.dtype) -> PreTrainedModel:
        model = load_trained(folder, base_anyway=base_anyway, dtype=dtype).eval()
        if isinstance(model, PeftModel):
            return whole_merge.merged(model, _OF_RUN, str(folder))
        exact.require_finite(model, _OF_RUN, str(folder))
        return model

    weights = partial(_weights_of_run, folder, base_anyway, check_logits)
    has_base = not any(folder.glob(WHOLE_WEIGHTS))
    return WholeModel(weights, load_merged, has_base, _OF_RUN, str(folder))


def of_folder(
    folder: Path,
    load: Callable[..., PreTrainedModel],
    config: Any,
    field: str,
    name: str,
    check_logits: bool = False,
    runs_code: bool = False,
) -> WholeModel:
    """Return the model of a folder of whole weights.

    Args:
        load: takes arguments of ``from_pretrained``.
        config: of the folder.
        field, name: of it, for messages.
        check_logits: see :class:`AdaptedWeights`.
        runs_code: whether code that came with it may run.
    """
    if check_logits:
        _say_nothing_is_merged()

    def weights() -> ModelWeights:
        if runs_code:
            raise NotByTensorError("its base may run code of its own")
        return _stored(folder, config, load)

    return WholeModel(weights, lambda dtype: load(dtype=dtype), False, field, name)


def of_adapter(
    folder: Path, base: WholeModel, base_name: str, name: str, check_logits: bool = False
) -> WholeModel:
    """Return the whole model of an adapter that peft saved; ``check_logits``: see :class:`AdaptedWeights`."""

    def weights() -> ModelWeights:
        check_kind(PeftConfig.from_pretrained(str(folder)))
        attach = partial(peft_adapter.put_on_hollow, folder=folder, base=base_name, name=name)
        return AdaptedWeights(base.weights(), attach, "model", name, check_logits)

    def load_merged(dtype: torch.dtype) -> PreTrainedModel:
        model = peft_adapter.put_on(base.load(dtype), folder, base_name, name)
        return whole_merge.merged(model, "model", name)

    return WholeModel(weights, load_merged, True, "model", name)


def merge(folder: str | Path, *, base_anyway: bool = False) -> PreTrainedModel:
    """Return the whole model of a folder of trained weights, in fp32. Raises UserError: see :meth:`WholeModel.fill`."""
    return of_run(folder, base_anyway=base_anyway).fill(torch.float32)


def original_dtype(folder: str | Path, *, base_anyway: bool = False) -> torch.dtype:
    """Return the dtype in which the base model of a folder of trained weights is stored (a model trained from scratch:
    the folder itself)."""
    record = read_record(folder)
    source = str(folder)
    if record.base is not None:
        # nothing is put onto the base
        if any(Path(folder).glob(WHOLE_WEIGHTS)):
            source = model_folder.resolve(record.base, with_weights=False)
        else:
            source = find_base(folder, record, base_anyway)
    return exact.stored_dtype(source, extendable.read(source))


def _stored(folder: Path, config: Any, load: Callable[..., PreTrainedModel]) -> ModelWeights:
    """Return the weights of a folder; ``load`` takes arguments of ``from_pretrained``. Raises NotByTensorError."""
    if getattr(config, "quantization_config", None) is not None:
        raise NotByTensorError("its base is quantised")
    on_meta = load(dtype=torch.float32, device_map=_META)
    return StoredWeights(on_meta, StoredRows(weight_files.files(folder)))


def _weights_of_run(folder: Path, base_anyway: bool, check_logits: bool) -> ModelWeights:
    record = read_record(folder)
    config = extendable.read(folder)
    if any(folder.glob(WHOLE_WEIGHTS)):
        if check_logits:
            _say_nothing_is_merged()
        return _stored(folder, config, partial(extendable.load, folder, config))
    trained.check_base(folder, record)
    place = find_base(folder, record, base_anyway)
    base = _stored(Path(place), config, partial(extendable.load, place, config))
    if (folder / weight_files.ADAPTER_CONFIG).is_file():
        wrong = "peft could not put its adapter onto the base"
        with as_message(wrong, _OF_RUN, str(folder), READ_AGAIN):
            check_kind(PeftConfig.from_pretrained(folder))

        def attach(model: PreTrainedModel, _: Any) -> HollowAdapter:
            return trained.with_hollow_adapters(folder, record, model)

        return AdaptedWeights(base, attach, _OF_RUN, str(folder), check_logits)
    if check_logits:
        _say_nothing_is_merged()
    if record.names:
        base = ReplacedWeights(base, trained.tensors_for(folder, base.model, record.names))
    return base


def _say_nothing_is_merged() -> None:
    print("logits: nothing is merged, and every weight is written as it was trained", flush=True)
