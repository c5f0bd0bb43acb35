"""Several checkpoints' answers side by side: scored officially, escaped, and refused where they do not compare."""

import html
import json
import re

import pytest

from evaluation.scrolls import compare, generate
from tape_ds import results
from tape_ds.data.scrolls import datasets, examples
from tests.evaluation.scrolls.conftest import DATA

SETTINGS = {"max_tokens": 512, "answer_tokens": 6, "summary_tokens": 8, "reference_format": False}


def asked(name="quality"):
    return examples.read(name, "validation", DATA)


def right(name="quality"):
    return {each.id: each.outputs[0] for each in asked(name)}


def folder(path, texts, name="quality", split="validation", data=None, **changes):
    """What ``generate`` leaves: predictions, and a record of how they came about."""
    (path / "scrolls").mkdir(parents=True)
    (path / "scrolls" / f"{name}.json").write_text(json.dumps(texts))
    prints = {f"scrolls:{name}:{split}": data or examples.fingerprint(name, split, DATA)}
    begun = results.collect(config=SETTINGS | {"split": split} | changes, data=prints, command=[])
    results.save(begun.finish({}), path / "scrolls.json")
    return path


def run(output, *words):
    return compare.main([*map(str, words), "--data_dir", str(DATA), "--output", str(output)])


@pytest.fixture
def two(tmp_path):
    """One that is right everywhere, and one that is wrong once and once right in other words."""
    texts = right()
    first, second, *_ = texts
    other = texts | {first: "no idea", second: f"  the {texts[second].upper()}!! "}
    return folder(tmp_path / "tape" / "evaluation", texts), folder(tmp_path / "rope" / "evaluation", other)


def test_everybody_answers_the_same_questions(two, tmp_path, capsys):
    output = tmp_path / "answers"
    assert run(output, *two, "--questions", 99) == 0
    stored = results.load(output / "answers.json")
    found, rows = stored.figures, asked()
    assert [each["id"] for each in found["questions"]] == [each.id for each in rows]
    assert [list(each["answers"]) for each in found["questions"]] == [["tape", "rope"]] * len(rows)
    (wrong, otherwise), plain = found["questions"][:2], found["questions"][2]
    assert wrong["answers"]["rope"] == {"text": "no idea", "exact_match": 0, "f1": 0}
    assert otherwise["answers"]["rope"]["exact_match"] == 100 and plain["answers"]["tape"]["f1"] == 100
    expected = 100 * (len(rows) - 1) / len(rows)
    assert found["scores"]["rope"]["exact_match"]["score"] == pytest.approx(expected)
    assert found["scores"]["tape"]["f1"]["score"] == 100 and found["scores"]["tape"]["examples"] == len(rows)
    assert f"rope: exact match {expected:.2f}" in capsys.readouterr().out
    assert set(stored.data) == {str(each / "scrolls" / "quality.json") for each in two}


def cells(page, caption):
    """The rows of a table, each a list of its cells' texts."""
    (table,) = re.findall(rf'<table aria-label="{re.escape(caption)}.*?</table>', page, re.S)
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.S)
    return [[html.unescape(re.sub("<.*?>", "", cell)) for cell in re.split(r"</t[dh]>", row)[:-1]] for row in rows]


def test_the_page_has_a_row_for_each_checkpoint(two, tmp_path):
    assert run(tmp_path / "answers", f"TAPE={two[0]}", f"RoPE={two[1]}", "--questions", 1) == 0
    page = (tmp_path / "answers" / "answers.html").read_text()
    first = asked()[0]
    assert "What is still rung at noon" in page and "(A) A phone" in page and f"“{first.outputs[0]}”" in page
    assert cells(page, f"Answers to {first.id}")[1:] == [
        ["TAPE", first.outputs[0], "100.0", "100.0"],
        ["RoPE", "no idea", "0.0", "0.0"],
    ]
    scores = cells(page, "All questions")
    assert scores[0] == ["checkpoint", "exact match", "F1", "questions"]
    assert scores[1] == ["TAPE", "100.00 ± 0.00", "100.00 ± 0.00", str(len(asked()))]


