"""Tables of engines in the book and in cards are those of the data."""

import pytest

from tape_ds.engines import pages, table
from tests.engines.examples import config_with
from tools.engines import page


@pytest.mark.parametrize("name", page.PAGES)
def test_the_book_shows_the_table(name):
    """`python -m tools.engines --page` writes them."""
    text = (page.ROOT / name).read_text()
    assert page.filled(text) == text
    assert text.count("<!-- engines: ") == text.count("<!-- end -->") >= 1


def test_a_table_is_filled_in_between_its_marks():
    text = "before\n<!-- engines: exported-llama -->\nWAS HERE\n<!-- end -->\nafter\n"
    filled = page.filled(text)
    assert (
        "WAS HERE" not in filled
        and filled.startswith("before\n")
        and filled.endswith("<!-- end -->\nafter\n")
    )
    assert pages.of_exported() in filled


def test_every_engine_has_its_row():
    for made in (pages.of_exported(), pages.of_config(config_with("yarn"))):
        rows = made.splitlines()[2:]
        assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [
            e.label for e in table.engines().values()
        ]


def test_every_result_of_a_scaling_is_in_one_cell():
    row = next(row for row in pages.of_exported().splitlines() if row.startswith("| CTranslate2"))
    _, _, right, flag, refused, wrong, *_ = (cell.strip() for cell in row.split("|"))
    assert (right, flag) == ("any base, linear", "")
    assert refused.startswith("every yarn: ") and wrong.startswith("llama3: unscaled")


def test_a_model_type_whose_factor_on_attention_is_written_once_has_a_row_of_its_own():
    """SGLang reads the factor of a Qwen2 and a Qwen3 from mscale, which export does not write for others."""
    rows = [
        row
        for row in pages.of_exported(("qwen2", "qwen3", "olmo2")).splitlines()
        if row.startswith("| SGLang")
    ]
    assert [row.split(" | ")[0] for row in rows] == [
        "| SGLang 0.5.23, qwen2, qwen3",
        "| SGLang 0.5.23, olmo2",
    ]
    wrong = [row.split(" | ")[4] for row in rows]
    assert not wrong[0].strip() and wrong[1].startswith("yarn with `attention_factor`: ")


def test_a_flag_is_code_and_its_numbers_are_capitals():
    assert pages.in_code("--a {length} --b {x:.9g} (why)") == "`--a LENGTH --b X` (why)"
    assert pages.in_code("unscaled") == "unscaled"


def test_a_card_has_the_model_s_own_numbers():
    row = next(
        row
        for row in pages.of_config(config_with("linear")).splitlines()
        if row.startswith("| vLLM")
    )
    assert "right with `--max-model-len 1024`" in row
