"""A tracker whose disk is full is given up, said once, and nothing else is forgiven."""

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.integrations import TensorBoardCallback
from transformers.trainer_callback import CallbackHandler

from tape_ds.training.trackers import SafeTracker, use_safe_trackers


class Failing(TrainerCallback):
    """Fails at the second line that it logs."""

    def __init__(self, error: Exception):
        self.error = error
        self.seen = 0

    def on_log(self, *_, **__):
        self.seen += 1
        if self.seen == 2:
            raise self.error


def log(handler: CallbackHandler, times: int) -> None:
    for _ in range(times):
        handler.on_log(SimpleNamespace(), TrainerState(), TrainerControl(), {"loss": 1.0})


def handler_of(callback) -> CallbackHandler:
    return CallbackHandler([callback], None, None, None, None)


def test_a_full_disk_ends_the_tracker_alone(tmp_path, capsys):
    tracker = Failing(OSError(errno.ENOSPC, "No space left on device"))
    log(handler_of(SafeTracker(tracker, tmp_path)), 5)
    assert tracker.seen == 2
    printed = capsys.readouterr().out
    assert printed.count("Failing GETS NOTHING MORE") == 1 and str(tmp_path) in printed


def test_another_error_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no such metric"):
        log(handler_of(SafeTracker(Failing(ValueError("no such metric")), tmp_path)), 2)


def test_trackers_alone_are_expendable(tmp_path):
    """TensorBoard's callback is; one of our own beside it stays what it is."""
    own = Failing(ValueError())
    handler = SimpleNamespace(callbacks=[own, TensorBoardCallback()])
    use_safe_trackers(
        SimpleNamespace(args=SimpleNamespace(report_to=["tensorboard"]), callback_handler=handler), tmp_path
    )
    first, second = handler.callbacks
    assert first is own and isinstance(second, SafeTracker)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_tensorboard_on_a_full_disk(tmp_path, capsys, monkeypatch):
    """Its thread that writes meets the error; its next call raises it."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path))
    callback = TensorBoardCallback()
    state, control = TrainerState(is_world_process_zero=True), TrainerControl()
    handler = handler_of(SafeTracker(callback, tmp_path))
    arguments = SimpleNamespace(logging_dir=str(tmp_path), to_json_string=lambda: "{}")
    handler.on_train_begin(arguments, state, control)
    writer = callback.tb_writer._get_file_writer().event_writer._async_writer._writer
    callback.tb_writer.flush()
    before, writer._writer = writer._writer, open("/dev/full", "wb", buffering=0)  # noqa: SIM115 - the writer closes it
    before.close()
    for _ in range(3):
        handler.on_log(arguments, state, control, {"loss": 1.0})
    assert capsys.readouterr().out.count("TensorBoard GETS NOTHING MORE") == 1
