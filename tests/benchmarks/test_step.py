"""A step replayed as a graph, with stand-ins for CUDA: what is captured runs once, a replay does nothing."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from benchmarks import models, step
from benchmarks.benchmark_case import Setting, worst

SETTING = Setting(torch.device("cpu"), torch.float32)


@pytest.fixture
def recorded(toys, monkeypatch):
    """The stand-ins; gives the number of captures and replays."""
    counted = {"captures": 0, "replays": 0}

    class Graph:
        def replay(self):
            counted["replays"] += 1

    @contextlib.contextmanager
    def capture(graph):
        counted["captures"] += 1
        yield

    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, value in {
        "CUDAGraph": Graph,
        "graph": capture,
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": contextlib.nullcontext,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return counted


def pair(toys):
    model = models.build(models.sizes(toys["step"]), "tape", "sdpa", SETTING)
    return model, models.tokens(toys["step"], SETTING.device)


def test_a_graph_is_captured_once_and_replayed(toys, recorded):
    model, ids = pair(toys)
    runner = step._graphed(model, ids)
    assert recorded == {"captures": 0, "replays": 0}
    for _ in range(3):
        runner.run()
    assert recorded == {"captures": 1, "replays": 3}
    assert model.training


def test_its_gradients_are_compared_like_any_other_s(toys, recorded):
    model, ids = pair(toys)
    truth = models.truth(model, models.first_tokens(ids))
    found = step._graphed(model, ids).outcome()
    _, error, allowed = worst(found, truth)
    assert error <= allowed
    assert any(".position.contract" in name for name in found)
    assert all(weight.grad is None for weight in model.parameters())


def test_a_model_trains_on_when_its_capture_fails(toys, recorded, monkeypatch):
    def refuse(graph):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    model, ids = pair(toys)
    with pytest.raises(RuntimeError, match="capturing"):
        step._graphed(model, ids).run()
    assert model.training
