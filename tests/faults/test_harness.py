"""The command: a failure is kept and made again, what was survived is not."""

from tape_ds import results
from tests.faults import __main__ as command
from tests.faults.campaign import Campaign


def made(execute, **fields):
    """A campaign of four attempts."""
    return Campaign(
        "made", **{"count": 4, "daily": 2, "means": "nothing", "execute": execute, **fields}
    )


def test_a_failure_is_kept_and_made_again_and_a_survivor_is_not(tmp_path, monkeypatch, capsys):
    tried = []

    def execute(attempt):
        tried.append(attempt.number)
        (attempt.folder / "left").touch()
        assert attempt.number != 2 or tried.count(2) > 1, "lost"

    monkeypatch.setattr(command, "ALL", {"made": made(execute)})
    words = ["--only", "made", "--workspace", str(tmp_path), "--page", str(tmp_path / "faults.md")]
    assert command.main(words) == 1 and [
        path.name for path in (tmp_path / "attempts").iterdir()
    ] == ["made-0-2"]
    again = "python -m tests.faults --only made --number 2 --seed 0"
    assert (
        f"again: {again}" in capsys.readouterr().out
        and f"`{again}`: . lost" in (tmp_path / "faults.md").read_text()
    )
    assert command.main(words) == 0 and tried == [0, 1, 2, 3, 2]
    page = (tmp_path / "faults.md").read_text()
    assert "| made | 4 | 4 | 0 |" in page and page.rstrip().endswith("None.")
    figures = results.load(tmp_path / "faults" / "faults.json").figures["campaigns"]["made"]
    assert figures["tries"] == figures["survived"] == 4
