"""CPU time of RULER's questions: the same questions three ways, stored with what they were measured with."""

import pytest

from benchmarks import ruler_cost
from benchmarks.__main__ import main
from tape_ds import results
from tests.export.conftest import base

__all__ = ["base"]


@pytest.mark.slow
def test_three_ways_are_asked_the_same(base, tmp_path):
    assert (
        main(["ruler", str(base), "--length", "1k", "--questions", "2", "--out", str(tmp_path)])
        == 0
    )
    stored = results.load(tmp_path / "ruler_cost_cpu.json")
    ways = stored.figures["ways"]
    assert list(ways) == [ruler_cost.LM_EVAL, ruler_cost.ALONE, ruler_cost.SHARED]
    assert (
        ways[ruler_cost.ALONE]["replies"]
        == ways[ruler_cost.SHARED]["replies"]
        == ways[ruler_cost.LM_EVAL]["replies"]
    )
    for each in ways.values():
        assert (
            each["seconds"] > 0
            and each["share"] == each["seconds"] / ways[ruler_cost.LM_EVAL]["seconds"]
        )
    page = (tmp_path / "ruler_cost_cpu.md").read_text()
    assert "2 questions of `niah_multikey_2`" in page and "2 of 2" in page


def test_mistakes_are_named_before_the_model_is_read(tmp_path, capsys):
    assert main(["ruler", "nowhere", "--questions", "0", "--out", str(tmp_path)]) == 2
    assert "--questions = 0" in capsys.readouterr().err
