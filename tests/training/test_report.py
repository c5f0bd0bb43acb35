"""What a person reads before a run and after it."""

from types import SimpleNamespace

import pytest

from tape_ds import results
from tape_ds.data.bad_rows import BadRows
from tape_ds.errors import Problem
from tape_ds.training import report


class Nothing:
    """A run that logged and scored nothing."""

    names = ("model.norm.weight",)
    parameter_counts = (10, 1)
    tokens_per_step = 100
    sequences = ()
    bad_rows = BadRows(3)

    def __init__(self, output):
        self.output = output
        self.shown = 0

    def figures(self):
        return {"perplexity": {}}

    def show(self):
        self.shown += 1


def test_a_run_ends_well_without_logs(tmp_path, capsys):
    """Nothing logged is no error at the very end; what the run's own scoring found stands beside the common figures."""
    run = Nothing(tmp_path)
    state = SimpleNamespace(log_history=[{"step": 1, "train_runtime": 1.0}], global_step=1)
    trainer = SimpleNamespace(state=state, skipped_steps=0, peak_memory_bytes=None)
    report.conclude(run, trainer, results.Result(command=[], started="now"))
    figures = results.load(tmp_path / "results" / "run.json").figures
    assert (figures["tokens"], figures["tokens_per_second"], figures["peak_memory_bytes"]) == (100, None, None)
    assert figures["perplexity"] == {} and figures["train_loss"] == [] and figures["steps"] == 1
    assert "trained weights" in capsys.readouterr().out and run.shown == 1


def test_rows_that_were_left_out_are_named_at_the_end_and_stored(tmp_path, capsys):
    run = Nothing(tmp_path)
    run.bad_rows = BadRows(3)
    for line in (2, 5):
        run.bad_rows.add(Problem("train_data", "jsonl:a.jsonl#text", f"a.jsonl:{line} is not JSON", "mend it"))
    state = SimpleNamespace(log_history=[], global_step=1)
    trainer = SimpleNamespace(state=state, skipped_steps=0, peak_memory_bytes=None)
    report.conclude(run, trainer, results.Result(command=[], started="now"))
    assert "2 rows: a.jsonl:2 is not JSON; a.jsonl:5 is not JSON\n" in capsys.readouterr().out
    figures = results.load(tmp_path / "results" / "run.json").figures
    assert figures["bad_rows"] == [f"jsonl:a.jsonl#text: a.jsonl:{line} is not JSON" for line in (2, 5)]


@pytest.mark.parametrize("speeds, mean", [((1.0, 100.0, 200.0), 150.0), ((1.0,), None)])
def test_speed_is_the_mean_without_the_first_step(tmp_path, speeds, mean):
    """The first warms caches up, compiles kernels and fills the loader."""
    history = [{"step": 1, "loss": 2.0, "tokens_per_second": speed} for speed in speeds]
    trainer = SimpleNamespace(
        state=SimpleNamespace(log_history=history, global_step=1), skipped_steps=0, peak_memory_bytes=None
    )
    report.conclude(Nothing(tmp_path), trainer, results.Result(command=[], started="now"))
    assert results.load(tmp_path / "results" / "run.json").figures["tokens_per_second"] == mean
