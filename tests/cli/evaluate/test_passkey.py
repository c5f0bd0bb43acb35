"""``tape-ds evaluate passkey``: from the command line to the stored heat map, with models whose answers we know."""

import contextlib
import csv

import pytest

from tape_ds import results
from tape_ds.cli.evaluate import passkey
from tape_ds.scoring import models
from tests.evaluation.found_models import asker
from tests.scoring.readers import Reader

SMALL = ["--lengths", "400", "1000", "--depths", "0", "0.25", "0.5", "--trials", "2"]


@pytest.fixture
def ask(monkeypatch, tmp_path):
    return asker(passkey, monkeypatch, tmp_path)


def stored(folder):
    return results.load(folder / "passkey.json")


def figures(folder):
    return {name: value for name, value in stored(folder).figures.items() if name != "cost"}


@pytest.mark.parametrize("form", ["longlora", "pose"])
def test_an_oracle_finds_all(ask, tmp_path, form):
    code, _ = ask(Reader(100_000), *SMALL, "--form", form, "--chunk", "300")
    assert code == 0
    found = figures(tmp_path)
    assert found["form"] == form
    assert [(each["length"], each["depth"]) for each in found["cells"]] == [
        (n, d) for n in (400, 1000) for d in (0, 0.25, 0.5)
    ]
    assert {(each["trials"], each["correct"], each["correct_ids"]) for each in found["cells"]} == {
        (2, 2, 2)
    }
    assert [(each["length"], each["accuracy"]) for each in found["passkeys"]] == [
        (400, 1.0),
        (1000, 1.0),
    ]
    if form == "longlora":
        assert [each["mean_tokens"] for each in found["cells"]] == [390.0] * 3 + [990.0] * 3, (
            "room for the reply"
        )


def test_what_is_stored_is_enough_to_repeat_it(ask, tmp_path):
    ask(Reader(100_000), *SMALL, "--seed", "7")
    result = stored(tmp_path)
    assert (result.seed, result.model["sha256"]) == (7, "0" * 64)
    assert result.config == {
        "evaluation": "passkey",
        "protocol": "grid",
        "form": "longlora",
        "lengths": [400, 1000],
        "depths": [0.0, 0.25, 0.5],
        "trials": 2,
        "new_tokens": 10,
        "use_cache": True,
        "chunk": 4096,
    }
    assert list(result.data) == ["passkey:longlora"]
    cost = result.figures["cost"]
    assert (
        cost["prompt_tokens"] == 6 * 390 + 6 * 990
        and cost["seconds"] > 0
        and cost["peak_memory_bytes"] > 2**20
    )
    table = list(csv.DictReader((tmp_path / "passkey.csv").open()))
    assert len(table) == 6 and (table[1]["length"], table[1]["depth"], table[1]["correct"]) == (
        "400",
        "0.25",
        "2",
    )
    names = ["passkey.csv", "passkey.json", "passkey.md", "passkey.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_all_problems_are_in_one_message(ask, tmp_path, capsys):
    words = [
        "--lengths",
        "100",
        "400",
        "400",
        "9000",
        "--depths",
        "0",
        "2",
        "--trials",
        "2",
        "--new_tokens",
        "3",
    ]
    code, found = ask(Reader(1), *words, position_limit=8192)
    message = capsys.readouterr().err
    assert (code, found.loads) == (2, [])
    assert "5 problems found" in message and list(tmp_path.iterdir()) == []
    for problem in (
        "--depths = ",
        "given twice",
        "--new_tokens = 3",
        "--lengths = 100:",
        "--lengths = 9000:",
    ):
        assert problem in message


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--protocol", "published", "--depths", "0.5"], "--depths"),
        (["--protocol", "published", "--form", "pose"], "--form"),
        (["--protocol", "published", "--lengths", "100"], "--lengths"),
    ],
)
def test_what_a_protocol_excludes_is_refused(ask, capsys, words, field):
    code, found = ask(Reader(1), *words)
    message = capsys.readouterr().err
    assert (code, found.loads) == (2, []) and field in message and "1 problem found" in message


def test_published_prompts_past_the_last_position_are_refused(ask):
    """Their tokens are counted: 3,072 letters of filler and some 250 more, not the nominal length."""
    words = ["--protocol", "published", "--lengths", "1000", "--trials", "2"]
    assert ask(Reader(10**6), *words, position_limit=3000)[0] == 2
    assert ask(Reader(10**6), *words, position_limit=3400)[0] == 0


@pytest.mark.parametrize(
    ("typed", "depths"),
    [(["1"], [1]), (["3"], [0, 0.5, 1]), (["1", "0"], [0, 1])],
)
def test_depths_are_shares_or_their_number(ask, tmp_path, typed, depths):
    ask(Reader(100_000), "--lengths", "400", "--trials", "1", "--depths", *typed)
    assert [each["depth"] for each in figures(tmp_path)["cells"]] == depths


@pytest.mark.parametrize("protocol", ["grid", "published"])
def test_angles_are_those_of_the_tokens_that_a_prompt_has(ask, tmp_path, monkeypatch, protocol):
    """A published length is a name: its prompts have a token a letter here, 3.75 times as many."""
    used = []
    monkeypatch.setattr(
        models, "used_at", lambda model, length: used.append(length) or contextlib.nullcontext()
    )
    ask(Reader(100_000), "--protocol", protocol, "--lengths", "1200", "--trials", "1")
    tokens = {each["tokens"] for each in figures(tmp_path)["passkeys"][0]["replies"]}
    assert set(used) == ({1200} if protocol == "grid" else {max(tokens) + 10})
    assert protocol == "grid" or max(tokens) > 4096
