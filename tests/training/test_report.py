"""What a person reads before a run and after it."""

from types import SimpleNamespace

from tape_ds import results
from tape_ds.training import report


def test_names_of_layers_are_drawn_together():
    names = ("model.norm.weight", *(f"model.layers.{i}.position.gate.weight" for i in (0, 1, 2, 5)))
    assert report.summarise(names).splitlines() == ["model.norm.weight", "model.layers.{0-2,5}.position.gate.weight"]


class Nothing:
    """A run that logged and scored nothing."""

    names = ("model.norm.weight",)
    parameter_counts = (10, 1)

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
    report.conclude(run, SimpleNamespace(state=state, skipped_steps=0), results.Result(command=[], started="now"))
    figures = results.load(tmp_path / "results" / "run.json").figures
    assert figures["perplexity"] == {} and figures["train_loss"] == [] and figures["steps"] == 1
    assert "trained weights" in capsys.readouterr().out and run.shown == 1
