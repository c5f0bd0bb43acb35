"""The harness itself: attempts follow from their number and seed, failures are caught, a killed campaign goes on."""

import json

import pytest

from tape_ds import results
from tests.faults import __main__ as command
from tests.faults import report
from tests.faults.campaign import Campaign, Outcome
from tests.faults.journal import Journal
from tests.faults.writes import watched


def made(execute, **fields):
    """A campaign of ten attempts."""
    return Campaign("made", **{"count": 10, "daily": 2, "means": "nothing", "execute": execute, **fields})


def outcome(number, survived=True):
    return Outcome("made", number, 0, f"attempt {number}", survived, "seen", 1.0)


def test_an_attempt_follows_from_its_number_and_seed(tmp_path):
    def draws(attempt):
        attempt.what = str(attempt.draw.random())

    said = [made(draws).attempt(number, seed, tmp_path).what for number, seed in ((3, 0), (3, 0), (4, 0), (3, 1))]
    assert said[0] == said[1] and len(set(said)) == 3


@pytest.mark.parametrize("error", [AssertionError("lost"), OSError("lost")])
def test_a_failure_is_an_outcome_and_keeps_its_folder(tmp_path, error):
    def fails(attempt):
        (attempt.folder / "left").touch()
        raise error

    found = made(fails).attempt(7, 0, tmp_path)
    assert not found.survived and "lost" in found.detail
    assert (tmp_path / "attempts" / "made-0-7" / "left").exists()


def test_a_survivor_leaves_nothing(tmp_path):
    assert made(lambda attempt: (attempt.folder / "left").touch()).attempt(7, 0, tmp_path).survived
    assert not (tmp_path / "attempts" / "made-0-7").exists()


def test_the_daily_part_is_spread_over_the_campaign():
    assert made(print, count=60, daily=6).sample(0) == [0, 10, 20, 30, 40, 50]
    assert made(print, count=60, daily=6).sample(13) == [3, 13, 23, 33, 43, 53]


def test_a_journal_goes_on_where_it_was_killed(tmp_path):
    file = tmp_path / "journal.jsonl"
    journal = Journal(file)
    journal.add(outcome(1))
    journal.add(outcome(2, survived=False))
    with file.open("a") as half:
        half.write('{"fault": "made", "num')
    again = Journal(file)
    assert again.survived("made", 0, 1) and not again.survived("made", 0, 2) and not again.survived("made", 0, 3)
    again.add(outcome(2))
    assert [each.survived for each in Journal(file).outcomes("made", 0)] == [True, True]
    assert [json.loads(line)["number"] for line in file.read_text().splitlines()] == [1, 2, 2]


def test_what_is_done_is_not_done_again(tmp_path, monkeypatch, capsys):
    tried = []

    def execute(attempt):
        tried.append(attempt.number)
        assert attempt.number != 2 or tried.count(2) > 1

    monkeypatch.setattr(command, "ALL", {"made": made(execute, count=4)})
    words = ["--only", "made", "--workspace", str(tmp_path), "--page", str(tmp_path / "faults.md")]
    assert command.main(words) == 1 and command.main(words) == 0
    assert tried == [0, 1, 2, 3, 2]
    assert "again: python -m tests.faults --only made --number 2 --seed 0" in capsys.readouterr().out
    page = (tmp_path / "faults.md").read_text()
    assert "| made | 4 | 4 | 0 |" in page and page.rstrip().endswith("None.")
    figures = results.load(tmp_path / "faults" / "faults.json").figures["campaigns"]["made"]
    assert figures["tries"] == figures["survived"] == 4


def test_the_page_lists_what_failed(tmp_path):
    campaigns = {"made": made(print)}
    done = {"made": [outcome(1), outcome(2, survived=False)]}
    report.write(done, campaigns, results.collect(command=["x"], seed=0), tmp_path / "faults.md")
    page = (tmp_path / "faults.md").read_text()
    assert "| made | 2 of 10 | 1 | 0 |" in page and "--only made --number 2 --seed 0`: attempt 2. seen" in page


def test_writes_are_noticed(tmp_path):
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (tmp_path / "there").write_text("")
    with watched([allowed]) as found:
        (allowed / "a").write_text("")
        (tmp_path / "there").read_text()
        assert not found
        (tmp_path / "b").write_text("")
        (tmp_path / "c").mkdir()
        (tmp_path / "b").rename(allowed / "b")
    assert [each.split()[0] for each in found] == ["open", "os.mkdir", "os.rename"]
