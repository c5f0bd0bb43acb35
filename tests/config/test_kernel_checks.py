"""Kernels that a recipe insists on: ``liger`` and its three words, attention backends, and machines without them."""

from pathlib import Path

import pytest
import torch
import yaml

from tape_ds.methods import liger
from tests.config import loads
from tests.config.helpers import problems_of, write


@pytest.fixture
def able(monkeypatch):
    """A machine with CUDA and Liger, as far as the check asks."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        liger, "why_not", lambda device: None if device.type == "cuda" else f"no {device.type}"
    )
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)


@pytest.mark.parametrize(
    "load", [loads.extension, loads.pretraining], ids=["extension", "pretraining"]
)
def test_on_is_refused_with_the_reason_and_auto_asks_for_nothing(load, monkeypatch):
    monkeypatch.setattr(
        liger, "why_not", lambda device: "the package liger-kernel is not installed"
    )
    found, message = problems_of("--liger", "on", load=load)
    assert set(found) == {"liger"} and "the package liger-kernel is not installed" in message
    assert load([], world_size=1).model.liger == "auto"


@pytest.mark.parametrize("how", ["use_cpu", "DS_ACCELERATOR"])
def test_on_while_the_cpu_is_chosen(how, able, monkeypatch):
    if how == "DS_ACCELERATOR":
        monkeypatch.setenv(how, "cpu")
    found, message = problems_of(
        "--recipe", write(liger="on", **({how: True} if how == "use_cpu" else {}))
    )
    assert set(found) == {"liger"} and "no cpu" in message


@pytest.mark.parametrize(
    "word, meant", [("on", "on"), ("off", "off"), ("'on'", "on"), ("auto", "auto")]
)
def test_bare_words_of_yaml(word, meant, able):
    """YAML 1.1 reads a bare on and off as truth values; written back, they are quoted."""
    text = yaml.safe_dump(yaml.safe_load(Path(write()).read_text())) + f"liger: {word}\n"
    recipe = loads.extension(["--recipe", write(text=text)], world_size=1)
    assert recipe.model.liger == meant
    assert (
        loads.extension(["--recipe", write(text=recipe.to_yaml())], world_size=1).model.liger
        == meant
    )


@pytest.mark.parametrize("backend", ["flash", "flex"])
def test_a_backend_that_this_machine_lacks(backend, monkeypatch):
    """Known before a model is loaded; the environment's choice is checked in place of the recipe's."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    found, message = problems_of("--attention_backend", backend)
    assert set(found) == {"attention_backend"} and "needs a CUDA device" in message
    for name in (backend, "spda"):
        monkeypatch.setenv("TAPE_DS_ATTENTION", name)
        assert set(problems_of()[0]) == {"TAPE_DS_ATTENTION"}
    monkeypatch.setenv("TAPE_DS_ATTENTION", backend)
    assert loads.extension([], world_size=1, elsewhere=True).elsewhere, (
        "another machine may have it"
    )
    monkeypatch.setenv("TAPE_DS_ATTENTION", "sdpa")
    assert (
        loads.extension(["--attention_backend", backend], world_size=1).model.attention_backend
        == backend
    )
