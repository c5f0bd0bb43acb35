"""RULER's generators: lm-eval's own documents and prompts, whatever was drawn before, and an end where it has none."""

import json
import random
import sys
from pathlib import Path

import lm_eval
import numpy as np
import pytest
from numpy.random import PCG64, Generator

from tape_ds.scoring import ruler_generators, ruler_questions
from tape_ds.scoring.ruler_generators import QA_FILES, Generators, NoQuestionError, SortedPairs
from tests.scoring.ruler_tokenizers import tokenizer

ESSAYS = [
    f"Essay {number}: what Dr. Who wrote at 5 p.m. is long. It has sentences! " * 40
    for number in range(40)
]
SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": f"City {number} lies on river {number}.",
                    "qas": [
                        {
                            "question": f"On which river is city {number}?",
                            "is_impossible": False,
                            "answers": [{"text": f"river {number}"}],
                        }
                    ],
                }
            ]
        }
        for number in range(40)
    ]
}


def generators(**files):
    return Generators(lambda: ESSAYS, files)


def task_of_lm_eval(task, folder, length, monkeypatch):
    """lm-eval's own task, built as its command does: with its seeds, and the tokenizer of a folder."""
    import datasets
    import nltk
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import _import_fun_from_str, load_yaml

    monkeypatch.setattr(nltk, "sent_tokenize", ruler_generators.sentence_splitter()[1])
    monkeypatch.setattr(nltk.data, "find", lambda name: name)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: {"text": ESSAYS})
    # it remembers what was drawn before
    monkeypatch.delitem(sys.modules, "lm_eval.tasks.ruler.cwe_utils", raising=False)
    ruler = Path(lm_eval.__file__).parent / "tasks" / "ruler"
    (file,) = [file for file in ruler.glob("*.yaml") if f"task: {task}\n" in _named_as_asked(file)]
    config = load_yaml(file, resolve_func=False)
    # the functions of this file alone: included ones would list six million words
    for named in (config, *config["metric_list"]):
        for name in named.keys() & {"custom_dataset", "process_results", "aggregation"}:
            named[name] = _import_fun_from_str(named[name])
    config["metadata"] = {
        **config["metadata"],
        "tokenizer": str(folder),
        "max_seq_lengths": [length],
    }
    random.seed(0)
    np.random.seed(1234)
    return ConfigurableTask(config=config)


def _named_as_asked(file):
    return file.read_text().replace("task: ruler_", "task: ")


GENERATED = tuple(task for task in ruler_generators.tasks() if task not in QA_FILES)


def same_prompts(task, length, tmp_path, monkeypatch, room=20):
    """lm-eval measures with a tokenizer that has the room's tokens after each text; its 500 begin with ours."""
    tokenizer(room=room).save_pretrained(tmp_path)
    theirs = task_of_lm_eval(task, tmp_path, length, monkeypatch)
    ours = generators().draw(task, tokenizer(), length, 7, room=room)
    documents = list(theirs.test_docs())
    assert len(documents) == 500 and len(ours) == 7
    assert ours == documents[:7]
    theirs.build_all_requests(limit=7)
    asked = [request.args for request in theirs.instances]
    assert ruler_questions.prompts(task, ours, tokenizer(), chat=False) == [
        prompt for prompt, _ in asked
    ]
    assert all(
        options["max_gen_toks"] == ruler_questions.reply_tokens(task) for _, options in asked
    )
    assert all(
        prompt.endswith(document["gen_prefix"])
        for (prompt, _), document in zip(asked, ours, strict=True)
    )


@pytest.mark.parametrize("task", ["vt", "cwe"])
def test_prompts_are_lm_evals(task, tmp_path, monkeypatch):
    same_prompts(task, 1024, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1024, 4096])
@pytest.mark.parametrize("task", GENERATED)
def test_prompts_of_every_task_are_lm_evals(task, length, tmp_path, monkeypatch):
    same_prompts(task, length, tmp_path, monkeypatch)


