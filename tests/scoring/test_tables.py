"""The tables a run prints."""

from tape_ds.scoring import tables
from tape_ds.scoring.span_losses import SpanLosses


def test_brackets_are_text_and_credentials_are_not_printed(capsys):
    """A glob's were taken for markup: ``[a-z]`` vanished, and ``[/b]`` ended the run with an error."""
    tables.print_rows(
        {"data": "text:src/[a-z]*.py, text:[/b]", "other": "jsonl:https://somebody:secret@host/a"}
    )
    losses = SpanLosses(4, (0,), (2.5,), (3,))
    tables.print_loss_by_position({"untouched": {"[a]/[/b].py": losses}}, native_length=4)
    printed = capsys.readouterr().out
    assert "text:src/[a-z]*.py, text:[/b]" in printed and "on [a]/[/b].py" in printed
    assert "secret" not in printed and "@host/a" in printed
