"""The tables a run prints."""

from tape_ds.scoring.losses import Perplexity
from tape_ds.scoring.span_losses import SpanLosses
from tape_ds.training import tables


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


def test_a_credential_is_not_printed(capsys):
    tables.print_rows({"data": "jsonl:https://somebody:secret@host/a.jsonl"})
    printed = capsys.readouterr().out
    assert "secret" not in printed and "@host/a.jsonl" in printed


def test_brackets_are_text(capsys):
    """A glob's were taken for markup: ``[a-z]`` vanished, and ``[/b]`` ended the run with an error."""
    tables.print_rows({"data": "text:src/[a-z]*.py, text:[/b]"})
    losses = SpanLosses(4, (0,), (2.5,), (3,))
    tables.print_loss_by_position({"untouched": {"[a]/[/b].py": losses}}, native_length=4)
    printed = capsys.readouterr().out
    assert "text:src/[a-z]*.py, text:[/b]" in printed and "on [a]/[/b].py" in printed
