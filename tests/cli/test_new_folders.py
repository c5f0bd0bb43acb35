"""Commands that write a new folder: nothing that exists is replaced, and no checkpoint is written into."""

import pytest

from tape_ds import checkpoint
from tape_ds.checkpoint import Manifest
from tape_ds.cli import consolidate, convert, export, merge, train_tokenizer

COMMANDS = {
    "merge": lambda out: merge.main(["source", out]),
    "export": lambda out: export.main(["source", out]),
    "convert": lambda out: convert.main(["llama-to-tape", "source", out]),
    "consolidate": lambda out: consolidate.main(["checkpoint-2", out]),
    "train-tokenizer": lambda out: train_tokenizer.main(
        ["--data", "text:words.txt", "--vocab_size", "300", "--output", out]
    ),
}


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A folder with a sealed checkpoint, and something of a person's under each kind of name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("one two three " * 50)
    (tmp_path / "checkpoint-2").mkdir()
    Manifest(step=2, processes=1, stage=None, files={}, identity={}).write(
        tmp_path / "checkpoint-2"
    )
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    return tmp_path


@pytest.mark.parametrize("name", ["folder", "file", "link"])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_exists_is_not_replaced(there, command, name, capsys):
    """An empty folder, a file, and a link that leads nowhere, through which a new folder would appear elsewhere."""
    assert COMMANDS[command](name) == 2
    assert f"'{name}': exists" in capsys.readouterr().err.replace(str(there) + "/", "")
    assert (there / "file").read_text() == "mine" and (there / "link").is_symlink()
    assert list((there / "folder").iterdir()) == [] and not (there / "nowhere").exists()


@pytest.mark.parametrize("command", ["merge", "export", "convert", "consolidate"])
def test_a_checkpoint_is_not_written_into(there, command, capsys):
    """One with a folder in it that its manifest does not have is damaged: it was refused by a resume from then on."""
    assert COMMANDS[command]("checkpoint-2/out") == 2
    assert "it is inside the checkpoint" in capsys.readouterr().err
    folder = there / "checkpoint-2"
    assert checkpoint.missing_files(folder, checkpoint.read(folder)) == []
