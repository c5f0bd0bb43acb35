"""lm-eval's passkey tasks: from its own command's settings to its own table, with models whose answers we know."""

import re
from pathlib import Path

import pytest

from tests.evaluation import local_tasks
from tests.evaluation.scrolls.conftest import byte_tokenizer

TASKS = Path(__file__).resolve().parents[2] / "tape_ds" / "scoring" / "tasks"
ASKED = {"lengths": [500, 700], "depths": [0, 0.5], "trials": 2}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A folder with a tokenizer whose tokens are bytes."""
    folder = tmp_path_factory.mktemp("bytes")
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def evaluate(tokenizer, monkeypatch):
    """Runs tasks on a model that writes what ``reply`` gives for a prompt; returns results and prompts."""
    from lm_eval import evaluator, simple_evaluate
    from lm_eval.tasks import TaskManager

    # asks pip, which takes seconds
    monkeypatch.setattr(evaluator, "add_env_info", lambda results: None)

    def run(reply, tasks=("tape_passkey", "tape_passkey_pose"), **metadata):
        oracle = local_tasks.Oracle(reply)
        metadata = {"tokenizer": tokenizer, **ASKED, **metadata}
        manager = TaskManager(include_path=str(TASKS), include_defaults=False, metadata=metadata)
        found = simple_evaluate(
            model=oracle, tasks=list(tasks), task_manager=manager, bootstrap_iters=0
        )
        return found, oracle.read

    return run


def key_in(text):
    return re.search(r"pass key is (\d+)", text)[1]


def test_an_oracle_finds_all(evaluate):
    found, read = evaluate(lambda prompt: f" {key_in(prompt)}. That is it.")
    assert set(found["results"]) == {"tape_passkey", "tape_passkey_pose"} and len(read) == 16
    for task in found["results"]:
        scores = found["results"][task]
        for rule in ("exact_match", "exact_ids"):
            assert [scores[f"{rule}{length},none"] for length in ("", "_500", "_700")] == [
                1.0,
                1.0,
                1.0,
            ]
        assert found["n-samples"][task]["effective"] == 8
        assert found["higher_is_better"][task]["exact_match_500"] is True


@pytest.mark.parametrize(
    ("reply", "match", "ids"),
    [(" {}0", 0.0, 1.0), (" It is {}", 1.0, 0.0), ("{}", 1.0, 1.0), ("{} 5", 1.0, 1.0)],
)
def test_the_two_rules(evaluate, reply, match, ids):
    """A longer number passes LongLoRA's, other words first pass PoSE's; a space that a decoder drops is ignored."""
    found, _ = evaluate(lambda prompt: reply.format(key_in(prompt)), tasks=["tape_passkey"])
    scores = found["results"]["tape_passkey"]
    assert (scores["exact_match,none"], scores["exact_ids,none"]) == (match, ids)


def test_the_prompts_are_the_commands_and_greedy(evaluate, tokenizer):
    from transformers import AutoTokenizer

    from tape_ds.data.passkey import grid

    _, read = evaluate(key_in, tasks=["tape_passkey_pose"], seed=3)
    loaded = AutoTokenizer.from_pretrained(tokenizer)
    expected = grid(loaded, [500, 700], [0, 0.5], 2, seed=3, form="pose", reply=10)
    assert sorted(prompt for prompt, _ in read) == sorted(
        question.write().text for question in expected
    )
    assert all(len(prompt) + 10 <= 700 for prompt, _ in read)
    assert {
        (kwargs["do_sample"], kwargs["max_gen_toks"], tuple(kwargs["until"])) for _, kwargs in read
    } == {(False, 10, ())}
