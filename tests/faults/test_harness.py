"""The harness itself: attempts follow from their number and seed, failures are caught, a killed campaign continues."""

from tape_ds import results
from tests.faults import __main__ as command
from tests.faults.campaign import Campaign
from tests.journal import Journal


def made(execute, **fields):
    """A campaign of four attempts."""
    return Campaign("made", **{"count": 4, "daily": 2, "means": "nothing", "execute": execute, **fields})


def test_an_attempt_follows_from_its_number_and_seed(tmp_path):
    def draws(attempt):
        attempt.what = str(attempt.draw.random())

    said = [made(draws).attempt(number, seed, tmp_path).what for number, seed in ((3, 0), (3, 0), (4, 0), (3, 1))]
    assert said[0] == said[1] and len(set(said)) == 3


def test_a_failure_is_kept_and_made_again_and_a_survivor_is_not(tmp_path, monkeypatch, capsys):
    tried = []

    def execute(attempt):
        tried.append(attempt.number)
        (attempt.folder / "left").touch()
        assert attempt.number != 2 or tried.count(2) > 1, "lost"

    monkeypatch.setattr(command, "ALL", {"made": made(execute)})
    words = ["--only", "made", "--workspace", str(tmp_path), "--page", str(tmp_path / "faults.md")]
    assert command.main(words) == 1 and [path.name for path in (tmp_path / "attempts").iterdir()] == ["made-0-2"]
    again = "python -m tests.faults --only made --number 2 --seed 0"
    assert f"again: {again}" in capsys.readouterr().out and f"`{again}`: . lost" in (tmp_path / "faults.md").read_text()
    assert command.main(words) == 0 and tried == [0, 1, 2, 3, 2]
    page = (tmp_path / "faults.md").read_text()
    assert "| made | 4 | 4 | 0 |" in page and page.rstrip().endswith("None.")
    figures = results.load(tmp_path / "faults" / "faults.json").figures["campaigns"]["made"]
    assert figures["tries"] == figures["survived"] == 4


def test_a_journal_drops_a_line_that_a_kill_left_unfinished(tmp_path):
    file = tmp_path / "journal.jsonl"
    Journal(file).add({"a": 0.5})
    with file.open("a") as half:
        half.write('{"a": 0.')
    again = Journal(file)
    again.add({"a": 2})
    assert again.lines == Journal(file).lines == [{"a": 0.5}, {"a": 2}]