def test_texts_are_no_markup_and_shown_whole(tmp_path):
    evil = "<script>alert(1)</script> &lt; <img src=x>\n# head " + "word " * 200
    assert run(tmp_path / "answers", folder(tmp_path / "one", dict.fromkeys(right(), evil)), "--questions", 1) == 0
    page = (tmp_path / "answers" / "answers.html").read_text()
    assert "<script" not in page and "<img" not in page
    assert cells(page, "Answers to")[1][1] == evil
    stored = results.load(tmp_path / "answers" / "answers.json").figures["questions"][0]
    assert stored["answers"]["one"]["text"] == evil


def test_questions_are_spread_or_named(two, tmp_path):
    ids = [each.id for each in asked()]
    assert run(tmp_path / "a", *two, "--questions", 2) == 0
    shown = results.load(tmp_path / "a" / "answers.json").figures["questions"]
    assert [each["id"] for each in shown] == [ids[0], ids[len(ids) // 2]]
    assert run(tmp_path / "b", *two, "--ids", ids[2], ids[1]) == 0
    shown = results.load(tmp_path / "b" / "answers.json").figures["questions"]
    assert [each["id"] for each in shown] == [ids[2], ids[1]]


def test_only_what_was_answered_is_asked(tmp_path):
    few = dict(list(right().items())[:2])
    assert run(tmp_path / "answers", folder(tmp_path / "a", few), folder(tmp_path / "b", few)) == 0
    figures = results.load(tmp_path / "answers" / "answers.json").figures
    assert len(figures["questions"]) == 2 and figures["scores"]["a"]["examples"] == 2


def test_summaries_are_scored_by_rouge(tmp_path):
    one = folder(tmp_path / "one", right("gov_report"), "gov_report")
    assert run(tmp_path / "answers", one, "--dataset", "gov_report") == 0
    figures = results.load(tmp_path / "answers" / "answers.json").figures
    assert figures["metrics"] == ["rouge"]
    assert figures["questions"][0]["answers"]["one"]["rouge"] == pytest.approx(100)


def test_a_bare_file_is_taken_and_said_to_be_unrecorded(tmp_path, two):
    path = tmp_path / "somebody.json"
    path.write_text(json.dumps(right()))
    assert run(tmp_path / "answers", two[0], path) == 0
    text = (tmp_path / "answers" / "answers.html").read_text()
    assert "How its prompts were made is not recorded: somebody." in text and "recorded: tape" not in text


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"max_tokens": 1024}, "--max_tokens was 1024, not 512"),
        ({"reference_format": True}, "--reference_format was True"),
        ({"split": "train"}, "--split was train, not validation"),
        ({"data": "0" * 64}, "the fingerprint of its questions was 0000"),
    ],
)
def test_what_was_not_asked_alike_is_refused(tmp_path, changes, words, capsys):
    one, two = folder(tmp_path / "a", right()), folder(tmp_path / "b", right(), **changes)
    assert run(tmp_path / "answers", one, two) == 2
    message = capsys.readouterr().err
    assert words in message and "RESULTS = 'b'" in message and not (tmp_path / "answers").exists()


def test_ids_that_somebody_lacks_are_named(tmp_path, capsys):
    texts = right()
    first, *_ = texts
    fewer = {id_: text for id_, text in texts.items() if id_ != first} | {"quality-x": "?"}
    assert run(tmp_path / "answers", folder(tmp_path / "a", texts), folder(tmp_path / "b", fewer)) == 2
    message = capsys.readouterr().err
    assert f"1 ids have no prediction, which others have answered: {first}" in message
    assert "1 ids are no questions of this split: quality-x" in message


