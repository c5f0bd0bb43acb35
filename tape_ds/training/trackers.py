"""Trackers (TensorBoard, W&B and their like) that may fail: a disk that takes no more of their files costs a run its
curves there, and not the run; ``metrics.jsonl`` has the same numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.integrations import get_reporting_integration_callbacks

from tape_ds import storage
from tape_ds.training.environment import say


class SafeTracker:
    """Stands for a tracker's callback, which is called until a disk refuses it for the first time.

    Args:
        tracker: that is called.
        folder: where it writes.
    """

    def __init__(self, tracker: TrainerCallback, folder: Path):
        self.tracker: TrainerCallback | None = tracker
        self.folder = folder

    def __getattr__(self, event: str) -> Callable[..., Any]:
        if not event.startswith("on_"):
            raise AttributeError(event)
        return lambda *args, **kwargs: self.attempt(lambda tracker: getattr(tracker, event)(*args, **kwargs))

    def attempt(self, call: Callable[[Any], Any]) -> Any:
        """Return what ``call`` makes of the tracker; None from the first time on that a disk refuses it."""
        if self.tracker is None:
            return None
        try:
            return call(self.tracker)
        except Exception as error:
            refused = storage.refusal(error)
            if refused is None:
                raise
            name = type(self.tracker).__name__.removesuffix("Callback")
            self.tracker = None
            say(f"{name} GETS NOTHING MORE: {storage.explain(refused, self.folder)}; the run goes on")
            return None


def use_safe_trackers(trainer: Trainer, folder: Path) -> None:
    """Put a :class:`SafeTracker` in the place of each tracker's callback that the trainer has."""
    kinds = tuple(get_reporting_integration_callbacks(trainer.args.report_to))
    handler = trainer.callback_handler
    handler.callbacks = [
        SafeTracker(callback, folder) if isinstance(callback, kinds) else callback for callback in handler.callbacks
    ]
