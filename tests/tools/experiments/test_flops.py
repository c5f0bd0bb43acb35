"""``tools/experiments/flops.py``: the paper's Table 3 to the last printed digit."""

import pytest

from tape_ds import encodings, results
from tools.experiments import flops


def row(rows, encoding, count):
    (found,) = [each for each in rows if each["encoding"] == encoding and each["count"] == count]
    return found


@pytest.mark.parametrize("encoding", ["rope", "fire", "t5"])
def test_table_3_comes_out_to_the_last_digit(encoding):
    rows = flops.table_3()
    published, ours = (row(rows, encoding, count) for count in ("published", "this project"))
    for name in ("MACs (G)", "parameters (M)"):
        assert f"{ours[name]:.2f}" == f"{published[name]:.2f}"


def test_tape_is_counted_as_in_the_published_code_and_as_here():
    rows = flops.table_3()
    published, code, ours = (
        row(rows, "tape", count) for count in ("published", "published code", "this project")
    )
    for name in ("MACs (G)", "parameters (M)"):
        assert code[name] == published[name]
        assert ours[name] < published[name]


def test_every_encoding_is_listed_by_default(tmp_path, monkeypatch):
    monkeypatch.setitem(flops.PAPER, "num_hidden_layers", 2)
    assert flops.main(["--output", str(tmp_path)]) == 0
    rows = results.load(tmp_path / "flops.json").figures["rows"]
    assert [each["encoding"] for each in rows] == encodings.available()
    (rope,) = [each for each in rows if each["encoding"] == "rope"]
    ours = row(flops.table_3(), "rope", "this project")
    assert [rope[name] for name in ("MACs full (G)", "parameters (M)")] == [
        ours["MACs (G)"],
        ours["parameters (M)"],
    ]
