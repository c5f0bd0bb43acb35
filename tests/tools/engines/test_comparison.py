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

    def store(*, name=case.name, length=None, **distances):
        found = {
            prompt: reference[prompt][-3:] + each
            for prompt, each in distances.items()
            if each is not None
        }
        errors = {prompt: "ValueError: no" for prompt, each in distances.items() if each is None}
        np.savez(tmp_path / f"{name}.npz", **found)
        (tmp_path / f"{name}.json").write_text(json.dumps({"length": length, "errors": errors}))
        if not (tmp_path / f"{case.name}.npz").is_file():
            return []
        return list(
            comparison.measured(tmp_path / "cases", tmp_path, ("llama",), "transformers.npz")
        )

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
    assert measured.served.result == result and measured.served.differences == {
        "short": short,
        "long": long,
    }
    assert ("error" in measured.as_row()) == (long is None)


@pytest.mark.parametrize(("length", "result"), [(None, "right"), (1024, "right"), (4096, "wrong")])
def test_an_engine_that_serves_longer_texts_than_the_model_was_extended_to_is_wrong(
    ran, length, result
):
    (measured,) = ran[1](short=0.0, long=0.0, length=length)
    assert measured.served.result == result and measured.as_row().get("length") == length


def test_an_engine_that_changed_is_found(ran):
    folder, store = ran
    assert table.computed("mlx-lm", config_with("yarn")).result == "right"
    assert comparison.changes("mlx-lm", folder, store(short=1e-5, long=1e-5)) == []
    (line,) = comparison.changes("mlx-lm", folder, store(short=1e-5, long=0.7))
    assert line == "mlx-lm, llama-yarn: the table says right, it is wrong "
    (line,) = comparison.changes("ctranslate2", folder, store(short=0.0, long=0.0))
    assert "the table says refused, it is right" in line


def test_a_flag_that_is_no_longer_needed_is_found(ran, monkeypatch):
    """What the table calls right with a flag is right with it, and wrong or refused without it."""
    folder, store = ran
    (folder / "llama-yarn" / "config.json").write_text(json.dumps(config_with("yarn_betas")))
    assert table.computed("llama.cpp", config_with("yarn_betas")).result == "flag"
    without = "llama-yarn.without_flag"
    store(name=without, short=0.0, long=2.0)
    assert comparison.changes("llama.cpp", folder, store(short=0.0, long=0.0)) == []
    (line,) = comparison.changes("llama.cpp", folder, store(short=0.0, long=2.0))
    assert "the table says right, it is wrong" in line
    store(name=without, short=0.0, long=0.0)
    (found,) = store(short=0.0, long=0.0)
    assert found.as_row()["without_flag"]["result"] == "right"
    (line,) = comparison.changes("llama.cpp", folder, [found])
    assert "the table says right with a flag, it is right without" in line


def test_there_is_a_case_for_every_scaling_that_differs():
    names = [case.name for case in cases.cases()]
    assert len(names) == len(set(names)) and "qwen3-yarn_exact_ramp_attention" in names
    assert {"llama-theta-rope_parameters_only", "olmo2-yarn-older_keys_only"} <= set(names)
    assert set(cases.FAMILIES) >= {"llama", "qwen2", "qwen3"}
    assert len(cases.prompt("edge")) == cases.NATIVE + 1
    assert len(cases.prompt("long")) == 600 and cases.prompt("long")[:100] == cases.prompt("short")


def test_environments_have_the_versions_of_the_table():
    for name, environment in environments.ENVIRONMENTS.items():
        assert all("==" in package for package in environment.pins)
        assert (environments.READERS / environment.reader).is_file()
        version = table.engines()[name].version
        assert any(
            package.endswith((f"{name}=={version}", f".{version}")) for package in environment.pins
        ), name


@pytest.mark.parametrize("name", environments.ENVIRONMENTS)
def test_what_was_run_is_stored(name):
    """Each cell that the table has from `make engines` is in its results, right, refused or wrong as the table says;
    what is right is within 1e-3."""
    engine = table.engines()[name]
    environment = environments.ENVIRONMENTS[name]
    stored = json.loads((command.RESULTS / f"{name}.json").read_text())
    assert (
        stored["packages"] == environment.pins
        and stored["right_within"] == comparison.RIGHT == 1e-3
    )
    assert {(group.by, group.how) for group in engine.groups} == {("make engines", environment.how)}
    assert {family for group in engine.groups for family in group.families} == set(
        environment.families
    )
    rows = {row["case"]: row for row in stored["cases"]}
    tried = [case for case in cases.cases() if case.family in environment.families]
    assert set(rows) == {case.name for case in tried}
    for case in tried:
        row = rows[case.name]
        verdict = table.computed(name, cases.spelled(case, cases.configuration(case).to_dict()))
        assert row["result"] == ("right" if verdict.result == "flag" else verdict.result), row
        assert ("without_flag" in row) == (verdict.result == "flag"), row
        if row["result"] == "right":
            lengths = cases.LENGTHS if environment.how == "run" else cases.TABLE_LENGTHS
            assert max(row[prompt] for prompt in lengths) <= 1e-3


def test_an_unknown_engine_runs_nothing(capsys):
    assert command.main(["keras-hub"]) == 2
    assert "engines = 'keras-hub': not one that runs here" in capsys.readouterr().err
