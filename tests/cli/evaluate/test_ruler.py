"""``tape-ds evaluate ruler``: from the command line to the stored scores, off the network, resumed to equal bytes."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tape_ds import results
from tape_ds.cli.evaluate import ruler
from tape_ds.scoring import models, replies

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
    assert (
        figures["haystack"] == "package:lm_eval/tasks/*/README.md" and "cwe" in figures["not_asked"]
    )
    assert sorted(path.name for path in whole.iterdir()) == [
        "ruler.csv",
        "ruler.json",
        "ruler.md",
        "ruler.png",
    ]
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


SHARED = [
    "--lengths",
    "1k",
    "--tasks",
    "niah_multikey_2",
    "vt",
    "--samples",
    "3",
    "--questions_per_text",
    "2",
]


@pytest.fixture(scope="module")
def shared(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    assert evaluate(base, folder, *SHARED) == 0
    return folder


def test_questions_that_share_a_text(base, shared, capsys):
    """Rows name their text; tasks whose texts have one question are named."""
    assert evaluate(base, shared, *SHARED) == 0
    figures = stored(shared).figures
    rows = [(row["task"], row["question"], row["text"]) for row in figures["replies"]]
    several, single = "niah_multikey_2", "vt"
    assert rows == [
        (several, 0, 0),
        (several, 1, 0),
        (several, 2, 1),
        *((single, each, each) for each in range(3)),
    ]
    assert (
        figures["questions_per_text"] == {several: 2, single: 1}
        and "Korn and Graubard" in figures["intervals"]
    )
    assert stored(shared).config["questions_per_text"] == 2
    assert len({row["answers"][0] for row in figures["replies"][:3]}) == 3
    tokens = [row["tokens"] for row in figures["replies"]]
    assert (
        tokens[0] < figures["cost"]["prompt_tokens"] - tokens[2] - sum(tokens[3:]) < tokens[0] + 60
    )
    said = "Questions about a text: 2 of niah_multikey_2; 1 of vt"
    assert said in capsys.readouterr().out and said in (shared / "ruler.md").read_text()
    assert (
        (shared / "ruler.csv")
        .read_text()
        .startswith("task,length,samples,score,low,high,mean_tokens,texts\n")
    )
    cells = {cell["task"]: (cell["samples"], cell["texts"]) for cell in figures["cells"]}
    assert cells == {several: (3, 2), single: (3, 3)}


def test_shared_texts_resume_to_the_same_bytes(base, shared, tmp_path, monkeypatch):
    texts = []

    def ended_at_the_second(own):
        def read(*arguments, **options):
            texts.append(own.__name__)
            if len(texts) == 2:
                raise KeyboardInterrupt
            return own(*arguments, **options)

        return read

    for own in (replies.replies_sharing, replies.reply):
        monkeypatch.setattr(replies, own.__name__, ended_at_the_second(own))
    with pytest.raises(KeyboardInterrupt):
        evaluate(base, tmp_path, *SHARED)
    assert evaluate(base, tmp_path, *SHARED) == 0
    assert len(texts) == 6 and texts.count("replies_sharing") == 1, (
        "no text is read twice but the interrupted one"
    )
    assert files(tmp_path) == files(shared)


def test_a_comparison_is_of_as_many_questions_about_a_text(
    base, shared, whole, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(replies, "replies_sharing", lambda _, prompts, **__: [[5]] * len(prompts))
    monkeypatch.setattr(replies, "reply", lambda *_, **__: [5])
    assert evaluate(base, tmp_path / "same", *SHARED, "--against", str(shared)) == 0
    (row,) = stored(tmp_path / "same").figures["differences"]
    assert (row["tasks"], row["difference"], row["low"], row["high"]) == (2, 0.0, 0.0, 0.0)
    assert evaluate(base, tmp_path / "out", *SHARED, "--against", str(whole)) == 2
    message = capsys.readouterr().err
    assert "--against" in message and "its texts were asked 1 questions each, these 2" in message


MANY = ["--tasks", "niah_multikey_3", "--samples", "400", "--questions_per_text", "400"]


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (
            ["--tasks", "niah_multikey_1", "vt", "--questions_per_text", "5"],
            "5: a text of niah_multikey_1 holds 4 keys",
        ),
        (
            ["--tasks", "vt", "cwe", "--questions_per_text", "2"],
            "2: no text of these tasks holds several keys",
        ),
        (["--tasks", "niah_multikey_2", "--questions_per_text", "0"], "0"),
        (
            ["--tasks", "niah_multikey_2", "--questions_per_text", "26"],
            "26: more than the questions of a task",
        ),
        (MANY, "400: a text of niah_multikey_3 at 1k holds "),
    ],
)
def test_questions_that_a_text_cannot_have(base, tmp_path, capsys, words, wrong):
    """Together with the other mistakes."""
    others = [] if words is MANY else ["--seed", "-1"]
    assert evaluate(base, tmp_path / "out", "--lengths", "1k", *words, *others) == 2
    message = capsys.readouterr().err
    assert f"--questions_per_text = {wrong}" in message and ("--seed = -1" in message or not others)
    assert not (tmp_path / "out").exists()


def test_a_model_whose_rotations_follow_the_length_reads_each_prompt(base, tmp_path, capsys):
    folder = tmp_path / "dynamic"
    shutil.copytree(base, folder)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    (folder / "config.json").write_text(json.dumps(config))
    assert evaluate(folder, tmp_path / "out", *SHARED) == 2
    assert "its rotations follow the length of what is read at once" in capsys.readouterr().err


def test_beside_a_base_the_differences_are_shown(base, whole, tmp_path):
    words = ["--lengths", "1k", "--tasks", "vt", "--samples", "2"]
    assert evaluate(base, tmp_path, *words, "--against", str(whole)) == 0
    rows = stored(tmp_path).figures["differences"]
    assert [(row["length"], row["tasks"], row["difference"]) for row in rows] == [(1024, 1, 0.0)]
    assert f"1k: +0.0% (+0.0% to +0.0%) from {whole}" in (tmp_path / "ruler.md").read_text()


def test_what_is_not_compared_is_said_before_the_model_is_loaded(
    base, whole, tmp_path, capsys, monkeypatch
):
    """A task and length of which the base had other questions, or another number, was left out without a word."""
    words = ["--lengths", "1k", "--tasks", "niah_multikey_2", "vt"]
    monkeypatch.setattr(replies, "reply", lambda *_, **__: [5])
    assert evaluate(base, tmp_path / "part", *words, "--samples", "2", "--against", str(whole)) == 0
    figures = stored(tmp_path / "part").figures
    assert figures["not_compared"] == ["niah_multikey_2 at 1k (it was not asked there)"]
    assert [row["tasks"] for row in figures["differences"]] == [1]
    said = f"ot compared with {whole}: niah_multikey_2 at 1k (it was not asked there)"
    assert said in capsys.readouterr().out and said in (tmp_path / "part" / "ruler.md").read_text()

    monkeypatch.setattr(models.FoundModel, "load", lambda _: pytest.fail("its weights were read"))
    for other, wrong in (
        (
            ["--samples", "3", "--seed", "5"],
            "it has 2 questions of each task and length, this command asks 3",
        ),
        (["--samples", "3", "--seed", "5"], "its questions were drawn with --seed 0, these with 5"),
        (
            ["--samples", "2", "--tasks", "cwe"],
            "it was asked none of these questions: cwe at 1k (it was not asked",
        ),
    ):
        assert evaluate(base, tmp_path / "none", *words, *other, "--against", str(whole)) == 2
        assert f"--against = '{whole}': {wrong}" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_all_problems_are_in_one_message(base, tmp_path, capsys):
    haystack = tmp_path / "short.txt"
    haystack.write_text("a few words")
    squad = tmp_path / "dev.json"
    squad.write_text("{}")
    words = [
        "--tasks",
        "niah_single_2",
        "vtt",
        "qa_squad",
        "qa_hotpot",
        "--lengths",
        "512",
        "2k",
        "2k",
    ]
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
    assert (
        "--lengths = 1024: too short for vt with this tokenizer" in message
        and "2 problems found" in message
    )


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
        [sys.executable, "-c", FORBIDDEN, str(base), *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "words"), [("whole", SMALL), ("shared", SHARED)])
def test_two_processes_write_the_same(base, folder, words, request, tmp_path):
    from tests.processes import deepspeed

    command = [
        *deepspeed(2),
        "--module",
        "tape_ds",
        "evaluate",
        "ruler",
        str(base),
        "--output",
        str(tmp_path),
        *words,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == files(request.getfixturevalue(folder))
