"""The tables a run prints."""

from tape_ds.scoring.loss_by_position import SpanLosses
from tape_ds.scoring.perplexity import Perplexity
from tape_ds.training import tables


def test_loss_by_position_is_a_table_per_document(capsys):
    losses = SpanLosses(1024, (0, 1024, 2048), (2.5, 2.25, float("nan")), (1023, 1024, 10))
    tables.print_loss_by_position({"untouched": {"typing.py": losses}}, native_length=2048)
    printed = capsys.readouterr().out
    assert "typing.py" in printed and "untouched" in printed and "2.25" in printed and "nan" in printed
    assert ">= 2k" in printed


def test_perplexity_is_a_row_per_length(capsys):
    scores = {
        128: Perplexity(128, 2.0, 1270, 10),
        64: Perplexity(64, 1.0, 1260, 20),
        256: Perplexity(256, 900.0, 255, 1),
    }
    tables.print_perplexity(scores, window=128)
    lines = [line.split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in line[1:-1]] for line in lines]
    assert cells == [
        ["64", "0.5", "2.72", "1.0000", "1,260", "20"],
        ["128", "1", "7.39", "2.0000", "1,270", "10"],
        ["256", "2", "inf", "900.0000", "255", "1"],
    ]
