"""``make engines`` without an engine: its cases, what it makes of log-probabilities, and that a change is found."""

import json

import numpy as np
import pytest

from tape_ds.engines import table
from tests.engines.examples import config_with
from tools.engines import __main__ as command
from tools.engines import cases, comparison, environments

VOCABULARY = 8


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """A function that stores what an engine computed of one case: its distance from transformers at each prompt, None
    where it refused."""
    case = cases.Case("llama", "yarn")
    monkeypatch.setattr(comparison, "cases", lambda: [case])
    folder = tmp_path / "cases" / case.name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_with("yarn")))
    reference = {name: np.zeros((length, VOCABULARY)) for name, length in cases.LENGTHS.items()}
    np.savez(folder / "transformers.npz", **reference)

    def store(**distances):
        found = {name: reference[name][-3:] + each for name, each in distances.items() if each is not None}
        errors = {name: "ValueError: no" for name, each in distances.items() if each is None}
        np.savez(tmp_path / f"{case.name}.npz", **found)
        (tmp_path / f"{case.name}.json").write_text(json.dumps(errors))
        return list(comparison.measured(tmp_path / "cases", tmp_path))

    return tmp_path / "cases", store


@pytest.mark.parametrize(
    ("short", "long", "result"),
    [
        (1e-5, 2e-4, "right"),
        (1e-5, 5.0, "wrong"),
        (None, None, "refused"),
        (1e-5, None, "refused"),
        (5.0, None, "wrong"),
    ],
)
def test_the_worst_of_both_prompts_counts(ran, short, long, result):
    (measured,) = ran[1](short=short, long=long)
    assert measured.result == result and measured.differences == {"short": short, "long": long}
    assert ("error" in measured.as_row()) == (long is None)


def test_an_engine_that_changed_is_found(ran):
    folder, store = ran
    assert table.computed("mlx-lm", config_with("yarn")).result == "right"
    assert comparison.changes("mlx-lm", folder, store(short=1e-5, long=1e-5)) == []
    (line,) = comparison.changes("mlx-lm", folder, store(short=1e-5, long=0.7))
    assert line == "mlx-lm, llama-yarn: the table says right, it is wrong "
    (line,) = comparison.changes("ctranslate2", folder, store(short=0.0, long=0.0))
    assert "the table says refused, it is right" in line


def test_there_is_a_case_for_every_scaling_that_differs():
    names = [case.name for case in cases.cases()]
    assert len(names) == len(set(names)) and "qwen3-yarn_exact_ramp_attention" in names
    assert {"llama-theta-rope_parameters_only", "olmo2-yarn-older_keys_only"} <= set(names)
    assert set(cases.FAMILIES) >= {"llama", "qwen2", "qwen3"}
    assert len(cases.prompt("long")) == 600 and cases.prompt("long")[:100] == cases.prompt("short")


def test_environments_have_the_versions_of_the_table():
    for name, environment in environments.ENVIRONMENTS.items():
        assert all("==" in package for package in environment.packages)
        assert (environments.READERS / environment.reader).is_file()
        version = table.engines()[name].version
        assert any(package.endswith((f"{name}=={version}", f".{version}")) for package in environment.packages), name


def test_what_was_run_is_stored():
    """A row that the table has from `make engines` is in its results, right, refused or wrong as the table says."""
    for engine in table.engines().values():
        families = {family for group in engine.groups if group.by == "make engines" for family in group.families}
        if not families:
            continue
        stored = json.loads((command.RESULTS / f"{engine.name}.json").read_text())
        assert stored["packages"] == list(environments.ENVIRONMENTS[engine.name].packages)
        assert {row["case"] for row in stored["cases"]} >= {f"{family}-yarn" for family in families}
        yarn = next(row for row in stored["cases"] if row["case"] == "llama-yarn")
        assert yarn["result"] == engine.group("llama").cells["yarn"].result


def test_an_unknown_engine_runs_nothing(capsys):
    assert command.main(["vllm"]) == 2
    assert "engines = 'vllm': not one that runs here" in capsys.readouterr().err
