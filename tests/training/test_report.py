"""What a person reads before a run and after it."""

import math
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
    data = SimpleNamespace(bad_rows=BadRows(3))

    def __init__(self, output):
        self.output = output

    def figures(self):
        return {"perplexity": {}}

    def show(self):
        pass


def trainer_of(history):
    """What a report reads of a trainer."""
    state = SimpleNamespace(log_history=history, global_step=1)
    return SimpleNamespace(state=state, skipped_steps=0, peak_memory_bytes=None)


def test_a_run_ends_well_without_logs(tmp_path):
    """Nothing logged is no error at the very end; what the run's own scoring found is among the common figures."""
    report.conclude(Nothing(tmp_path), trainer_of([]), results.Result(command=[], started="now"))
    figures = results.load(tmp_path / "results" / "run.json").figures
    assert (figures["tokens"], figures["tokens_per_second"], figures["peak_memory_bytes"]) == (
        100,
        None,
        None,
    )
    assert figures["perplexity"] == {} and figures["train_loss"] == [] and figures["steps"] == 1


def test_rows_that_were_left_out_are_stored(tmp_path):
    run = Nothing(tmp_path)
    run.data.bad_rows = BadRows(3)
    for line in (2, 5):
        run.data.bad_rows.add(
            Problem("train_data", "jsonl:a.jsonl#text", f"a.jsonl:{line} is not JSON", "mend it")
        )
    report.conclude(run, trainer_of([]), results.Result(command=[], started="now"))
    figures = results.load(tmp_path / "results" / "run.json").figures
    assert figures["bad_rows"] == [
        f"jsonl:a.jsonl#text: a.jsonl:{line} is not JSON" for line in (2, 5)
    ]


@pytest.mark.parametrize(
    ("speeds", "steps", "mean"),
    [
        ((1.0, 100.0, 200.0), (1, 2, 3), 2 / (1 / 100 + 1 / 200)),
        ((1.0, 100.0, 200.0), (10, 20, 24), 14 / (10 / 100 + 4 / 200)),
        ((1.0,), (1,), None),
    ],
)
def test_speed_is_tokens_by_seconds_without_the_first_line(tmp_path, speeds, steps, mean):
    """The first warms caches up, compiles kernels and fills the loader. The arithmetic mean was stored: 150, where 200
    tokens take 1.5 seconds."""
    history = [
        {"step": step, "loss": math.nan, "tokens_per_second": speed}
        for step, speed in zip(steps, speeds, strict=True)
    ]
    report.conclude(
        Nothing(tmp_path), trainer_of(history), results.Result(command=[], started="now")
    )
    assert results.load(tmp_path / "results" / "run.json").figures["tokens_per_second"] == mean
