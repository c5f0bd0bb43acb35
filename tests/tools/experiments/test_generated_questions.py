"""Questions of generated documents: which answers count as right, and that every model is asked the same."""

import pytest
import torch

from tape_ds import results
from tests.data.conftest import build_tokenizer
from tests.data.retrieval.conftest import TEXT, build, folder, make
from tests.models.helpers import tiny_model
from tools.experiments import generated_questions
from tools.experiments.generated_questions import AskedDocument

__all__ = ["folder", "make"]


@pytest.fixture
def model_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    tokenizer = build_tokenizer()
    model = tiny_model(encoding="rope", vocab_size=len(tokenizer), max_position_embeddings=2048)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_an_answer_is_right_when_all_of_its_tokens_are_foreseen(make, monkeypatch):
    """Wrong tokens elsewhere do not count; the end of the answer's line does."""
    (document,) = make("families=lookup&questions=3&rivals=4", window=900).documents(0)
    places = document.is_answer.nonzero()[0]
    ends = [place for place in places if not document.is_answer[place + 1 : place + 2].any()]
    assert len(ends) == 3
    foreseen_N = torch.from_numpy(document.is_answer[document.asked_at :].copy())
    # nothing but answers is foreseen, and of the second not its end
    foreseen_N[ends[1] - document.asked_at] = False
    nll_N = torch.zeros(len(foreseen_N), dtype=torch.float64)
    nll_N[places[0] - document.asked_at] = 6.0

    def known(model, ids_1T, first):
        assert first == document.asked_at and ids_1T.tolist() == [document.ids.tolist()]
        return nll_N[None], foreseen_N[None]

    monkeypatch.setattr(generated_questions.losses, "target_losses", known)
    rows = generated_questions.answer(tiny_model(), AskedDocument("dense", 900, 7, document))
    assert [row["score"] for row in rows] == [1.0, 0.0, 1.0]
    assert [row["answers"] for row in rows] == [[answer] for answer in document.answers]
    first = build(True)(f" {document.answers[0]}\n", add_special_tokens=False)["input_ids"]
    assert [row["nll"] for row in rows] == pytest.approx([6.0 / len(first), 0.0, 0.0])
    assert {(row["task"], row["length"], row["text"]) for row in rows} == {("dense", 900, 7)}


def test_the_result_has_every_kind_and_length_and_the_same_questions_each_time(
    model_folder, tmp_path
):
    made = []
    for name in ("one", "two"):
        given = [str(model_folder), "--lengths", "1k", "700", "--samples", "3", "--output", name]
        given += [
            "--ask",
            "in text=generated:retrieval#families=lookup&rivals=2&text=text:text.txt",
        ]
        given += ["--ask", "dense=generated:retrieval#families=values&questions=1-2"]
        assert generated_questions.main(given) == 0
        made.append(results.load(tmp_path / name / "retrieval.json").figures)
    cells = {(cell["task"], cell["length"]): cell for cell in made[0]["cells"]}
    assert set(cells) == {(kind, size) for kind in ("in text", "dense") for size in (700, 1024)}
    assert cells["in text", 1024]["mean_tokens"] == 1024 and cells["dense", 700]["texts"] == 3
    assert made[0]["replies"] == made[1]["replies"]
    families = {(row["task"], row["family"]) for row in made[0]["replies"]}
    assert families == {("in text", "lookup"), ("dense", "values")}


@pytest.mark.parametrize(
    ("ask", "wrong"),
    [
        ("generated:retrieval", "not another NAME=SPEC"),
        ("x=text:text.txt", "it asks nothing"),
        ("x=generated:retrieval#rivals=3", "there is no text between them"),
        ("x=generated:retrieval#questions=90", "more than a sequence of 500"),
    ],
)
def test_what_cannot_be_asked_is_refused(ask, wrong, model_folder, tmp_path, capsys):
    given = [str(model_folder), "--lengths", "500", "--ask", ask, "--output", "out"]
    assert generated_questions.main(given) == 2
    assert wrong in capsys.readouterr().err and not (tmp_path / "out").exists()
