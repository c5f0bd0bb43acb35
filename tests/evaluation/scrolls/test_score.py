"""Files of predictions in the official form: what they are worth, and what is wrong with them."""

import json

import pytest

from evaluation.scrolls import score
from tape_ds.data.scrolls import examples
from tests.evaluation.scrolls.conftest import DATA


def asked(name):
    return examples.read(name, "validation", DATA)


def right(name):
    return {each.id: each.outputs[0] for each in asked(name)}


def run(folder, name, predictions, *words):
    path = folder / "predictions.json"
    path.write_text(predictions if isinstance(predictions, str) else json.dumps(predictions))
    return score.main([str(path), "--dataset", name, "--data_dir", str(DATA), *words])


def test_the_official_keys_for_one_part(tmp_path, capsys):
    predictions = right("contract_nli")
    wrong = next(iter(predictions))
    predictions[wrong] = "Maybe?"
    assert run(tmp_path, "contract_nli", predictions) == 0
    count = len(predictions)
    expected = round(100 * (count - 1) / count, 4)
    characters = round(sum(map(len, predictions.values())) / count, 4)
    content = json.loads((tmp_path / "contract_nli_metrics.json").read_text())
    assert list(content.items()) == [
        ("exact_match", expected),
        ("num_predicted", count),
        ("mean_prediction_length_characters", characters),
        ("scrolls_score", expected),
        ("display_keys", ["exact_match"]),
        ("display", [expected]),
    ]
    assert '"scrolls_score"' in capsys.readouterr().out


def test_the_official_keys_for_rouge(tmp_path):
    assert run(tmp_path, "gov_report", right("gov_report"), "--output", str(tmp_path / "scores")) == 0
    content = json.loads((tmp_path / "scores" / "gov_report_metrics.json").read_text())
    rouge = ["rouge/rouge1", "rouge/rouge2", "rouge/rougeL"]
    assert list(content)[:4] == [*rouge, "rouge/geometric_mean"]
    assert content["scrolls_score"] == content["rouge/geometric_mean"] == 100
    assert (content["display_keys"], content["display"]) == (rouge, [100, 100, 100])


def test_any_reference_will_do(tmp_path):
    """A question with several answers is asked once, and the answer that suits best counts."""
    several = [each for each in asked("qasper") if len(each.outputs) > 1]
    assert several, "the miniature has such a question"
    predictions = right("qasper") | {each.id: each.outputs[-1] for each in several}
    assert run(tmp_path, "qasper", predictions) == 0
    assert json.loads((tmp_path / "qasper_metrics.json").read_text())["scrolls_score"] == 100


def test_hard_questions_are_scored_by_themselves(tmp_path):
    """On the predictions of all; the others are neither redundant nor counted."""
    rows = asked("quality")
    predictions = {each.id: each.outputs[0] if each.hard else "no idea" for each in rows}
    assert run(tmp_path, "quality_hard", predictions) == 0
    content = json.loads((tmp_path / "quality_hard_metrics.json").read_text())
    assert (content["exact_match"], content["scrolls_score"]) == (100, None)
    assert content["num_predicted"] == sum(each.hard for each in rows) < len(rows)


def test_missing_and_redundant_ids_are_errors(tmp_path, capsys):
    predictions = right("quality")
    gone = next(iter(predictions))
    del predictions[gone]
    assert run(tmp_path, "quality", {**predictions, "quality-x": "a", "quality-y": "b"}) == 2
    said = capsys.readouterr().err
    assert f"1 of {len(predictions) + 1} ids have no prediction: {gone}" in said
    assert "2 predictions are for ids that are not asked: quality-x, quality-y" in said
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.json"]


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
    assert run(tmp_path, "quality", content) == 2
    assert wrong in capsys.readouterr().err


def test_everything_wrong_is_told_at_once(tmp_path, capsys):
    code = score.main([str(tmp_path / "none.json"), "--dataset", "qualty", "--data_dir", str(DATA)])
    said = capsys.readouterr().err
    assert code == 2
    assert "No such file" in said and "did you mean 'quality'?" in said
