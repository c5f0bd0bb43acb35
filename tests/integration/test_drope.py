"""RoPE dropped by the real launcher: trained at the native length, scored at twice that with larger scores."""

import json

import pytest
import torch

from tape_ds.checkpoint.trained import load_trained
from tape_ds.data import tokenizer as tokenizers
from tape_ds.models.changed_positions import evaluated_at
from tape_ds.scoring.losses import score_spans
from tests.integration.conftest import forked
from tests.integration.test_launchers import EXTEND, extension


def test_a_model_without_rope_is_trained_and_scored_as_it_is_used(tiny, tmp_path):
    """The untouched model by its RoPE, the trained one by the factor of 128 tokens."""
    changes = {
        "method": "drope",
        "window": 64,
        "pose_chunks": 1,
        "rope_parameters": "{}",
        "train_embeddings": "true",
    }
    options = {
        "position_options.score_scale": 0.412,
        "rope_parameters.original_max_position_embeddings": None,
    }
    given = extension(tiny, tmp_path, **changes, **options)
    ended = forked(EXTEND, *given, processes=1)
    assert ended.code == 0, ended.output[-4000:]
    figures = json.loads((tmp_path / "results" / "run.json").read_text())["figures"]
    assert figures["tokens"] == 6 * 8 * 64 and figures["native_length"] == 64
    model = load_trained(tmp_path / "trained").eval()
    assert model.config.position_encoding == "nope" and model.config.max_position_embeddings == 128
    assert model.config.position_options == {"score_scale": 0.412, "trained_length": 64}

    tokenizer = tokenizers.load_tokenizer(str(tiny / "model"), "model")
    ids = torch.tensor([tokenizer((tiny / "held_out.txt").read_text())["input_ids"][:128]])
    unscaled = score_spans(model, ids, 32).to_dict()
    with evaluated_at(model, 128):
        expected = score_spans(model, ids, 32).to_dict()
    assert list(figures["loss_by_position"]) == ["untouched", "drope, trained"]
    (found,) = figures["loss_by_position"]["drope, trained"].values()
    assert found["nll"] == pytest.approx(expected["nll"], abs=1e-4)
    assert expected["nll"] != pytest.approx(unscaled["nll"], abs=1e-4)
