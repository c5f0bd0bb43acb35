"""The tokenizer of each task: a text is encoded word by word, there and back, also from a saved folder."""

import pytest
from transformers import AutoTokenizer

from tape_ds.data.generated import TASKS
from tape_ds.data.generated.task import tokenizer_of


@pytest.mark.parametrize("name", TASKS)
def test_a_word_is_a_token_there_and_back(name, tmp_path):
    task = TASKS[name]
    tokenizer_of(task).save_pretrained(tmp_path)
    for tokenizer in (tokenizer_of(task), AutoTokenizer.from_pretrained(tmp_path)):
        special = (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
        assert special == (0, 1, 2, 3)
        text = ("" if task.by_character else " ").join(task.vocabulary[4:])
        ids = tokenizer(text).input_ids
        assert ids == list(range(4, len(tokenizer))), "nothing is added, nothing joined"
        assert tokenizer.decode([*ids, 3, 0], skip_special_tokens=True) == text
