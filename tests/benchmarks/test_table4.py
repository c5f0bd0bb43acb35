"""Table 4's implementations: a layer's and a model's step, every encoding right, a sample told for one step."""

from dataclasses import replace

import pytest
import torch

from benchmarks import models, table4
from benchmarks.benchmark_case import Setting, run
from benchmarks.groups import GROUPS
from benchmarks.measure import clock
from benchmarks.reference_formulation import three_sdpa
from tests.benchmarks.conftest import MODEL

SETTING = Setting(torch.device("cpu"), torch.float32)
LAYER = replace(MODEL, layers=1)


def findings(shape, setting=SETTING):
    return run(table4.case(shape, setting), setting, 1, head_start=False)


@pytest.mark.parametrize("shape", [LAYER, replace(LAYER, batch=2), MODEL], ids=["layer", "rows", "model"])
def test_every_implementation_is_right(shape, toys):
    found = {(each.encoding, each.implementation): each for each in findings(shape)}
    assert {encoding for encoding, _ in found} == {"rope", "tape", "fire", "t5", "alibi"}
    assert ("tape", "published, three sdpa") in found
    assert [key for key, each in found.items() if each.status != "timed"] == []
    assert all(set(each.times) == {"total"} and each.times["total"].p50 > 0 for each in found.values())


def test_a_layer_s_positions_are_compared_too(toys):
    asked = table4.case(LAYER, SETTING)
    compared = {encoding: set(truth()) for encoding, truth in asked.truth.items()}
    assert compared.pop("tape") == {"hidden", "positions"}
    assert set(map(frozenset, compared.values())) == {frozenset({"hidden"})}


def test_a_published_layer_that_forgets_the_sines_is_found_out(toys, monkeypatch):
    def forgetful(*arguments):
        out, cos, sin = three_sdpa(*arguments)
        return [out, cos, torch.zeros_like(sin)]

    attentions = table4.ATTENTIONS | {"three sdpa": forgetful}
    monkeypatch.setattr("benchmarks.reference_formulation.ATTENTIONS", attentions)
    wrong = [each for each in findings(LAYER) if each.status == "wrong"]
    assert [each.implementation for each in wrong] == ["published, three sdpa"]
    assert wrong[0].reason.startswith("positions")


def test_a_step_runs_on_the_whole_row_without_gradients(toys):
    (entry,) = [each for each in table4.case(MODEL, SETTING).entries if each.encoding == "t5"]
    runner = entry.build()
    seen = []
    model = models.TapeForCausalLM
    original = model.forward

    def forward(self, input_ids, **options):
        seen.append((tuple(input_ids.shape), torch.is_grad_enabled()))
        return original(self, input_ids=input_ids, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "forward", forward)
        runner.run()
    assert seen == [((1, 40), False)] * table4.STEPS["cpu"] and runner.steps == table4.STEPS["cpu"]


def test_a_time_is_that_of_one_step(toys):
    (entry,) = [each for each in table4.case(LAYER, SETTING).entries if each.encoding == "alibi"]
    moments = iter([0.0, 3.0, 3.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.measure.time.perf_counter", lambda: next(moments))
        sample = clock(SETTING.device, False)(entry.build()._replace(forward=lambda: None))
    assert sample.forward == 3000.0 / table4.STEPS["cpu"]


def test_both_kinds_of_step_are_timed_on_every_device():
    for listed in (GROUPS["table4"].cuda, GROUPS["table4"].cpu):
        assert {shape.layers == 1 for shape in listed} == {True, False}
