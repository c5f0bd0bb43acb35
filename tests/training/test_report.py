"""What a person reads: names drawn together, scores in a table."""

from types import SimpleNamespace

from tape_ds import results
from tape_ds.scoring.loss_by_position import SpanLosses
from tape_ds.training import report
from tape_ds.training.held_out import write_scores
from tape_ds.training.run import SCORES


def test_names_of_layers_are_drawn_together():
    names = ("model.norm.weight", *(f"model.layers.{i}.position.gate.weight" for i in (0, 1, 2, 5)))
    assert report.summarise(names).splitlines() == ["model.norm.weight", "model.layers.{0-2,5}.position.gate.weight"]


def test_scores_are_a_table_per_document(capsys):
    losses = SpanLosses(1024, (0, 1024, 2048), (2.5, 2.25, float("nan")), (1023, 1024, 10))
    report.print_scores({"untouched": {"typing.py": losses}}, native_length=2048)
    printed = capsys.readouterr().out
    assert "typing.py" in printed and "untouched" in printed and "2.25" in printed and "nan" in printed
    assert ">= 2k" in printed


def test_a_run_ends_well_without_logs_and_held_out_text(tmp_path, capsys):
    """Nothing logged and nothing scored is no error at the very end; an earlier run's scores are not this one's."""
    (tmp_path / "results").mkdir()
    write_scores(tmp_path / SCORES, {"untouched": {"old.py": SpanLosses(16, (0,), (2.0,), (15,))}})
    run = SimpleNamespace(
        output=tmp_path,
        held_out=[],
        names=("model.norm.weight",),
        parameter_counts=(10, 1),
        native=SimpleNamespace(max_position_embeddings=64),
    )
    state = SimpleNamespace(log_history=[{"step": 1, "train_runtime": 1.0}], global_step=1)
    report.conclude(run, SimpleNamespace(state=state, skipped_steps=0), results.Result(command=[], started="now"))
    figures = results.load(tmp_path / "results" / "run.json").figures
    assert figures["loss_by_position"] == {} and figures["train_loss"] == []
    assert "trained weights" in capsys.readouterr().out
