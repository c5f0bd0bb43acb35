"""The table of data sets is the paper's."""

import pytest

from tape_ds.data.scrolls import examples
from tape_ds.errors import UserError


def test_table():
    """Order and metrics of the TAPE paper's Table 1; 200 tokens to answer, 1,000 to summarise."""
    found = {each.name: (each.metric, each.answer_tokens) for each in examples.DATASETS.values()}
    assert found == {
        "qasper": ("f1", 200),
        "contract_nli": ("exact_match", 200),
        "narrative_qa": ("f1", 200),
        "quality": ("exact_match", 200),
        "qmsum": ("rouge", 1000),
        "summ_screen_fd": ("rouge", 1000),
        "gov_report": ("rouge", 1000),
    }
    assert all(name == each.name for name, each in examples.DATASETS.items())


def test_what_is_made_here_is_none_of_them():
    assert examples.find("stdlib") is examples.MADE and "stdlib" not in examples.DATASETS


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'quality'") as caught:
        examples.find("qualty", "--dataset")
    assert caught.value.problems[0].field == "--dataset"
