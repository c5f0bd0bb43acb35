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
    unchecked = copy.copy(own)
    unchecked.__class__ = _Unchecked
    model.generation_config = unchecked
    try:
        model.save_pretrained(folder, **arguments)
    finally:
        model.generation_config = own


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
