"""A dry run refuses generated documents that have no room in the recipe's sequences, as the run would."""

from pathlib import Path

import pytest

from tape_ds.config.extension import ExtensionRecipe
from tape_ds.config.loading import load
from tape_ds.errors import UserError
from tape_ds.training import dry_run, generated_room
from tests.data.conftest import build_tokenizer


def recipe(*specs, window=512):
    sources = ", ".join(f'{{source: "{spec}", weight: 1}}' for spec in ("text:text.txt", *specs))
    words = ["--recipe", "demo", "--train_data", f"[{sources}]", "--window", str(window)]
    return load([*words, "--pose_chunks", "1", "--dry_run"], kind=ExtensionRecipe)


@pytest.fixture(autouse=True)
def own_tokenizer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("one two three\n" * 100)
    read = []

    def known(reading):
        read.append(reading)
        return build_tokenizer(), ""

    monkeypatch.setattr(generated_room, "local_tokenizer", known)
    return read


def test_documents_without_room_are_refused_before_a_run(own_tokenizer):
    """A dry run showed a plan of documents that the run refused: 'check everything' left them out."""
    dense = "generated:retrieval#families=values&questions=6"
    given = recipe(dense, "generated:retrieval#families=lookup&rivals=200&text=text:text.txt")
    with pytest.raises(UserError) as refused:
        dry_run.describe(given)
    first, second = refused.value.problems
    assert "6 questions, their records and 1 rivals" in first.wrong and dense in str(first)
    assert "1 questions, their records and 200 rivals" in second.wrong
    window = int(second.remedy.rpartition("window: ")[2])
    assert not generated_room.check(recipe(second.value, window=window)) and window > 512


def test_where_there_is_none_no_tokenizer_is_read(own_tokenizer):
    assert not generated_room.check(recipe()) and not own_tokenizer
    assert not generated_room.check(recipe("generated:retrieval#families=lookup&questions=1"))
    assert len(own_tokenizer) == 1
