"""RULER in the model card: of the run, and of an evaluation of the same weights, whose absence is named."""

import pytest
import yaml

from tape_ds import results
from tape_ds.checkpoint import source_model
from tape_ds.export import card, ruler_scores
from tape_ds.scoring import models
from tests.evaluation import report_examples as examples
from tests.export.conftest import YARN
from tests.models.helpers import tiny_model


@pytest.fixture
def made(run):
    return run("rope", "norms", YARN, trained=("norm",))


def text_of(folder):
    return card.text(source_model.find(str(folder)), tiny_model(encoding="rope"), "x", plain=True)


def evaluate(folder, **model):
    """Store an evaluation of the folder's weights, or of what ``model`` makes of it."""
    own = {**examples.MODEL, "sha256": models.digest_of(str(folder)), **model}
    found = examples.ruler(lambda n: {4096: 5, 8192: 5, 16384: 3}[n], model=own)
    found.figures["haystack"] = "text:/home/jo/essays/*.txt"
    results.save(found, folder / "evaluation" / "ruler.json")


def test_an_evaluation_of_these_weights_is_a_row(made):
    evaluate(made)
    text = text_of(made)
    assert (
        "| mean of the tasks, % | 4k | 8k | 16k | effective length: RULER's rule (85.6 %) | its own rule"
        in text
    )
    row = next(line for line in text.splitlines() if line.startswith("| this model |"))
    assert row == (
        "| this model | 100.0 (100-100) | 100.0 (100-100) | 60.0 (30-90) "
        "| 8k (at least 85.6 %: probability 100 %) | 8k (at least 85.0 %: probability 100 %) |"
    )
    assert (
        "Asked: niah_multikey_2, vt; 5 questions of each at each length, as a text to continue"
        in text
    )
    assert "essays from `text:*.txt`" in text and "/home/jo" not in text
    assert "RULER's tasks by `tape-ds evaluate ruler`" in text.split("## Limits")[1]
    assert yaml.safe_load(text.split("---\n")[1])["library_name"] == "transformers"


def test_the_runs_own_questions_are_a_row_for_each_variant(made):
    path = made / "results" / "run.json"
    stored = results.load(path)
    untouched = examples.ruler_rows("untouched", lambda n: 5 if n == 4096 else 0)
    stored.figures["ruler"] = [*untouched, *examples.ruler_rows("norms, trained", lambda n: 5)]
    stored.figures["ruler_haystack"] = "package:x/*.md"
    results.save(stored, path)
    lines = text_of(made).splitlines()
    (untouched,) = (line for line in lines if line.startswith("| untouched | 100.0"))
    (trained,) = (line for line in lines if line.startswith("| norms, trained | 100.0"))
    assert untouched.endswith(
        "| 4k (at least 85.6 %: probability 100 %) | 4k (at least 85.0 %: probability 100 %) |"
    )
    assert "| 16k (at least 85.6 %: probability 100 %) |" in trained
    assert "essays from `package:x/*.md`" in "\n".join(lines)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"sha256": "0" * 64}, "of other weights"),
        ({"position_updates": "off"}, "of this model with other positions"),
    ],
)
def test_an_evaluation_of_another_model_is_left_out_by_name(made, model, reason):
    evaluate(made, **model)
    text = text_of(made)
    assert (
        f"evaluation/ruler.json is left out: it is {reason}." in text
        and "| this model |" not in text
    )


def test_a_checkpoint_has_its_own_evaluation(made):
    """Of the run's last weights there is one too, in the folder above."""
    evaluate(made)
    (made / "trained").rename(made / "checkpoint-8")
    found, left_out = ruler_scores.evaluation_of(source_model.find(str(made / "checkpoint-8")))
    assert (found, left_out) == (None, "")
