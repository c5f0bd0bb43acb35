"""Which run's files those of a folder are; whole runs in such folders are in tests/training/test_ending.py."""

import json

import pytest

from tape_ds import run_folder
from tape_ds.training import earlier_run

LINE = {
    "step": 1,
    "grad_norm": 0.5,
    "mfu": None,
    "loss": 2.5,
    "learning_rate": 1e-3,
    "epoch": 0.1,
    "tokens_per_second": 310.0,
    "memory_bytes": 7_000_000,
    "eta_seconds": 9.5,
    "skipped": 0,
    "tokens": 512,
}
"""As the first version wrote it, and every one since."""


def refusals(output, **asked):
    found = earlier_run.look(output)
    return [
        f"{each.wrong}; {each.remedy}"
        for each in earlier_run.check_new_start(found, trains=True, **asked)
    ]


@pytest.mark.parametrize("cut", ["", '{"step": 3, "gra'])
def test_metrics_of_a_version_without_a_marker_are_a_run_s(tmp_path, cut):
    """Killed before its first checkpoint it left only these, and they were "what no run is known to have written"."""
    lines = [json.dumps(LINE | {"step": step}) + "\n" for step in (1, 2)]
    (tmp_path / run_folder.METRICS).write_text("".join(lines) + cut)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "loss_by_position.json").write_text("{}")
    (tmp_path / "results" / "mine.json").write_text("{}")
    asked = "--start_anew to remove that, or another output_dir"
    assert refusals(tmp_path, start_anew=False) == [
        f"it holds an earlier run's metrics.jsonl, results/ (1 file); {asked}"
    ]
    found = earlier_run.look(tmp_path)
    resumed = earlier_run.check_same_run(found, {"seed": 7}, 0, anyway=True, trains=True)
    assert [each.remedy for each in resumed] == [asked], (
        "that its identity is unknown is no reason to replace it"
    )
    assert refusals(tmp_path, start_anew=True) == []
    assert earlier_run.remove(found) == ["results/mine.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"step": 1, "loss": 2.5, "tokens": 512}) + "\n",  # another program's
        json.dumps(LINE) + "\n" + json.dumps({"note": "looks good"}) + "\n",
        json.dumps(LINE),  # not a line yet
        json.dumps([LINE]) + "\n",
        "\n",
        "[" * 5000 + "\n",
    ],
)
def test_other_metrics_stay_a_person_s(tmp_path, text):
    (tmp_path / run_folder.METRICS).write_text(text)
    for start_anew in (False, True):
        (wrong,) = refusals(tmp_path, start_anew=start_anew)
        assert wrong.startswith(
            "it holds what no run is known to have written: metrics.jsonl; move that"
        )
