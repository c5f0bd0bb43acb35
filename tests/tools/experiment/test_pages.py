"""The rows of an experiment's page."""

from pathlib import Path

from tape_ds import results
from tools.experiment import pages, readings, runs
from tools.experiment.published import Quantity
from tools.experiment.runs import ExperimentWork, Starting
from tools.experiment.table import Experiment

LOSS = Quantity("", "loss_past_native")


def test_the_untouched_model_of_a_seed_is_counted_once(tmp_path, monkeypatch):
    """Every arm scores it, and finds the same."""
    monkeypatch.chdir(tmp_path)
    asked = Experiment.build(
        {"about": "x", "recipe": "tiny", "arms": {"a": {}, "b": {}}, "seeds": [0, 1]}
    )
    planned = runs.plan(asked, [], Path("o"), 2)

    def of_run(folder):
        seed = 1.0 if folder.name.endswith("_1") else 0.0
        yield (
            folder / "results" / "run.json",
            results.collect(),
            {"": {LOSS: 5.0}, "untouched": {LOSS: 7.0 + seed}},
        )

    monkeypatch.setattr(readings, "of_run", of_run)
    _, made, _ = pages.gather(ExperimentWork("x", asked, Path("o"), Starting(2)), planned, None)
    assert sorted(row.figures[LOSS] for row in made if row.arm == "untouched") == [7.0, 8.0]
    assert sum(row.arm in ("a", "b") for row in made) == 4
