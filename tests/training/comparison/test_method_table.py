"""The table of methods, where not everything was asked of every run."""

import csv
import io
import math
from types import SimpleNamespace

from tape_ds import results
from tape_ds.scoring.span_losses import SpanLosses
from tape_ds.training.comparison import method_table, page
from tape_ds.training.comparison.study import Study


def result(folder, scores, passkey=(), **figures):
    """A run that scored ``scores``: variant -> losses of two spans of 4 positions, 4 being the native length."""
    losses = {
        name: {"a": SpanLosses(4, (0, 4), nll, (3, 4)).to_dict(), "b": SpanLosses(4, (0,), nll[:1], (3,)).to_dict()}
        for name, nll in scores.items()
    }
    found = {
        "native_length": 4,
        "parameters": {"all": 100, "trained": 7},
        "tokens": 64,
        "tokens_per_second": 10.0,
        "peak_memory_bytes": 2**30,
        "loss_by_position": losses,
        "passkey": list(passkey),
    }
    done = results.collect(config={"method": "m", "window": 8}).finish(found | figures)
    return results.load(results.save(done, folder / "run.json"))


def run(arm, seed=3, again=False):
    """What a row takes of a planned run."""
    return SimpleNamespace(arm=arm, seed=seed, again=again)


def test_a_row_is_of_what_the_run_made_last(tmp_path):
    stored = result(tmp_path, {"untouched": (9.0, 9.0), "m, trained": (2.0, 3.0)})
    row = method_table.row(run("m"), stored, ["method", "group"])
    assert (row["loss"]["within"], row["loss"]["past"]) == (2.0, 3.0)
    assert row["loss"]["spans"]["counts"] == [6, 4], "all documents together"
    assert row["settings"] == {"method": "m"} and row["trained_parameters"] == 7
    asked = [
        {"variant": name, "length": length, "correct": correct, "trials": 2, "replies": []}
        for name, length, correct in (("untouched", 64, 1), ("untouched", 96, 0), ("m, trained", 64, 2))
    ]
    both = result(tmp_path, {"untouched": (9.0, 8.0), "m, trained": (2.0, 3.0)}, asked)
    untouched = method_table.row_untouched("untouched", both)
    assert untouched["loss"]["past"] == 8.0
    assert untouched["passkey"] == {"64": {"correct": 1, "trials": 2}, "96": {"correct": 0, "trials": 2}}
    assert method_table.row(run("m"), both, [])["passkey"] == {"64": {"correct": 2, "trials": 2}}


def test_what_was_not_asked_is_not_available(tmp_path):
    """No text, no passkeys, documents that end within the native length: a gap, not an error and not a zero."""
    asked = {"length": 64, "correct": 1, "trials": 2}
    short = result(tmp_path, {"m": (2.0, 3.0)}, native_length=8)
    rows = [
        method_table.row(run("all"), result(tmp_path, {"m": (2.5, 3.0)}, [asked]), []),
        method_table.row(run("no text"), result(tmp_path, {}), []),
        method_table.row(run("short"), short, []),
        method_table.row(run("broken"), result(tmp_path, {"m": (math.nan, math.nan)}), []),
    ]
    assert rows[1]["loss"] is None and rows[2]["loss"]["past"] is None
    measures = method_table.measures([64])
    study = Study("method", rows, measures, measures[0], "all")
    lines = page.table(study, method_table.columns(4, [64])).splitlines()
    cells = {line.split(" | ")[0][2:]: line.split(" | ")[3:6] for line in lines[2:]}
    assert cells == {
        "all": ["2.500", "**3.000**", "1/2"],
        "no text": ["N/A", "N/A", "N/A"],
        "short": ["**2.400**", "N/A", "N/A"],
        "broken": ["NaN", "NaN", "N/A"],
    }
    table = {row["method"]: row for row in csv.DictReader(io.StringIO(method_table.as_csv(rows)))}
    assert table["no text"]["loss_from_0"] == table["no text"]["passkey_64_correct"] == ""
    assert table["all"]["loss_from_4"] == "3.0" and table["all"]["passkey_64_trials"] == "2"


def test_figures_of_several_seeds_stand_in_one_line(tmp_path):
    """Passkeys of all runs together, cost on average; what nothing was trained for has no speed."""
    asked = [{"length": 64, "correct": 1, "trials": 2}]
    rows = [
        method_table.row(run("m", seed), result(tmp_path, {"m": (nll, 3.0)}, asked), [])
        for seed, nll in enumerate((2.0, 3.0))
    ]
    measures = method_table.measures([64])
    study = Study("method", rows, measures, measures[0], "m")
    line = page.table(study, method_table.columns(4, [64])).splitlines()[-1]
    assert line.startswith("| m | 2 | 7 | 64 | **2.500 ± 6.353** | **3.000 ± 0.000** | 2/4 | 10 | 1.00 GiB |")
    assert [each.name for each in measures] == ["loss_past_native", "loss_within_native", "passkey_64"]
    assert [each.of(rows[1]) for each in measures] == [3.0, 3.0, 0.5]
