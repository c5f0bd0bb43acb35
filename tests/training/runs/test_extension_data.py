"""The sequences of an extension run: what the recipe's data options make of its documents."""

import json

import datasets
import pytest
from transformers import PreTrainedTokenizerFast

from tape_ds.data.bad_rows import BadRows
from tape_ds.errors import UserError
from tape_ds.training.runs.extension_data import training_sequences
from tests.config.loads import extension as load

SIZES = [3, 10, 4, 25, 7]


@pytest.fixture
def tokenizer():
    """Words as ids: ``w5`` is 5; ``</s>`` is 1."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"<unk>": 0, "</s>": 1} | {f"w{n}": n for n in range(2, 100)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")


@pytest.fixture
def recipe(tmp_path):
    """A recipe of packed sequences of 8 over documents of 3, 10, 4, 25 and 7 tokens; document n has w(10 n + 10)."""
    datasets.disable_progress_bars()
    for n, size in enumerate(SIZES):
        (tmp_path / f"{n}.txt").write_text(" ".join([f"w{10 * n + 10}"] * size))

    def make(**changes):
        fields = {
            "train_data": f"text:{tmp_path}/*.txt",
            "eval_data": "",
            "data_cache": tmp_path / "cache",
            "window": 8,
            "pose_chunks": 1,
            "max_steps": 4,
        }
        return load(
            [
                part
                for name, value in (fields | changes).items()
                for part in (f"--{name}", str(value))
            ]
        )

    return make


def test_documents_end_where_they_are_asked_to(recipe, tokenizer):
    sequences = training_sequences(
        recipe(append_eos="true", attend_across="true"), tokenizer, BadRows()
    )
    found = [list(sequence) for sequence in sequences.stored.with_format(None)["input_ids"]]
    assert found[:2] == [[10, 10, 10, 1, 20, 20, 20, 20], [20, 20, 20, 20, 20, 20, 1, 30]]
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="append_eos"):
        training_sequences(recipe(append_eos="true"), tokenizer, BadRows())
    item = sequences[0]
    assert (item["document_ids"] == 0).all() and (item["labels"][1:] == item["input_ids"][1:]).all()


def test_pose_keeps_the_weights(recipe, tokenizer, tmp_path):
    """Documents below the window give short sequences, each all of its tokens."""
    data = json.dumps([{"source": f"text:{tmp_path}/{n}.txt", "weight": 1} for n in (0, 3)])
    asked = recipe(train_data=data, pose_chunks=2, min_document_tokens=1, max_steps=2500)
    sequences = training_sequences(asked, tokenizer, BadRows())
    assert {len(sequences[index]["input_ids"]) for index in range(50)} == {3, 8}
    short, long = sequences.tokens(20_000).values()
    assert short / (short + long) == pytest.approx(0.5, abs=0.01)
    assert (
        sequences.parts[0].sequences.pose is not None
        and "through its 1 documents" in sequences.origin
    )
