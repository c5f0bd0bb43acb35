"""Save model folders whose generation settings are those that were read, with or without a progress bar."""

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import logging


class _Unchecked(GenerationConfig):
    def validate(self, *_: Any, **__: Any) -> None:
        """Accept settings that contradict each other."""


def save(model: PreTrainedModel, folder: str | Path, **arguments: Any) -> None:
    """Write a model folder. transformers refuses to save generation settings that contradict each other once they are
    changed: Vicuna's have a temperature and no do_sample."""
    own = model.generation_config
    model.generation_config = _unchecked(own)
    try:
        model.save_pretrained(folder, **arguments)
    finally:
        model.generation_config = own


def save_settings(model: PreTrainedModel, folder: Path) -> None:
    """Write what ``save_pretrained`` writes beside the weights. It asks first whether the model is wrapped, and imports
    deepspeed for that."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.dtype = str(model.dtype).removeprefix("torch.")
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    if model.can_generate():
        _unchecked(model.generation_config).save_pretrained(folder)


def _unchecked(settings: GenerationConfig) -> GenerationConfig:
    unchecked = copy.copy(settings)
    unchecked.__class__ = _Unchecked
    return unchecked


@contextlib.contextmanager
def without_bar() -> Iterator[None]:
    """Hide transformers' progress bars in this block."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