@pytest.mark.parametrize(
    "words, said",
    [
        (["{one}", "{one}"], ["two are called so", "NAME=PATH"]),
        (["{one}", "--questions", "0"], ["--questions", "1 or more"]),
        (["{one}", "--ids", "quality-x"], ["quality-x", "nobody was asked this"]),
        (["{one}", "--dataset", "qualty"], ["did you mean 'quality'"]),
        (["{one}", "--dataset", "quality_hard"], ["no such data set"]),
        (["{one}", "--dataset", "qasper"], ["no scrolls/qasper.json", "--datasets qasper"]),
        (["{one}/none.json"], ["No such file"]),
        (["{one}", "--output", "{one}/scrolls.json/x"], ["is a file"]),
    ],
)
def test_mistakes_are_named(words, said, tmp_path, capsys):
    one = folder(tmp_path / "one", right())
    given = ["--output", str(tmp_path / "answers"), *(word.format(one=one) for word in words)]
    assert compare.main([*given, "--data_dir", str(DATA)]) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in said), message
    assert not (tmp_path / "answers").exists()


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ("[1, 2]", "is no JSON object"),
        ('{"a": "x", "a": "y"}', "1 ids stand twice"),
        ('{"a": 1, "b": "y", "c": null}', "no text is under a, c"),
        ("{", "is not readable as predictions"),
    ],
)
def test_what_are_no_predictions(tmp_path, capsys, content, wrong):
    (tmp_path / "file.json").write_text(content)
    assert run(tmp_path / "answers", tmp_path / "file.json") == 2
    assert wrong in capsys.readouterr().err


def test_any_reference_will_do(tmp_path):
    """A question with several answers is asked once, and the answer that suits best counts."""
    several = [each for each in asked("qasper") if len(each.outputs) > 1]
    assert several, "the miniature has such a question"
    texts = right("qasper") | {each.id: each.outputs[-1] for each in several}
    assert run(tmp_path / "answers", folder(tmp_path / "one", texts, "qasper"), "--dataset", "qasper") == 0
    scores = results.load(tmp_path / "answers" / "answers.json").figures["scores"]
    assert scores["one"]["f1"]["score"] == 100


def test_halves_of_a_letter_are_no_text(tmp_path, capsys):
    """JSON can hold what no file can."""
    texts = {**right(), next(iter(right())): "bad \ud800 text"}
    one = folder(tmp_path / "one", texts)
    assert run(tmp_path / "answers", one) == 2
    assert "no text is under" in capsys.readouterr().err and not (tmp_path / "answers").exists()
    assert run(tmp_path / "answers", f"\udcff={one}") == 2
    assert "is not UTF-8" in capsys.readouterr().err


def test_what_generate_wrote_is_compared(llama, tmp_path):
    """From a random model, which answers nonsense, to a page."""
    for name, words in {"short": 4, "long": 4}.items():
        arguments = [llama, "--output", tmp_path / name, "--data_dir", DATA, "--datasets", "quality", "--limit", 2]
        assert generate.main([*map(str, arguments), "--max_tokens", "300", "--answer_tokens", str(words)]) == 0
    assert run(tmp_path / "answers", tmp_path / "short", tmp_path / "long") == 0
    assert {path.name for path in (tmp_path / "answers").iterdir()} == {"answers.html", "answers.json"}


@pytest.mark.parametrize("name", ["qasper", "quality", "stdlib", "qmsum"])
def test_a_question_is_told_without_its_document(name):
    for example in examples.read(name, "validation", None if name == "stdlib" else DATA):
        told = compare.question(example.input, datasets.find(name))
        assert told and len(told) < len(example.input) and example.input.startswith(told.splitlines()[0])


@pytest.mark.parametrize("name", ["gov_report", "summ_screen_fd"])
def test_a_document_without_a_question_is_told_by_its_beginning(name):
    for example in examples.read(name, "validation", DATA):
        begin = compare.question(example.input, datasets.find(name)).removeprefix("Summarise the text that begins: ")
        assert begin and " ".join(example.input.split()).startswith(begin) and len(begin) <= compare.BEGINNING
