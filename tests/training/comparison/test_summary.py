"""What a comparison writes of its runs."""

import dataclasses

from tape_ds import results
from tape_ds.training.comparison import summary


def result(**config):
    return results.collect(seed=3, config={"output_dir": "a", **config}, data={"stdlib": "f"}, processes=2).finish({})


def test_the_record_holds_what_the_runs_have_in_common():
    found = [result(method="tape", window=8), result(method="lora", window=8, lora_r=4, output_dir="b")]
    assert summary.differences(found) == ["lora_r", "method"]
    record = summary.collect(["tool.py", "--seed", "3"], found)
    assert record.config == {"window": 8} and record.seed == 3 and record.data == {"stdlib": "f"}
    assert summary.collect(["tool"], [*found, dataclasses.replace(found[0], seed=4)]).seed is None
    assert record.command == ["tool.py", "--seed", "3"] and record.hardware["processes"] == 2


def test_every_form_is_written_and_nothing_is_left_beside_it(tmp_path):
    record = summary.collect(["tool.py"], [result()]).finish({"rows": []})
    for text in ("one", "two"):
        summary.write(record, tmp_path / "new", "name", text, "a,b\n")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["name.csv", "name.json", "name.md"]
    assert (tmp_path / "new" / "name.md").read_text() == "two"
    assert results.load(tmp_path / "new" / "name.json") == record


def test_tables():
    assert summary.as_csv(["name", "x"], [["a, b", 1.5], ["c", None]]) == 'name,x\n"a, b",1.5\nc,\n'


def test_where_a_table_comes_from():
    record = summary.collect(["compare.py", "--methods", 'lora{"seed": 4}'], [result()]).finish({})
    line = summary.provenance(record, "tools/compare.py")
    assert line.startswith("""Command: `python tools/compare.py --methods 'lora{"seed": 4}'`. Seed 3. """)
    several = dataclasses.replace(record, seed=None, figures={"comparison": {"seeds": [3, 4]}})
    assert ". Seeds 3, 4. " in summary.provenance(several, "tools/compare.py")
    assert "2 processes a run" in line and str(record.finished) in line


def test_seconds_are_of_the_whole_run():
    timed = results.Result(command=[], started="2026-01-01T10:00:00+00:00", finished="2026-01-01T11:00:05+00:00")
    assert summary.seconds(timed) == 3605


def test_a_run_without_a_logged_loss_has_none():
    """A run of fewer steps than ``logging_steps`` ended the comparison with an IndexError, after all was trained."""
    logged = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 1.25}]
    losses = [summary.last_loss(results.Result([], "", figures={"train_loss": some})) for some in (logged, [])]
    assert losses == [1.25, None]
