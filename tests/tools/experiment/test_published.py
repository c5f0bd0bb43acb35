"""Published numbers are complete, and belong to the test sets that specs name."""

import pytest

from tools.experiment import published
from tools.experiment.published import Quantity


def test_every_number_stands_under_a_quantity():
    """Tables hold as many numbers as the paper prints; a lost or doubled one changes the count."""
    counts = {
        table.name: sum(v is not None for row in table.rows.values() for v in row.values())
        for table in published.TABLES
    }
    assert counts == {
        "Figure 2": 5,
        "Figure 3": 32,
        "Figure 5": 4,
        "Figure 6": 3,
        "Table 1": 46,
        "Table 2": 32,
        "Table 3": 12,
        "Table 5": 20,
        "Table 6": 28,
        "Table 7": 25,
        "Table 8": 24,
        "Table 8, second half": 24,
        "Table 9": 24,
        "Table 10": 10,
    }


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
        ("jsonl:a.jsonl#pg19", None),
        ("jsonl:pile/test.jsonl.zst#text?meta.pile_set_name=Github", "github"),
        ("hub:codeparrot/github-code-clean::train", None),
    ],
)
def test_which_spec_names_a_published_test_set(spec, expected):
    assert published.text_of(spec) == expected
