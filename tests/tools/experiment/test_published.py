"""Published numbers are complete, and belong to the test sets that specs name."""

import pytest

from tools.experiment import published
from tools.experiment.published import Quantity


def test_every_number_of_the_paper_has_a_quantity():
    """A lost or doubled number changes the count."""
    numbers = [
        value for table in published.TABLES for row in table.rows.values() for value in row.values()
    ]
    assert (len(published.TABLES), sum(value is not None for value in numbers)) == (14, 289)


def test_numbers_of_the_paper():
    tables = {table.name: table.rows for table in published.TABLES}
    assert tables["Table 1"]["TAPE"][Quantity("quality", "exact_match")] == 11.60
    assert tables["Table 2"]["LongLoRA"][Quantity("proof_pile", "perplexity", 8192)] == 2.956
    assert tables["Table 9"]["LoRA"][Quantity("mmlu_other", "accuracy")] == 45.83
    assert tables["Figure 3"]["Theta Scaling"][Quantity("passkey", "accuracy", 8000)] == 95


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("jsonl:hf://datasets/someone/PG-19/test/*.jsonl#text", "pg19"),
        ("bin:/data/proof-pile/test_sampled_data.bin", "proof_pile"),
        ("bin:/data/github.bin", "github"),
        ("text:/home/me/github/project/a/*.py", None),
        ("jsonl:pile/test.jsonl.zst#text?meta.pile_set_name=Github", "github"),
        ("hub:codeparrot/github-code-clean::train", None),
    ],
)
def test_which_spec_names_a_published_test_set(spec, expected):
    assert published.text_of(spec) == expected
