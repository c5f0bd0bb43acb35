"""What a person reads: names drawn together, scores in a table."""

from tape_ds.scoring.loss_by_position import SpanLosses
from tape_ds.training import report


def test_names_of_layers_are_drawn_together():
    names = ("model.norm.weight", *(f"model.layers.{i}.position.gate.weight" for i in (0, 1, 2, 5)))
    assert report.summarise(names).splitlines() == ["model.norm.weight", "model.layers.{0-2,5}.position.gate.weight"]


def test_scores_are_a_table_per_document(capsys):
    losses = SpanLosses(1024, (0, 1024, 2048), (2.5, 2.25, float("nan")), (1023, 1024, 10))
    report.print_scores({"untouched": {"typing.py": losses}}, native_length=2048)
    printed = capsys.readouterr().out
    assert "typing.py" in printed and "untouched" in printed and "2.25" in printed and "nan" in printed
    assert ">= 2k" in printed
