"""The planner beside measurements: the recipe's own plan at each row's length, documents and attention."""

import pytest

from benchmarks import planner, table
from tape_ds.model.attention import backends
from tests.benchmarks.helpers import row


def recipe(shape, seconds=2.0, **changes):
    return row("attend auto", 1e3 * seconds, group="recipe", shape=shape, peak_bytes=20 * 10**9, **changes)


def test_a_row_stands_beside_its_plan():
    shape, planned, measured, ratio, gigabytes, held, of_memory = planner.compared(recipe("7B L32 B1 T8192"), "h100-80")
    assert (shape, measured, held) == ("7B L32 B1 T8192", "2.000", "20.000")
    assert float(ratio) == pytest.approx(float(planned) / 2, abs=1e-3)
    assert float(of_memory) == pytest.approx(float(gigabytes) / 20, abs=1e-3)
    assert 0.5 < float(planned) < 2  # 437 TFLOP with what is computed again, at 989 TFLOP/s
    assert 13.5 < float(gigabytes) < 30  # the weights alone are 13.5


def test_a_stored_table_is_planned_for_its_own_gpu(tmp_path, monkeypatch, capsys):
    table.write([recipe("7B L32 B1 T8192"), recipe("7B L32 B1 T8192", encoding="rope")], tmp_path / "recipe_h100.csv")
    monkeypatch.setattr("sys.argv", ["planner", "--results", str(tmp_path)])
    assert planner.main() == 0
    text = (tmp_path / "planner_h100.md").read_text()
    assert text.count("| 7B L32 B1 T8192 |") == 1
    own = " | ".join(planner.compared(recipe("7B L32 B1 T8192"), "h100-80"))
    assert own in text and own in capsys.readouterr().out
    table.write([recipe("7B L32 B1 T8192", device="NVIDIA T4")], tmp_path / "recipe_t4.csv")
    assert planner.main() == 2
    assert "NVIDIA T4" in capsys.readouterr().err


def test_documents_and_the_table_s_attention_reach_the_plan(monkeypatch):
    """16 uneven documents cost what fewer equal ones do; with a row for them the fused kernel is planned."""
    shape = "7B L32 B1 T8192 N16"
    assert planner.planned(recipe("7B L32 B1 T8192"), "h200").documents is None
    assert planner.planned(recipe("7B L32 B1 T8192 N1"), "h200").documents == 1
    assert 2 < planner.planned(recipe(shape), "h200").documents < 16
    assert not planner.planned(recipe(shape), "h200").wide_attention
    stored = backends.StoredChoice("sm_90", "bfloat16", 128, 256, True, 4096, 16384, "triton", "packed_h100.csv")
    monkeypatch.setattr(backends, "table", lambda: (stored,))
    assert planner.planned(recipe(shape), "h200").wide_attention
    assert not planner.planned(recipe("7B L32 B1 T8192"), "h200").wide_attention
