"""A GPT-J through the whole training room: assembled from a folder, trained with PoSE, scored, saved, loaded again."""

import json

import pytest
import torch
from transformers import GPTJConfig, GPTJForCausalLM

from tape_ds import ScaledGPTJForCausalLM
from tape_ds.checkpoint.trained import load_trained
from tape_ds.errors import UserError
from tape_ds.training.execution import execute
from tape_ds.training.runs import extension
from tape_ds.training.runs.assembly import assemble
from tests.training.runs.test_extension import model as words  # noqa: F401  (a folder with a tokenizer, and text beside it)
from tests.training.runs.test_extension import recipe

SIZES = {
    "vocab_size": 61,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "rotary_dim": 4,
    "initializer_range": 0.15,
}
POSE = {
    "position_encoding": "rope",
    "rope_parameters": '{"rope_type": "yarn", "factor": 2.0}',
    "pose_chunks": 2,
    "window": 16,
    "eval_span": 16,
    "max_steps": 2,
    "learning_rate": 0.01,
    "report_to": "none",
    "use_cpu": "true",
}


@pytest.fixture
def gptj(words):  # noqa: F811
    torch.manual_seed(1)
    (words / "model.safetensors").unlink()
    GPTJForCausalLM(GPTJConfig(**SIZES)).save_pretrained(words)
    (words.parent / "held.txt").write_text("two one four three six five eight seven\n" * 20)
    return words


def executed(folder, **changes):
    """The run's folder, once it is over, and what was prepared."""
    evaluated = {"eval_data": f"text:{folder.parent}/held.txt"}
    prepared = assemble(recipe(folder, **(POSE | evaluated | changes)))
    assert execute(prepared) == 0
    return prepared


@pytest.mark.parametrize("method", ["lora", "full", "norms"])
def test_trained_with_pose_scored_and_loaded_again(gptj, method):
    prepared = executed(gptj, method=method, **({"train_embeddings": True} if method == "full" else {}))
    scores = json.loads((prepared.output / extension.SCORES).read_text())
    assert list(scores) == ["untouched", "yarn x2, untrained", f"{method}, trained"]
    means = [part["held.txt"]["mean"] for part in scores.values()]
    assert len(set(means)) == 3 and means[2] < means[1]
    assert all(part["held.txt"]["counts"] == [15, 16, 16, 16] for part in scores.values())
    again, ids = load_trained(prepared.output / "trained").eval(), torch.randint(3, 15, (1, 40))
    bare = again.get_base_model() if method == "lora" else again
    assert isinstance(bare, ScaledGPTJForCausalLM) and bare.config.rope_parameters["factor"] == 2.0
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, prepared.model.eval()(ids).logits, rtol=0, atol=1e-6)
    if method == "norms":
        assert {name.rsplit(".", 2)[-2] for name in prepared.names} == {"ln_1", "ln_f"}


@pytest.mark.parametrize("method", ["linear", "ntk", "yarn"])
def test_scaled_without_training(gptj, method):
    prepared = executed(gptj, method=method, rope_parameters="{}")
    scores = json.loads((prepared.output / extension.SCORES).read_text())
    assert list(scores) == ["untouched", f"{method} x2, untrained"]
    again = load_trained(prepared.output / "trained")
    assert isinstance(again, ScaledGPTJForCausalLM) and again.config.rope_parameters["rope_type"] == method
    assert again.config.rope_parameters["factor"] == 2.0


@pytest.mark.parametrize(
    "changes, wrong",
    [
        ({"method": "tape", "position_encoding": "tape"}, "whose positions are RoPE"),
        ({"method": "longlora", "group_tokens": 4}, "does not attend in groups"),
        ({"method": "dynamic", "rope_parameters": "{}"}, "not computed for GPT-J"),
        (
            {"method": "lora", "lora_targets": "o_proj"},
            "'o_proj': no linear map of a gptj block\n.*did you mean 'out_proj'",
        ),
    ],
)
def test_what_a_gptj_has_not_is_refused(gptj, changes, wrong):
    with pytest.raises(UserError, match=wrong):
        assemble(recipe(gptj, **(POSE | changes)))
