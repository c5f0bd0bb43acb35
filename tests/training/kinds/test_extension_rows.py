"""The rows of an extension run: what the recipe's data options make of its documents."""

import datasets
import pytest
from transformers import PreTrainedTokenizerFast

from tape_ds.errors import UserError
from tape_ds.recipe.extension import load
from tape_ds.training.kinds.extension import training_rows

END = 1
SIZES = [3, 10, 4, 25, 7]


@pytest.fixture
def tokenizer():
    """Words as ids: ``w5`` is 5; ``</s>`` is 1."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"<unk>": 0, "</s>": END} | {f"w{n}": n for n in range(2, 100)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")


@pytest.fixture
def recipe(tmp_path):
    """A recipe of packed rows of 8 over documents of 3, 10, 4, 25 and 7 tokens; document n says w(10 n + 10)."""
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
        return load([part for name, value in (fields | changes).items() for part in (f"--{name}", str(value))])

    return make


def stored(rows):
    """Ids of the rows as they lie in the cache."""
    return [list(row) for row in rows.rows.with_format(None)["input_ids"]]


def test_cut_is_the_default_and_says_what_it_read(recipe, tokenizer):
    rows = training_rows(recipe(), tokenizer)
    assert len(stored(rows)) == sum(SIZES) // 8 == 6
    assert rows.origin == "5 of 5 documents, 49 of 49 tokens; 48 in 6 rows"
    assert rows.pose is None and not rows.attend_across


def test_single_drops_what_fills_no_row(recipe, tokenizer):
    rows = training_rows(recipe(packing="single"), tokenizer)
    assert stored(rows) == [[20] * 8, [40] * 8, [40] * 8, [40] * 8]
    assert rows.origin == "2 of 5 documents, 35 of 49 tokens, none below 8; 32 in 4 rows"


def test_whole_pads_instead_of_cutting(recipe, tokenizer):
    rows = training_rows(recipe(packing="whole"), tokenizer)
    assert stored(rows) == [
        [20] * 8,
        [40] * 8,
        [40] * 8,
        [40] * 8,
        [10] * 3 + [20] * 2 + [40],
        [30] * 4,
        [50] * 7,
    ]
    assert rows.origin.endswith("; 49 in 7 rows")
    assert {len(rows[index]["input_ids"]) for index in range(7)} == {4, 6, 7, 8}


def test_documents_end_where_they_are_asked_to(recipe, tokenizer):
    rows = training_rows(recipe(append_eos="true", attend_across="true"), tokenizer)
    assert stored(rows)[:2] == [[10, 10, 10, END, 20, 20, 20, 20], [20, 20, 20, 20, 20, 20, END, 30]]
    item = rows[0]
    assert (item["document_ids"] == 0).all() and (item["labels"][1:] == item["input_ids"][1:]).all()


def test_a_tokenizer_without_an_end(recipe, tokenizer):
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="no EOS") as caught:
        training_rows(recipe(append_eos="true"), tokenizer)
    assert caught.value.problems[0].field == "append_eos"


def test_pose_draws_from_the_first_long_documents(recipe, tokenizer):
    rows = training_rows(recipe(pose_chunks=2, pose_content="contiguous", max_documents=1), tokenizer)
    assert rows.origin == "1 of 2 documents, 10 of 13 tokens, none below 8"
    assert rows.pose.pose.content == "contiguous"
    assert all(rows[index]["input_ids"].tolist() == [20] * 8 for index in range(4))
    assert len({tuple(rows[index]["position_ids"].tolist()) for index in range(4)}) == 4