@pytest.mark.slow
def test_words_are_lm_evals(monkeypatch):
    """lm-eval lists all pairs of an adjective and a noun, six million."""
    import nltk

    monkeypatch.setattr(nltk.data, "find", lambda name: name)
    from lm_eval.tasks.ruler import prepare_niah

    words = generators()._prepare_niah.WORDS
    assert isinstance(words, SortedPairs) and len(words) == len(prepare_niah.WORDS)
    assert all(mine == theirs for mine, theirs in zip(words, prepare_niah.WORDS, strict=True))


def test_sorted_pairs_are_sorted():
    """Words with hyphens and words that begin others are where an order of pairs is not one of first words."""
    generator = Generator(PCG64(1))
    for _ in range(50):
        firsts, seconds = (
            ["".join(generator.choice(list("ab-!"), generator.integers(1, 5))) for _ in range(12)]
            for _ in range(2)
        )
        expected = sorted({f"{first}-{second}" for first in firsts for second in seconds})
        pairs = SortedPairs(firsts, seconds)
        assert [pairs[index] for index in range(len(pairs))] == expected
        with pytest.raises(IndexError):
            pairs[len(expected)]


def test_documents_do_not_depend_on_what_was_drawn_before():
    """lm-eval keeps a generator of random numbers for frequent words, and takes the others from the whole process."""
    random.seed(5)
    state = random.getstate()
    made = generators()
    first = made.draw("cwe", tokenizer(), 1024, 3, room=0)
    made.draw("cwe", tokenizer(), 2048, 2, room=0)
    assert made.draw("cwe", tokenizer(), 1024, 3, room=0) == first
    assert made.draw("cwe", tokenizer(), 1024, 5, room=0)[:3] == first
    assert made.draw("cwe", tokenizer(), 1024, 3, room=0, seed=8) != first
    assert random.getstate() == state


@pytest.mark.parametrize(
    ("task", "split", "room"),
    [("vt", "letters", 0), ("cwe", "words", 1000), ("fwe", "words", 1020)],
)
def test_a_length_without_a_question_ends(task, split, room):
    """lm-eval tries again without end: an example of 500 letters is too short for variable tracking, for one."""
    with pytest.raises(NoQuestionError):
        generators().draw(task, tokenizer(split), 1024, 2, room=room)


def test_needles_without_room():
    with pytest.raises(NoQuestionError, match="It leaves no room"):
        generators().draw("niah_single_2", tokenizer(), 1024, 2, room=1000)


def test_essays_are_the_haystack():
    (document,) = generators().draw("niah_single_2", tokenizer(), 2048, 1, room=0)
    assert "what Dr. Who wrote" in document["input"] and document["outputs"][0] in document["input"]
    assert ruler_generators.hides_in_essays("niah_multivalue")
    assert not any(
        map(
            ruler_generators.hides_in_essays, ("niah_single_1", "niah_multikey_3", "vt", "qa_squad")
        )
    )


def test_questions_about_documents_come_from_the_file(tmp_path):
    file = tmp_path / "dev.json"
    file.write_text(json.dumps(SQUAD))
    made = generators(squad=file)
    assert made.check_qa() == []
    documents = made.draw("qa_squad", tokenizer(), 1024, 2, room=0)
    assert [document["outputs"] for document in documents] == [["river 0"], ["river 1"]]
    assert "City 1 lies on river 1." in documents[1]["input"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('{"data": [{"title": "a"}]}', "another form"),
        ("[1, 2", "as JSON"),
        ('{"data": []}', "no question"),
    ],
)
def test_a_file_of_another_form_is_named(tmp_path, text, wrong):
    file = tmp_path / "dev.json"
    file.write_text(text)
    (problem,) = generators(squad=file).check_qa()
    assert (problem.field, problem.value) == ("--squad", str(file)) and wrong in problem.wrong
