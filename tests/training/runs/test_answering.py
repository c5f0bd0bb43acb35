"""Loss on held-out answers around training: before and after are of the same questions, or one of them is missing."""

import pytest

from tape_ds.scoring.answers import Prompt
from tape_ds.training.runs.finetuning import answer_scores, read_scores
from tests.models.helpers import tokens
from tests.training.test_trainer import build


@pytest.mark.parametrize("targets, kept", [(5, ["before", "after"]), (7, ["after"])])
def test_a_resumed_run_keeps_the_score_of_the_same_questions(tmp_path, targets, kept, capsys):
    """A run resumed with another ``eval_examples`` compared the new questions' loss with that of the old ones."""
    file = tmp_path / "answers.json"
    first = build(tmp_path, max_steps=3)
    first.add_callback(answer_scores([Prompt(tokens(1, 20), 5)], file))
    first.train()
    before = read_scores(file)
    assert list(before) == ["before", "after"] and before["before"].nll != before["after"].nll
    rest = build(tmp_path, max_steps=4)
    rest.add_callback(answer_scores([Prompt(tokens(1, 20), targets)], file))
    rest.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    found = read_scores(file)
    assert list(found) == kept and found["after"].targets == targets
    assert found.get("before", before["before"]) == before["before"]
    assert capsys.readouterr().out.count("scoring 1 answers after training") == 2
