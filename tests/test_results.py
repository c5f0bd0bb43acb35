"""The schema of stored results: complete or absent on disk, checked when read, free of credentials."""

import dataclasses
import json
import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tape_ds import results
from tape_ds.errors import UserError


def make(**changes):
    return dataclasses.replace(results.collect(command=["launch"], seed=7), **changes)


def test_saved_and_loaded_result_is_the_same(tmp_path):
    started = results.collect(
        command=["extend_llama.py", "--recipe", "demo"],
        seed=1,
        config={"window": 1024, "folder": Path("/data"), "rates": (0.1, 0.2)},
        data={"stdlib": "abc"},
        processes=2,
    )
    finished = started.finish({"loss": 2.5, "spans": np.array([1.0, 2.0]), "steps": np.int64(3)})
    path = results.save(finished, tmp_path / "new" / "run.json")
    assert results.load(path) == finished
    assert finished.figures == {"loss": 2.5, "spans": [1.0, 2.0], "steps": 3}
    assert finished.config == {"window": 1024, "folder": "/data", "rates": [0.1, 0.2]}
    assert finished.started <= finished.finished and finished.started.endswith("+00:00")
    assert finished.versions["torch"].startswith("2.") and finished.hardware["processes"] == 2


def test_figures_that_are_not_finite_survive_in_valid_json(tmp_path):
    path = results.save(
        make().finish({"loss": math.nan, "worst": [math.inf, -math.inf]}), tmp_path / "r.json"
    )
    json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    figures = results.load(path).figures
    assert math.isnan(figures["loss"])
    assert figures["worst"] == [math.inf, -math.inf]


def test_a_text_that_is_no_unicode_is_stored(tmp_path):
    """A file's name need not be UTF-8, and JSON lines may have half a surrogate pair."""
    started = results.collect(command=["x", os.fsdecode(b"text:\xff.txt")])
    finished = started.finish({"replies": ["\ud800", "d\u00e9j\u00e0"]})
    assert results.load(results.save(finished, tmp_path / "r.json")) == finished


def test_load_names_everything_that_is_wrong_at_once(tmp_path):
    path = results.save(make(), tmp_path / "r.json")
    content = json.loads(path.read_text())
    content["seed"] = "seven"
    content["figure"] = content.pop("figures")
    path.write_text(json.dumps(content))
    with pytest.raises(UserError) as caught:
        results.load(path)
    assert {problem.field for problem in caught.value.problems} == {"seed", "figures", "figure"}
    assert "did you mean 'figures'" in str(caught.value)


@pytest.mark.parametrize("text", ["[1]", '{"schema": 99}', '{"schema": 1, "seed"'])
def test_load_refuses_what_is_not_a_result(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(UserError):
        results.load(path)


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True
    )


def test_commit_of_a_checkout_clean_dirty_outside_and_around(tmp_path):
    assert results.commit(tmp_path) is None
    git(tmp_path, "init")
    assert results.commit(tmp_path) is None  # no commit yet
    (tmp_path / "code.py").write_text("a = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    clean = results.commit(tmp_path)
    assert clean is not None and len(clean["hash"]) == 40 and clean["dirty"] is False
    (tmp_path / "code.py").write_text("a = 2\n")
    assert results.commit(tmp_path) == {"hash": clean["hash"], "dirty": True}
    (tmp_path / "site-packages").mkdir()
    assert results.commit(tmp_path / "site-packages") is None, (
        "the package is not what that repository holds"
    )


def test_results_stored_before_there_were_evaluations_can_be_read(tmp_path):
    path = results.save(results.collect(), tmp_path / "result.json")
    content = json.loads(path.read_text())
    del content["model"]
    path.write_text(json.dumps(content))
    assert results.load(path).model is None
