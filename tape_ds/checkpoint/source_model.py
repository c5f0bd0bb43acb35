"""What an export starts from: a run, the folder of what it trained, one of its checkpoints, or a whole TAPE model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from tape_ds import results
from tape_ds.checkpoint import merging, trained
from tape_ds.errors import Problem, UserError
from tape_ds.models.loading import configuration, extendable
from tape_ds.models.loading.hub import CONFIG
from tape_ds.registration import TYPES
from tape_ds.results import Result
from tape_ds.run_folder import RESULTS, TRAINED

TOKENIZER = "tokenizer_config.json"
_REMEDY = "give a run's folder, its folder 'trained', one of its checkpoints, or a TAPE model folder"


@dataclass(frozen=True)
class SourceModel:
    """A model to be exported, not loaded yet."""

    folder: Path
    """Configuration, tokenizer and weights, or what was trained of them."""
    config: extendable.Config
    record: trained.TrainedRecord | None
    """Of what was trained; None: a whole model that no run made."""
    result: Result | None
    """What the run stored; None: nothing that belongs to these weights."""
    without_result: str
    """Why there is none."""
    dtype: torch.dtype
    """What the weights are stored in, before anything was trained."""
    base_anyway: bool = False
    """See :func:`tape_ds.checkpoint.trained.find_base`."""

    @property
    def has_tokenizer(self) -> bool:
        """Whether a tokenizer lies beside the weights."""
        return (self.folder / TOKENIZER).is_file()

    def load(self, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        """Return the whole model in evaluation mode, in ``dtype``; what a run trained in fp32, adapters merged in.

        Raises:
            UserError: weights that are missing or do not fit.
        """
        if self.record is not None:
            return merging.merge(self.folder, base_anyway=self.base_anyway)  # in fp32, which loses nothing
        return extendable.load(self.folder, self.config, dtype=dtype)


def find(name_or_path: str, *, base_anyway: bool = False) -> SourceModel:
    """Return the model that a folder leads to; nothing of its weights is read.

    Raises:
        UserError: no such folder, nothing of ours in it, an impossible configuration, or a base that is not there or
            another.
    """
    given = Path(name_or_path)
    inner = given / TRAINED
    folder = inner if (inner / trained.RECORD).is_file() else given
    if (folder / trained.RECORD).is_file():
        record = trained.read_record(folder)
        result, reason = _result_of(folder, record)
        dtype = merging.original_dtype(folder, base_anyway=base_anyway)
        return SourceModel(folder, _config(folder), record, result, reason, dtype, base_anyway)
    found = model_type(folder)
    if found not in TYPES:
        wrong = "no such folder" if not given.is_dir() else "neither what a run trained nor a model"
        if found:
            wrong = f"its model_type is {found!r}: transformers loads that as it is"
        raise UserError(Problem("source", name_or_path, wrong, _REMEDY))
    config = _config(folder)
    return SourceModel(folder, config, None, None, "no run is recorded", config.dtype or torch.float32)


def _config(folder: Path) -> extendable.Config:
    config: Any = configuration.read(folder)
    return config


def model_type(folder: Path) -> str | None:
    """Return what the configuration of a folder says it is; None where there is none to be read."""
    try:
        return json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError):
        return None


def _result_of(folder: Path, record: trained.TrainedRecord) -> tuple[Result | None, str]:
    """Return the run's stored result where it is of these weights, else why not."""
    path = folder.parent / RESULTS / "run.json"
    if folder.name != TRAINED:
        return None, "these weights are a checkpoint of a run, and results are stored of a run's end"
    if not path.is_file():
        return None, "the run that trained these weights left no results"
    result = results.load(path)
    method = result.config.get("method", record.method)  # a run from scratch has no field for it
    if method != record.method or tuple(result.figures.get("trained", ())) != record.names:
        return None, "the results beside these weights are those of another run"
    return result, ""
