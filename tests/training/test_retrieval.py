"""Questions that a run asks: a row for each cell, kept by a resumed run as far as they are the same."""

from dataclasses import replace

import pytest

from tape_ds.scoring.passkey import PASSKEYS
from tape_ds.scoring.ruler_questions import RULER, RulerQuestion
from tape_ds.training.retrieval import Retrieval
from tests.models.helpers import tiny_model
from tests.scoring.test_passkey import Numbers, prompt


class Decoding(Numbers):
    def decode(self, ids, skip_special_tokens=False):
        return super().decode(ids)


def ruler_question(task, length, number):
    ids = prompt(length=length - 20, seed=number).ids
    document = {"outputs": [f"answer {number}"], "max_length": length}
    return RulerQuestion(task, length, number, ids, 20, document, number)


PASSKEY_QUESTIONS = [prompt(length=length, seed=seed) for length in (60, 80) for seed in (1, 2)]
RULER_QUESTIONS = [ruler_question(task, 60, number) for task in ("vt", "cwe") for number in (0, 1)]


@pytest.mark.parametrize(
    ("kind", "questions", "fields"),
    [
        (
            PASSKEYS,
            PASSKEY_QUESTIONS,
            ["variant", "length", "trials", "correct", "accuracy", "replies"],
        ),
        (
            RULER,
            RULER_QUESTIONS,
            ["variant", "task", "length", "samples", "score", "low", "high", "replies"],
        ),
    ],
)
def test_rows_of_cells_and_what_a_resumed_run_keeps(kind, questions, fields, tmp_path):
    model = tiny_model()
    asking = Retrieval(kind, questions, tmp_path / "rows.json", print).around(
        Decoding(), {}, {"trained": None}
    )
    found = asking.measure(model, {"trained": None})
    assert [list(row) for row in found["trained"]] == [fields, fields]
    assert [len(row["replies"]) for row in found["trained"]] == [2, 2]
    asking.write(asking.file, found)
    assert asking.read(asking.file) == found
    stored = asking.questions(asking.read(asking.file)["trained"])
    assert stored == asking.questions(found["trained"])

    others = questions[:-1]
    if kind is PASSKEYS:
        others.append(replace(questions[-1], key=6))
    else:
        others.append(replace(questions[-1], document={"outputs": ["another"], "max_length": 60}))
    other = Retrieval(kind, others, asking.file, print).around(Decoding(), {}, {"trained": None})
    assert other.questions(other.measure(model, {"trained": None})["trained"]) != stored
