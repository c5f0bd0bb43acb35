"""The table of engines: its file, the answer for a config.json, and that every silently wrong cell is warned of."""

import pytest

from tape_ds.cli import export
from tape_ds.engines import forms, table
from tape_ds.export import config_json
from tests.engines.examples import TRAITS, config_with


def cells_of(result):
    """Name of the engine, model type and trait of each such cell."""
    for engine in table.engines().values():
        for group in engine.groups:
            for family in group.families:
                for trait, cell in group.cells.items():
                    if cell.result == result:
                        yield engine.name, family, trait


WRONG = list(cells_of("wrong"))
FLAG = list(cells_of("flag"))


@pytest.mark.parametrize("trait", TRAITS)
def test_an_example_has_its_trait(trait):
    assert trait in forms.form_of(config_with(trait)).traits


@pytest.mark.parametrize(
    ("engine", "family", "trait"), WRONG, ids=["-".join(each) for each in WRONG]
)
def test_a_cell_that_is_silently_wrong_is_warned_of_at_export(engine, family, trait, capsys):
    config = config_with(trait, family)
    assert trait in forms.form_of(config).traits
    verdict = table.computed(engine, config)
    export.print_engines(config, [])
    printed = capsys.readouterr().out
    assert verdict.result == "wrong"
    assert f"\n  {verdict.engine.label} silently computes another model: " in printed
    problem, *others = table.check_served("--check", [engine], config)
    assert problem.value == engine and not others
    assert problem.wrong == str(verdict) and "--check_anyway" in problem.remedy


@pytest.mark.parametrize(("engine", "family", "trait"), FLAG, ids=["-".join(each) for each in FLAG])
def test_a_cell_that_needs_a_flag_is_named_at_export_with_the_flag(engine, family, trait, capsys):
    config = config_with(trait, family)
    verdict = table.computed(engine, config)
    export.print_engines(config, [])
    assert verdict.result == "flag" and verdict.says
    assert (
        f"\n  {verdict.engine.label} computes it with {' and '.join(verdict.says)}\n"
        in capsys.readouterr().out
    )
    assert table.check_served("--check", [engine], config) == []


def test_every_cell_names_what_it_says():
    """A flag or a reason is there for all but what is right, and is made of fields that the form has."""
    for engine in table.engines().values():
        for group in engine.groups:
            for trait, cell in group.cells.items():
                assert bool(cell.says) == (cell.result != "right"), (engine.name, trait)
                said = table.computed(engine.name, config_with(trait, group.families[0])).says
                assert not [each for each in said if "{" in each], (engine.name, trait)


def test_a_scaling_without_a_cell_was_not_tried():
    config = {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4},
    }
    verdict = table.computed(
        "lmdeploy", config | {"rope_theta": 1e4, "rope_scaling": {"rope_type": "proportional"}}
    )
    assert (verdict.result, verdict.says) == ("untried", ("proportional",))
    assert table.computed("lmdeploy", config_with("yarn", "mpt")).says == ("the model type 'mpt'",)


def test_the_most_serious_counts_and_flags_add_up():
    config = config_with("yarn_betas")
    config["rope_scaling"]["attention_factor"] = 1.0
    both = table.computed("llama.cpp", config)
    assert both.result == "flag" and len(both.says) == 2
    assert "--yarn-beta-fast 8 --yarn-beta-slow 1" in str(both)
    # 1 / (0.1 ln 4 + 1)
    assert "llama.rope.scaling.attn_factor=float:0.878248856 " in str(both)
    config["rope_scaling"]["truncate"] = False
    assert table.computed("llama.cpp", config).result == "wrong"
    assert table.computed("ctranslate2", config).result == "refused", "before it computes anything"


def test_an_engine_that_does_not_see_a_scaling_does_not_refuse_it():
    """keras-hub refuses YaRN under its older key, and drops it where only rope_parameters names it."""
    config = config_with("yarn")
    assert table.computed("keras-hub", config).result == "refused"
    del config["rope_theta"], config["rope_scaling"]
    assert table.computed("keras-hub", config).result == "wrong"


def test_a_folder_with_its_own_code_is_refused_by_all():
    for config in (
        {"model_type": "tape"},
        {"model_type": "tape_gptj"},
        {"model_type": "llama", "auto_map": {"a": "b"}},
    ):
        assert {each.result for each in table.verdicts(config)} == {"refused"}


def test_the_form_that_most_engines_read():
    """YaRN with a rounded ramp and its length, bounds and factor on attention left out; and a changed base."""
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    content = {"model_type": "llama", "max_position_embeddings": 1024}
    readers = {"vllm", "sglang", "mlx-lm", "openvino", "llama.cpp"}
    for rope_parameters, more in (
        (rope, set()),
        ({"rope_type": "default", "rope_theta": 5e5}, {"lmdeploy"}),
    ):
        config = config_json._spelled_twice(content, rope_parameters)
        right = {each.engine.name for each in table.verdicts(config) if each.result == "right"}
        assert readers | more <= right


def test_a_length_that_the_factor_of_yarn_does_not_reach_is_seen():
    """vLLM has angles up to factor times the length before scaling; shorter ones are all right."""
    config = config_with("yarn")
    for length, result in ((1025, "wrong"), (1024, "right"), (700, "right")):
        config["max_position_embeddings"] = length
        assert table.computed("vllm", config).result == result
        assert table.computed("sglang", config).result == "right"
    for stated in (config["rope_scaling"], config["rope_parameters"]):
        del stated["factor"]
    assert "yarn_beyond_factor" not in forms.form_of(config).traits


def test_lmdeploy_computes_yarn_in_its_other_engine_alone():
    """From 0.14 on, TurboMind, which it takes by itself, gets the length after scaling in place of the one before."""
    verdict = table.computed("lmdeploy", config_with("yarn"))
    assert verdict.result == "flag" and verdict.says[0].startswith("--backend pytorch (")
    assert table.computed("lmdeploy", config_with("llama3")).result == "right"


def test_versions_and_dates_are_named():
    for engine in table.engines().values():
        assert engine.version and engine.title
        assert all(group.date.startswith("20") and len(group.date) == 10 for group in engine.groups)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"result": "good", "of": ["yarn"]}, "'good' is no result"),
        ({"result": "right", "of": ["yran"]}, "'yran' is unknown"),
        ({"result": "right", "of": ["yarn", "yarn"]}, "there twice"),
    ],
)
def test_a_mistake_in_the_file_is_found(line, message):
    group = {"of": ["llama"], "how": "run", "by": "hand", "date": "2026-11-28", "cells": [line]}
    with pytest.raises(ValueError, match=message):
        table._engine("x", {"title": "X", "version": 1, "groups": [group]})
