"""The left context of targets in a dry run: a sample of the recipe's data, packed as a run packs it."""

from pathlib import Path

import pytest
import yaml

from tape_ds.config.extension import ExtensionRecipe
from tape_ds.config.loading import load
from tape_ds.config.pretraining import PretrainingRecipe
from tape_ds.training import context_preview, dry_run


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Of texts of 5 and 40 words; a word is a token or a few."""
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("one two three four five")
    Path("long.txt").write_text("word " * 40)

    def made(**fields):
        content = {
            "base": "demo",
            "window": 64,
            "pose_chunks": 1,
            "min_document_tokens": 1,
            "warmup_steps": 0,
        }
        Path("mine.yaml").write_text(
            yaml.safe_dump(content | {"train_data": ["text:*.txt"]} | fields)
        )
        return load(["--recipe", "mine.yaml", "--dry_run"], kind=ExtensionRecipe)

    return made


def test_a_dry_run_shows_the_context_that_targets_have(recipe):
    """A document of 5 tokens has contexts of 1 to 4, one of about 40 has half of its targets from 20 on: a tail from 16
    on is reached by the long text alone."""
    said = context_preview.lines(recipe(target_weights="exact", packing="whole"))
    assert said["target weights"].startswith("exact: +1 in the mean from 16 tokens")
    assert "in the first 32 windows of each source" in said["left context"]
    assert "16 to 31 " in said["left context"] and "below 16 x1, 16 to 31 x" in said["left context"]
    plan = dry_run.describe(recipe(target_weights="exact", packing="whole"))
    assert "left context" in plan and "left context" not in dry_run.describe(recipe())


def test_a_tail_that_no_document_reaches_is_said_before_a_run(recipe):
    said = context_preview.lines(recipe(target_weights="exact", exact_tail=60, packing="whole"))
    assert "THE RUN WOULD BE REFUSED" in said["left context"]


def test_shares_decide_how_much_a_source_counts(recipe):
    """Nearly all of the weight is on the short text."""
    sources = [
        {"source": f"text:{name}.txt", "weight": weight}
        for name, weight in (("short", 99), ("long", 1))
    ]
    fields = {
        "target_weights": "longce",
        "longce_short": 16,
        "longce_stride": 8,
        "packing": "whole",
    }
    said = context_preview.lines(recipe(train_data=sources, max_steps=2, **fields))["left context"]
    assert "0 to 0" not in said and "16 to 31" in said
    share = float(said.partition("16 to 31 ")[2].partition("%")[0])
    assert 0 < share < 1


def test_it_says_where_it_does_not_know():
    words = ["--recipe", "tiny", "--target_weights", "exact", "--dry_run"]
    said = context_preview.lines(load(words, kind=PretrainingRecipe))
    assert (
        said["left context"]
        == "shown when the run has read its data (its tokenizer is trained first)"
    )


@pytest.mark.parametrize("chunks", [1, 2])
def test_generated_documents_count_by_their_answers(recipe, chunks):
    """They have no text to be read first, and their targets come late: half of the tokens, few of the targets."""
    made = "generated:retrieval#questions=1&rivals=1&text=text:long.txt"
    sources = [{"source": made, "weight": 1}, {"source": "text:long.txt", "weight": 1}]
    fields = {
        "target_weights": "exact",
        "exact_tail": 300,
        "window": 512,
        "pose_chunks": chunks,
        "max_steps": 2,
    }
    fields |= {"packing": "whole"} if chunks == 1 else {}
    said = context_preview.lines(recipe(train_data=sources, **fields))["left context"]
    share = float(said.partition("from 300 ")[2].partition("%")[0])
    assert 0 < share < 20 and "below 300 x1, from 300 x" in said
