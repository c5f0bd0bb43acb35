"""Published numbers are typed without slips, and are found only where they belong."""

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


@pytest.mark.parametrize(
    ("table", "method", "quantity", "expected"),
    [
        ("Table 1", "TAPE", Quantity("quality", "exact_match"), 11.60),
        ("Table 1", "NoPE", Quantity("gov_report", "rouge"), None),
        ("Table 2", "LongLoRA", Quantity("proof_pile", "perplexity", 8192), 2.956),
        ("Table 2", "TAPE", Quantity("pg19", "perplexity", 1024), 8.226),
        ("Table 5", "Context extension", Quantity("recipe", "tokens"), 8096),
        ("Table 7", "I = 24", Quantity("positions", "parameters"), 0.22),
        ("Table 9", "Theta Scaling", Quantity("arc_challenge", "accuracy"), 45.65),
        ("Table 9", "LoRA", Quantity("mmlu_other", "accuracy"), 45.83),
        ("Figure 3", "Theta Scaling", Quantity("passkey", "accuracy", 8000), 95),
        ("Table 2", "TAPE", Quantity("pg19", "perplexity", 16384), None),
    ],
)
def test_numbers_of_the_paper(table, method, quantity, expected):
    (found,) = [each for each in published.TABLES if each.name == table]
    assert found.rows[method].get(quantity) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("bin:pg19/test.bin", "pg19"),
        ("jsonl:hf://datasets/someone/PG-19/test/*.jsonl#text", "pg19"),
        ("bin:/data/proof-pile/test_sampled_data.bin", "proof_pile"),
        ("bin:/data/github.bin", "github"),
        ("jsonl:/data/github_test/part.jsonl#text", "github"),
        ("text:/home/me/github/project/a/*.py", None),
        ("stdlib", None),
        ("jsonl:a.jsonl#pg19", None),
        ("jsonl:pile/test.jsonl.zst#text?meta.pile_set_name=Github", "github"),
        ("hub:codeparrot/github-code-clean::train", None),
    ],
)
def test_which_spec_names_a_published_test_set(spec, expected):
    assert published.text_of(spec) == expected
