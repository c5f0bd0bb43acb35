"""Questions made of Python's own sources can be answered from what stands beside them."""

import re

import pytest

from tape_ds.data.scrolls import examples
from tape_ds.data.sources import HELD_OUT


@pytest.fixture(scope="module")
def made():
    return {split: examples.read("stdlib", split) for split in ("train", "validation", "test")}


def test_the_answer_is_in_the_excerpt(made):
    for each in made["train"] + made["validation"]:
        question, _, excerpt = each.input.partition("\n\n")
        name = re.fullmatch(r"Which arguments does the function (\w+) take\?", question)[1]
        definition = excerpt[re.search(rf"def {name} *\(", excerpt).start() :]
        assert all(argument in definition for argument in each.outputs[0].split(", ")), each.id


def test_splits_share_no_file_or_no_question(made):
    found = {split: [each.id for each in questions] for split, questions in made.items()}
    assert [len(ids) for ids in found.values()] == [2000, 100, 100]
    assert {name.split(":")[0] for name in found["train"]}.isdisjoint(HELD_OUT)
    assert set(found["validation"]).isdisjoint(found["test"])
    assert all(name.split(":")[0] in HELD_OUT for name in found["validation"])


def test_they_are_the_same_each_time(made):
    assert examples.read("stdlib", "validation") == made["validation"]
    assert examples.fingerprint("stdlib", "train") != examples.fingerprint("stdlib", "validation")
