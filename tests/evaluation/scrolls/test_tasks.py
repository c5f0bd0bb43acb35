"""The tasks of lm-eval: an oracle is right through its whole pipeline, and prompts are cut as in training."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer

from tape_ds.data.scrolls import examples, prompts, sequences
from tape_ds.data.scrolls.examples import DATASETS
from tape_ds.errors import UserError
from tape_ds.scoring.language_model import HarnessModel
from tests.evaluation import test_models
from tests.evaluation.local_tasks import Oracle
from tests.evaluation.scrolls.conftest import DATA, byte_tokenizer, known_answers

TASKS = Path(__file__).resolve().parents[3] / "tape_ds" / "scoring" / "tasks" / "scrolls"


@pytest.fixture(scope="module")
def manager():
    return lambda **metadata: TaskManager(
        include_path=str(TASKS), include_defaults=False, metadata={"data_dir": str(DATA)} | metadata
    )


def evaluate(model, manager, *tasks):
    found = simple_evaluate(
        model=model, tasks=list(tasks), task_manager=manager, log_samples=False
    )["results"]
    return {
        name: {key: value for key, value in entry.items() if "," in key}
        for name, entry in found.items()
    }


def oracle():
    known = known_answers(*DATASETS)
    return Oracle(lambda prompt: next(answer for text, answer in known.items() if text in prompt))


@pytest.fixture(scope="module")
def evaluated(manager):
    """An oracle that answered every task, and its results."""
    model = oracle()
    return model, evaluate(model, manager(), "tape_scrolls", "tape_scrolls_quality_hard")


def test_an_oracle_is_right_in_every_task(evaluated):
    model, found = evaluated
    for name, dataset in {**DATASETS, "quality_hard": DATASETS["quality"]}.items():
        assert found[f"tape_scrolls_{name}"][f"{dataset.metric},none"] == pytest.approx(1.0), name
    hard = sum(each.hard for each in examples.read("quality", "validation", DATA))
    assert hard > 0
    assert len(model.read) == hard + sum(
        len(examples.read(name, "validation", DATA)) for name in DATASETS
    )


@pytest.mark.parametrize("name", DATASETS)
def test_prompts_are_whole_and_answers_limited(name, evaluated):
    asked, dataset = dict(evaluated[0].read), DATASETS[name]
    for each in examples.read(name, "validation", DATA):
        summary = dataset.kind == "summary"
        settings = asked[
            f"{prompts.BEFORE}{each.input}{prompts.REQUEST}" if summary else each.input
        ]
        assert (settings["max_gen_toks"], settings["do_sample"]) == (dataset.answer_tokens, False)
        assert not settings["until"]


def documents(manager, name, **metadata):
    """What a task asks, with what was cut."""
    task = manager(**metadata).load([f"tape_scrolls_{name}"])["tasks"][f"tape_scrolls_{name}"]
    return [SimpleNamespace(**each) for each in task.eval_docs]


@pytest.mark.parametrize("room", [7191, 120], ids=["whole", "cut"])
@pytest.mark.parametrize("name", DATASETS)
def test_training_and_lm_eval_read_the_same_ids(name, room, manager, llama, tmp_path):
    dataset, tokenizer = DATASETS[name], AutoTokenizer.from_pretrained(llama)
    max_tokens = room + prompts.reserved(dataset.answer_tokens)
    form = sequences.SequenceForm(max_tokens, dataset.answer_tokens)
    trained = sequences.tokenize(name, "validation", DATA, tokenizer, form, tmp_path, questions=3)
    asked = [row["input_ids"][: -row["targets"]] for row in trained]
    cut = [
        row.cut_tokens > 0
        for row in documents(manager, name, max_tokens=max_tokens, tokenizer=str(llama))
    ]
    assert set(cut) == {room == 120}
    model, plain = Oracle(lambda prompt: ""), HFLM(pretrained=str(llama), device="cpu")
    evaluate(model, manager(max_tokens=max_tokens, tokenizer=str(llama)), f"tape_scrolls_{name}")
    ours = HarnessModel(test_models.found(llama))
    for prompt, each in zip([prompt for prompt, _ in model.read], asked, strict=True):
        assert plain.tok_encode(prompt) == ours.tok_encode(prompt) == each


@pytest.mark.parametrize("room", [100, 101])
def test_a_summary_that_is_cut_within_a_character_still_fits(room, manager, llama, tmp_path):
    """Half of a character has more bytes when it is read again."""
    (tmp_path / "gov_report").mkdir()
    row = {"id": "1", "input": "\N{LATIN SMALL LETTER E WITH ACUTE}" * 100, "output": "a"}
    (tmp_path / "gov_report" / "validation.jsonl").write_text(json.dumps(row))
    changes = {
        "max_tokens": room + prompts.reserved(8),
        "answer_tokens": 8,
        "tokenizer": str(llama),
    }
    (found,) = documents(manager, "gov_report", data_dir=str(tmp_path), **changes)
    tokens = len(AutoTokenizer.from_pretrained(llama)(found.prompt)["input_ids"])
    assert room - 2 <= tokens <= room and found.prompt.endswith(prompts.REQUEST)


@pytest.mark.parametrize(("words", "kept"), [(14_999, 14_999), (15_001, 15_000)])
def test_the_published_generation_reads_15000_words(words, kept, manager, llama, tmp_path):
    (tmp_path / "qasper").mkdir()
    row = {"id": "1", "input": " ".join("w" * words), "output": "a"}
    (tmp_path / "qasper" / "validation.jsonl").write_text(json.dumps(row))
    changes = {
        "max_tokens": 100_000,
        "tokenizer": str(llama),
        "data_dir": str(tmp_path),
        "reference_format": True,
    }
    (found,) = documents(manager, "qasper", **changes)
    assert found.prompt == " ".join("w" * kept) and found.cut_tokens == words - kept


def test_the_reference_format_repeats_the_end_of_a_short_summary_s_prompt(manager, llama):
    changes = {"max_tokens": 8192, "tokenizer": str(llama), "reference_format": True}
    for whole, found in zip(
        documents(manager, "gov_report"), documents(manager, "gov_report", **changes), strict=True
    ):
        assert found.prompt == whole.prompt + whole.prompt[-7:] and found.cut_tokens == 0


def test_the_reference_format_is_refused_where_bos_is_eos(manager, tmp_path):
    """The answer of a model that was trained so would end before its first word."""
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = "<s>"
    tokenizer.save_pretrained(tmp_path)
    changes = {"max_tokens": 8192, "tokenizer": str(tmp_path), "reference_format": True}
    with pytest.raises(UserError, match="reference_format = True"):
        documents(manager, "qasper", **changes)


def test_rows_without_answers_are_refused(manager, tmp_path):
    rows = [
        {"id": str(number), "input": "Which?", "output": output}
        for number, output in enumerate(["a", None])
    ]
    (tmp_path / "qasper").mkdir()
    (tmp_path / "qasper" / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UserError, match="1 of 2 questions of qasper have no reference answer"):
        evaluate(oracle(), manager(split="test", data_dir=str(tmp_path)), "tape_scrolls_qasper")
