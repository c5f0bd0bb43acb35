"""The folders that engines are given, and what transformers computes of them."""

import json

import numpy as np
import torch
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tools.engines import cases


def test_a_table_is_that_of_a_text_alone(tmp_path, monkeypatch):
    """transformers' dynamic scaling keeps the base of a longer text for the next one that is scaled: tables of 257 and
    600 tokens were once taken one after another, and an engine that was right at 257 looked wrong."""
    case = cases.Case("llama", "dynamic")
    monkeypatch.setattr(cases, "cases", lambda: [case])
    # the longest one first
    monkeypatch.setattr(cases, "TABLE_LENGTHS", {"long": 600, "edge": 257, "short": 100})
    cases.write(tmp_path)
    folder = tmp_path / case.name
    tables = np.load(folder / "tables.npz")
    assert set(np.load(folder / "transformers.npz").files) == {"short", "long"}
    assert {name: len(tables[name]) for name in tables.files} == {
        "short": 100,
        "long": 600,
        "edge": 257,
    }
    config = AutoConfig.from_pretrained(folder)
    for name in tables.files:
        positions = torch.arange(len(tables[name]))[None]
        cosines, sines = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
        alone = torch.cat([cosines[0, :, :32], sines[0, :, :32]], -1).numpy()
        assert np.array_equal(tables[name], alone), name
    assert json.loads((tmp_path / "prompts.json").read_text())["edge"] == cases.prompt("long")[:257]
