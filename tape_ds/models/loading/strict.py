"""Give a model the tensors of a checkpoint, strictly: each has its place, and no place stays empty.

Shared by every way in: folders that a library loads (:func:`load_exact`), and tensors that were renamed (:func:`fill`).
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.models.loading import weight_files

_SHOWN = 12
_Model = TypeVar("_Model", bound=PreTrainedModel)


def load_exact(
    kind: Any,
    source: str | Path,
    required: Callable[[PreTrainedModel, Collection[str]], Iterable[str]] = lambda model, missing: missing,
    **arguments: Any,
) -> Any:
    """Return ``kind.from_pretrained(source, **arguments)`` if every tensor of the source has found its place. A tied
    head and buffers that are computed may be missing or left over, as transformers has it.

    ``required``: which of the missing parameters of a model must not be missing; default: all.
    """
    raise_if_any(weight_files.check_folder(source))
    with weight_files.reading(source), _without_report():
        model, info = kind.from_pretrained(source, output_loading_info=True, ignore_mismatched_sizes=True, **arguments)
    mismatched = [f"{name} {list(theirs)}, not {list(ours)}" for name, theirs, ours in info["mismatched_keys"]]
    require_exact(str(source), required(model, info["missing_keys"]), info["unexpected_keys"], mismatched)
    if getattr(model.config, "quantization_config", None) is None:
        names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        if integers := sorted(names & weight_files.integers(source)):
            wrong = f"integers in the place of weights: {_named(integers)}"
            remedy = "give the weights as they were published, with the quantization_config of their config.json"
            raise UserError(Problem("model", str(source), wrong, remedy))
    return model


@contextlib.contextmanager
def _without_report() -> Iterator[None]:
    def is_no_report(record: Any) -> bool:
        text = record.getMessage()
        return "LOAD REPORT" not in text or "CONVERSION" in text  # an error of conversion is named there only

    logger = logging.get_logger("transformers.modeling_utils")
    logger.addFilter(is_no_report)
    try:
        yield
    finally:
        logger.removeFilter(is_no_report)


@contextlib.contextmanager
def without_bar() -> Iterator[None]:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def fill(model: _Model, tensors: Mapping[str, Tensor], source: str) -> _Model:
    """Give a model on the meta device these very tensors, all of them and nothing else; evaluation mode."""
    tied = set(model.all_tied_weights_keys)
    untied = [
        f"{name} (not equal to {twin}, to which it is tied)"
        for name, twin in model.all_tied_weights_keys.items()
        if name in tensors and twin in tensors and not torch.equal(tensors[name], tensors[twin])
    ]
    require_exact(source, (), untied, ())
    wanted = {name for name in model.state_dict() if name not in tied}
    given = {name: tensor for name, tensor in tensors.items() if name not in tied}
    require_exact(source, wanted - given.keys(), given.keys() - wanted, ())
    shapes = model.state_dict()
    wrong = [name for name, tensor in given.items() if tensor.shape != shapes[name].shape]
    require_exact(source, (), (), wrong)
    model.load_state_dict(given, strict=False, assign=True)
    model.tie_weights()
    return model.eval()


def require_exact(source: str, missing: Iterable[str], unexpected: Iterable[str], mismatched: Iterable[Any]) -> None:
    found = {"missing": missing, "without a place": unexpected, "of another shape": mismatched}
    parts = [f"{what}: {_named(sorted(map(str, names)))}" for what, names in found.items() if names]
    if parts:
        remedy = "give weights and configuration of the same model"
        raise UserError(Problem("model", source, "tensors " + "; ".join(parts), remedy))


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN:,} more"
