"""``tape-ds evaluate ruler``: from the command line to the stored scores, off the network, resumed to equal bytes."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tape_ds import results
from tape_ds.cli.evaluate import ruler
from tape_ds.scoring import replies

SMALL = ["--lengths", "1k", "2k", "--tasks", "vt", "fwe", "--samples", "2"]
ROOT = Path(__file__).resolve().parents[3]


def evaluate(base, folder, *words):
    return ruler.main([str(base), "--output", str(folder), *words])


def stored(folder):
    return results.load(folder / "ruler.json")


def files(folder):
    """Everything that is written, without times."""
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "ruler.json"}
    figures = {name: value for name, value in stored(folder).figures.items() if name != "cost"}
    return found | {"ruler.json": json.dumps(figures)}


@pytest.fixture(scope="module")
def whole(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert evaluate(base, folder, *SMALL) == 0
    return folder


def test_what_is_stored(whole, capsys):
    figures = stored(whole).figures
    cells = [(each["task"], each["length"], each["samples"]) for each in figures["cells"]]
    assert sorted(cells) == sorted((task, n, 2) for task in ("fwe", "vt") for n in (1024, 2048))
    assert len(figures["replies"]) == 8 and set(figures["effective"]) == {"published", "own"}
    for reply in figures["replies"]:
        assert reply["tokens"] + {"vt": 30, "fwe": 50}[reply["task"]] <= reply["length"]
        assert reply["answers"] and isinstance(reply["reply"], str) and reply["score"] == 0.0
    assert figures["haystack"] == "package:lm_eval/tasks/*/README.md" and "cwe" in figures["not_asked"]
    assert sorted(path.name for path in whole.iterdir()) == ["ruler.csv", "ruler.json", "ruler.md", "ruler.png"]
    assert "| vt | 0.0 (0-66) | 0.0 (0-66) |" in (whole / "ruler.md").read_text()


def test_killed_three_times_it_ends_with_the_same_bytes(base, whole, tmp_path, monkeypatch):
    own, asked = replies.reply, []

    def ask_two(*arguments, **options):
        if len(asked) % 3 == 2:
            asked.append("killed")
            raise KeyboardInterrupt
        asked.append("answered")
        return own(*arguments, **options)

    monkeypatch.setattr(replies, "reply", ask_two)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            evaluate(base, tmp_path, *SMALL)
        assert not (tmp_path / "ruler.json").exists()
    assert evaluate(base, tmp_path, *SMALL) == 0
    assert asked.count("answered") == 8, "no question is asked twice"
    assert files(tmp_path) == files(whole)


def test_beside_a_base_the_differences_are_shown(base, whole, tmp_path):
    words = ["--lengths", "1k", "--tasks", "vt", "--samples", "2"]
    assert evaluate(base, tmp_path, *words, "--against", str(whole)) == 0
    rows = stored(tmp_path).figures["differences"]
    assert [(row["length"], row["tasks"], row["difference"]) for row in rows] == [(1024, 1, 0.0)]
    assert f"1k: +0.0% (+0.0% to +0.0%) from {whole}" in (tmp_path / "ruler.md").read_text()


def test_all_problems_are_in_one_message(base, tmp_path, capsys):
    haystack = tmp_path / "short.txt"
    haystack.write_text("a few words")
    squad = tmp_path / "dev.json"
    squad.write_text("{}")
    words = ["--tasks", "niah_single_2", "vtt", "qa_squad", "qa_hotpot", "--lengths", "512", "2k", "2k"]
    words += ["--haystack", f"text:{haystack}", "--squad", str(squad), "--chat", "--samples", "501"]
    assert evaluate(base, tmp_path / "out", *words) == 2
    message = capsys.readouterr().err
    for problem in (
        "--tasks = 'vtt': not a task of RULER",
        "--tasks = 'qa_hotpot': its questions are in a file",
        "--lengths = [512, 2048, 2048]: one is given twice",
        "--lengths = 512: RULER's texts are longer",
        "--samples = 501",
        "--chat = True: the tokenizer has no chat template",
        f"--haystack = 'text:{haystack}': its texts have 3 tokens together",
        f"--squad = '{squad}': it has another form",
    ):
        assert problem in message
    assert "8 problems found" in message and not (tmp_path / "out").exists()


def test_a_length_too_short_for_a_task_is_named(base, tmp_path, capsys, monkeypatch):
    from tape_ds.scoring import ruler_questions

    def refuse(*_, **__):
        raise ruler_questions.NoQuestionError("its shortest text has more tokens")

    monkeypatch.setattr(ruler_questions, "draw", refuse)
    assert evaluate(base, tmp_path / "out", "--tasks", "vt", "cwe", "--lengths", "1k") == 2
    message = capsys.readouterr().err
    assert "--lengths = 1024: too short for vt with this tokenizer" in message and "2 problems found" in message


def test_no_socket_is_opened(base, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a socket was opened")

    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    words = ["--lengths", "1k", "--tasks", "niah_single_2", "--samples", "1"]
    assert evaluate(base, tmp_path, *words) == 0


FORBIDDEN = """
import socket, sys

def refuse(*arguments, **options):
    raise SystemExit("a socket was opened")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from tape_ds.cli.evaluate import ruler
sys.exit(ruler.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_no_socket_is_opened_from_the_start(base, tmp_path):
    words = ["--lengths", "1k", "--samples", "1", "--output", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", FORBIDDEN, str(base), *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_two_processes_write_the_same(base, whole, tmp_path):
    from tests.processes import deepspeed

    command = [*deepspeed(2), "--module", "tape_ds", "evaluate", "ruler", str(base), "--output", str(tmp_path), *SMALL]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == files(whole)
