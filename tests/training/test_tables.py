"""The tables a run prints."""

from tape_ds.scoring.losses import Perplexity
from tape_ds.scoring.passkey import Passkey, Reply
from tape_ds.scoring.span_losses import SpanLosses
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


def test_passkeys_are_counted_and_wrong_replies_shown(capsys):
    """All models in one table; what a reply says is text, never markup of the table."""
    short = Passkey(64, (Reply(0, 64, 0.5, 7, " 7."), Reply(1, 64, 0.25, 9, " 8")))
    missed, found = (Passkey(192, (Reply(0, 192, 0.875, 12, reply),)) for reply in ("[/bold] no", " 12"))
    tables.print_passkeys({"untouched": [short, missed], "trained": [found]}, native_length=128)
    lines = [line.split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in line[1:-1]] for line in lines]
    assert cells == [
        ["untouched", "64", "0.5", "1 of 2", "' 8' for 9 at 25%"],
        ["untouched", "192", "1.5", "0 of 1", "'[/bold] no' for 12 at 88%"],
        ["trained", "192", "1.5", "1 of 1", ""],
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


def test_brackets_in_the_name_of_a_model_are_text(capsys):
    """Evaluations call a row as the model was typed: ``runs/[lora]`` was shown as ``runs/``."""
    tables.print_loss_by_position({"runs/[lora]": {"a.py": SpanLosses(4, (0,), (2.5,), (3,))}}, native_length=4)
    tables.print_passkeys({"runs/[lora]": [Passkey(64, (Reply(0, 64, 0.5, 7, " 7."),))]}, native_length=64)
    assert capsys.readouterr().out.count("runs/[lora]") == 2
