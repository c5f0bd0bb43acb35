"""RoPE dropped by the real launcher: trained at the native length, scored at twice that with larger scores."""

import json

import pytest
import torch

from tape_ds.checkpoint.trained import load_trained
from tape_ds.data import tokenizer as tokenizers
from tape_ds.errors import UserError
from tape_ds.models import convert
from tape_ds.models.llama import evaluated_at
from tape_ds.scoring.losses import score_spans
from tests.integration.conftest import forked
from tests.integration.test_extend_llama import SCRIPT, arguments


@pytest.fixture(scope="module")
def output(tiny, tmp_path_factory):
    """One process; 64 positions become 128."""
    output = tmp_path_factory.mktemp("drope")
    words = arguments(tiny, output)
    for name in ("rope_parameters.original_max_position_embeddings", "window"):
        at = words.index(f"--{name}")
        del words[at : at + 2]
    words += ["--window", "64", "--method", "drope", "--rope_parameters", "{}", "--pose_chunks", "1"]
    words += ["--train_embeddings", "true"]  # the demo leaves them out, and this method trains all
    words += ["--position_options.score_scale", "0.412"]
    ended = forked(SCRIPT, *words, processes=1)
    assert ended.code == 0, ended.output[-4000:]
    return output


def test_rows_have_the_native_length_and_the_scale_is_kept(output):
    result = json.loads((output / "results" / "run.json").read_text())
    assert result["figures"]["tokens"] == 6 * 8 * 64 and result["figures"]["native_length"] == 64
    config = load_trained(output / "trained").config
    assert config.position_encoding == "nope" and config.max_position_embeddings == 128
    assert config.position_options == {"score_scale": 0.412, "trained_length": 64}
    losses = [json.loads(line)["loss"] for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0]


def test_it_is_scored_as_it_is_used_at_the_target_length(output, tiny):
    """The untouched model by its RoPE, the trained one by the factor of 128 tokens."""
    scored = json.loads((output / "results" / "run.json").read_text())["figures"]["loss_by_position"]
    assert list(scored) == ["untouched", "drope, trained"]
    tokenizer = tokenizers.load_tokenizer(str(tiny / "model"), "model")
    ids = torch.tensor([tokenizer((tiny / "held_out.txt").read_text())["input_ids"][:128]])
    model = load_trained(output / "trained").eval()
    unscaled = score_spans(model, ids, 32).to_dict()
    with evaluated_at(model, 128):
        expected = score_spans(model, ids, 32).to_dict()
    (found,) = scored["drope, trained"].values()
    assert found["nll"] == pytest.approx(expected["nll"], abs=1e-4)
    assert expected["nll"] != pytest.approx(unscaled["nll"], abs=1e-4)


def test_no_plain_llama_comes_of_it(output):
    with pytest.raises(UserError, match="not expressible as a Llama"):
        convert.to_plain(load_trained(output / "trained"))
