"""Recipes of fine-tuning, on SCROLLS and on conversations: defaults that follow, and files that are looked for."""

import json
from functools import partial
from pathlib import Path

import pytest

from tape_ds.config import finetuning, kinds
from tests.config import helpers, loads
from tests.config.loads import scrolls as load

ASSETS = Path(__file__).resolve().parents[1] / "assets" / "scrolls"
GOOD = {
    "model": "smollm2",
    "dataset": "qasper",
    "data_dir": str(ASSETS),
    "max_steps": 4,
    "global_batch_size": 8,
}
GOOD_CHAT = {"model": "smollm2", "train_data": ["stdlib"], "max_steps": 4, "global_batch_size": 8}
write = partial(helpers.write, good=GOOD)


def test_archives_and_single_splits_are_looked_for():
    """Held-out answers need the second split."""
    Path("qasper").mkdir()
    Path("qasper/train.jsonl").write_text(json.dumps({"id": "1", "input": "x", "output": "y"}))
    found, _ = helpers.problems_of("--recipe", write(data_dir="."), load=load)
    assert "no qasper/validation.jsonl" in found["data_dir"].wrong
    assert load(["--recipe", write(data_dir=".", eval_examples=0)]).data.eval_examples == 0
    assert load(["--recipe", write(dataset="contract_nli")]).data.dataset == "contract_nli"


@pytest.mark.parametrize("name, tokens", [("qasper", 200), ("gov_report", 1000)])
def test_an_answer_is_as_long_as_its_kind(name, tokens):
    recipe = load(["--recipe", write(dataset=name)])
    assert recipe.data.answer_tokens == tokens and recipe.window == recipe.data.max_tokens == 8192
    assert load(["--recipe", write(dataset=name), "--answer_tokens", "50"]).data.answer_tokens == 50


@pytest.mark.parametrize("place", [None, "chat_template.jinja", "tokenizer_config.json"])
def test_a_folder_without_a_chat_template_is_refused_before_anything_loads(place):
    folder = Path("model")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer.json").write_text("{}")
    if place is not None:
        (folder / place).write_text(json.dumps({"chat_template": "{{ messages }}"}))
    Path("mine.jinja").write_text("{{ messages }}")
    for given, missing in ((None, place is None), ("mine.jinja", False)):
        # the folder has no weights, either
        file = helpers.write(good=GOOD_CHAT, model="model", chat_template=given)
        found, _ = helpers.problems_of("--recipe", file, load=loads.chat)
        assert ("chat_template" in found) == missing


def test_one_launcher_takes_both_kinds():
    Path("own.yaml").write_text("launcher: finetune_scrolls\n")
    for name in ("scrolls/qasper", "scrolls_tiny", "own.yaml"):
        assert kinds.taken("finetune", name) is finetuning.ScrollsRecipe
    Path("silent.yaml").write_text("seed: 1\n")
    for name in ("chat_tiny", "silent.yaml", "there_is_none", "tiny"):
        assert kinds.taken("finetune", name) is finetuning.ChatRecipe
    assert kinds.taken("finetune_scrolls", "chat_tiny") is finetuning.ScrollsRecipe


def test_generated_conversations_need_a_number_and_a_length():
    good = "generated:retrieval#documents=9&tokens=1k-4k&text=stdlib"
    write_chat = partial(helpers.write, good=GOOD_CHAT)
    assert loads.chat(["--recipe", write_chat(train_data=["stdlib", good])]).data.train_data == [
        "stdlib",
        good,
    ]
    found, _ = helpers.problems_of(
        "--recipe", write_chat(train_data=[good], max_tokens=2048), load=loads.chat
    )
    assert found["train_data"].remedy == "write tokens=1024-2048, or raise max_tokens"
    found, _ = helpers.problems_of(
        "--recipe", write_chat(train_data=["generated:retrieval"]), load=loads.chat
    )
    assert found["train_data"].remedy == "write tokens=8192, or a range"
