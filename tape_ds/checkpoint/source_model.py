"""Find the model to export: a run, its folder ``trained``, one of its checkpoints, or a whole TAPE model."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tape_ds import results
from tape_ds.checkpoint import merging, trained
from tape_ds.checkpoint.merging import WholeModel
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.models.files import exact, json_file, weight_files
from tape_ds.models.files.config_file import SHAPES
from tape_ds.models.files.hub import CONFIG
from tape_ds.models.loading import extendable
from tape_ds.registration import TYPES
from tape_ds.results import Result
from tape_ds.run_folder import RESULTS, TRAINED, trained_of

TOKENIZER = "tokenizer_config.json"


@dataclass(frozen=True)
class SourceModel:
    """A model to export, not loaded yet."""

    folder: Path
    """Configuration, tokenizer and weights, or the trained part of them."""
    config: extendable.Config
    record: trained.TrainedRecord | None
    """The record of the trained parameters; None for a whole model from elsewhere."""
    result: Result | None
    """The run's stored result, if it is of these weights."""
    without_result: str
    """The reason for no result."""
    dtype: torch.dtype
    """The stored weights' before training."""
    base_anyway: bool = False
    """See :func:`tape_ds.checkpoint.trained.find_base`."""

    @property
    def has_tokenizer(self) -> bool:
        return (self.folder / TOKENIZER).is_file()

    def whole(self, *, check_logits: bool = False) -> WholeModel:
        """Return the whole model, adapters merged; ``check_logits``: see :func:`merging.of_run`."""
        if self.record is not None:
            return merging.of_run(
                self.folder, base_anyway=self.base_anyway, check_logits=check_logits
            )
        load = partial(extendable.load, self.folder, self.config)
        return merging.of_folder(
            self.folder, load, self.config, "source", str(self.folder), check_logits
        )


def find(name_or_path: str, *, base_anyway: bool = False, any_llama: bool = False) -> SourceModel:
    """Return the model of a folder; no weights are read.

    Args:
        base_anyway: see :func:`tape_ds.checkpoint.trained.find_base`.
        any_llama: whether a Llama, Qwen2 or Qwen3 of transformers is taken, too.

    Raises:
        UserError: no such folder, not one of ours, an impossible configuration, or a base model that is missing or
            differs.
    """
    given = Path(name_or_path)
    folder = trained_of(given)
    config: Any
    if not (folder / trained.RECORD).is_file():
        kind = model_type(folder)
        if kind in SHAPES and kind not in TYPES and any_llama:
            return _of_transformers(folder)
        if kind not in TYPES:
            raise UserError(_not_a_source(name_or_path, folder, kind))
        raise_if_any(weight_files.check_folder(folder, "source"))
        config = extendable.read(folder)
        extendable.check_weights(folder, config)
        return _whole_source(folder, config, exact.stored_dtype(folder, config))

    config = extendable.read(folder)
    record = trained.read_record(folder)
    # A result is shown with the weights that it is of, or not at all.
    stored = folder.parent / RESULTS / "run.json"
    result = None
    reason = ""
    if folder.name != TRAINED:
        reason = "these weights are a checkpoint, and a run stores results only at its end"
    elif not stored.is_file():
        reason = "the run that trained these weights left no results"
    else:
        result = results.load(stored)
        # a run from scratch has no such field
        method = result.config.get("method", record.method)
        if method != record.method or tuple(result.figures.get("trained", ())) != record.names:
            result = None
            reason = "the results next to these weights are of another run"
    dtype = merging.original_dtype(folder, base_anyway=base_anyway)
    return SourceModel(folder, config, record, result, reason, dtype, base_anyway)


def _whole_source(folder: Path, config: extendable.Config, dtype: torch.dtype) -> SourceModel:
    return SourceModel(folder, config, None, None, "no run is recorded", dtype)


def _not_a_source(name_or_path: str, folder: Path, kind: str | None) -> Problem:
    """Return why a folder without a run's record is none of ours; ``kind`` is its model type."""
    remedy = (
        "give a run's folder, its folder 'trained', one of its checkpoints, or a TAPE model folder"
    )
    if weight_files.is_adapter(folder):
        wrong = "an adapter that peft saved, not a whole model"
        remedy = f"make a whole model of it and its base: tape-ds merge {name_or_path} OUT, and give OUT here "
        remedy += "if transformers cannot load it by itself"
    elif kind:
        wrong = f"its model_type is {kind!r}: transformers loads that as it is"
    elif Path(name_or_path).is_dir():
        wrong = "neither what a run trained nor a model"
    else:
        wrong = "no such folder"
    return Problem("source", name_or_path, wrong, remedy)


def _of_transformers(folder: Path) -> SourceModel:
    raise_if_any(weight_files.check_folder(folder, "source"))
    native = extendable.read(folder)
    config = native
    if not extendable.by_own_class(native):
        config = extendable.configure(native, position_encoding="rope")
        extendable.check_weights(folder, config)
    return _whole_source(folder, config, exact.stored_dtype(folder, native))


def model_type(folder: Path) -> str | None:
    """Return the model type in a folder's config.json; None without one, or one that cannot be read."""
    try:
        kind = json_file.read(folder / CONFIG, "source", str(folder)).get("model_type")
    except UserError:
        return None
    return kind if isinstance(kind, str) else None
