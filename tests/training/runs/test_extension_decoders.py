"""Decoders of transformers through the whole training room, by their own classes or GPT-J's scaled one: assembled,
trained with PoSE, scored, saved, loaded again, exported."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPTJConfig, GPTJForCausalLM

from tape_ds import ScaledGPTJForCausalLM
from tape_ds.checkpoint import source_model
from tape_ds.checkpoint.trained import load_trained
from tape_ds.errors import UserError
from tape_ds.export import folder
from tape_ds.models import hybrids
from tape_ds.targets.find import find_target
from tape_ds.training.execution import execute
from tape_ds.training.runs import extension
from tests.training.runs.helpers import assemble
from tests.training.runs.test_extension import TEXT, recipe
from tests.training.runs.test_extension import model as words  # noqa: F401  (a folder with a tokenizer, and text next to it)

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.15,
}
WINDOWS = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 12,
}
FAMILIES = {
    "gemma3_text": WINDOWS | {"head_dim": 8},
    "phi3": {},
    "olmo2": {},
    "granite": {"logits_scaling": 4.0, "residual_multiplier": 0.5},
    "smollm3": {"no_rope_layers": [1, 1, 0]},
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 8,
    },
    "gpt_neox": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    },
    "mistral": {"sliding_window": 12},
}
"""What each computes that a Llama does not is reached within a text."""
_STATE = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_MAMBA = {
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "n_groups": 2,
    "chunk_size": 16,
}
HYBRIDS = {
    "qwen3_5_text": _STATE
    | {"head_dim": 8, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    # without positions in attention
    "nemotron_h": _MAMBA
    | {"head_dim": 8, "layer_types": ["linear_attention", "full_attention", "mlp"]},
}
POSE = {
    "rope_parameters": '{"rope_type": "yarn"}',
    "pose_chunks": 2,
    "window": 16,
    "eval_span": 16,
    "max_steps": 4,
    "learning_rate": 0.01,
    "report_to": "none",
    "use_cpu": "true",
}


@pytest.fixture(params=FAMILIES)
def family(request, words):  # noqa: F811
    torch.manual_seed(1)
    (words / "model.safetensors").unlink()
    config = AutoConfig.for_model(request.param, **SIZES, **FAMILIES[request.param])
    AutoModelForCausalLM.from_config(config).save_pretrained(words)
    (words.parent / "held.txt").write_text(TEXT[: len(TEXT) // 2])
    return words


def executed(base, method, **changes):
    """What was prepared, once its run is over; its scores have become better."""
    changes |= {"train_embeddings": True} if method == "full" else {}
    evaluated = {"eval_data": f"text:{base.parent}/held.txt", "method": method}
    prepared = assemble(recipe(base, **(POSE | evaluated | changes)))
    assert execute(prepared) == 0
    scores = json.loads((prepared.output / extension.SCORES).read_text())
    assert list(scores) == ["untouched", "yarn x2, untrained", f"{method}, trained"]
    means = [part["held.txt"]["mean"] for part in scores.values()]
    assert len(set(means)) == 3 and means[2] < means[1]
    return prepared


@pytest.mark.parametrize("method", ["lora", "full"])
def test_trained_with_pose_scored_loaded_again_and_exported(family, method, tmp_path):
    prepared = executed(family, method, activation_checkpointing="true")
    again, ids = load_trained(prepared.output / "trained").eval(), torch.randint(3, 15, (1, 40))
    source = source_model.find(str(prepared.output))
    assert folder.is_plain(source)
    folder.write(source, tmp_path / "exported", "tiny")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()
    assert type(plain).__module__.startswith("transformers.") and type(plain) is not type(again)
    with torch.no_grad():
        trained = prepared.model.eval()(ids).logits
        torch.testing.assert_close(again(ids).logits, trained, rtol=0, atol=1e-6)
        torch.testing.assert_close(plain(ids).logits, trained, rtol=0, atol=2e-5)


@pytest.fixture
def gptj(words):  # noqa: F811
    torch.manual_seed(1)
    (words / "model.safetensors").unlink()
    sizes = {"n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}
    GPTJForCausalLM(GPTJConfig(vocab_size=61, initializer_range=0.15, **sizes)).save_pretrained(
        words
    )
    (words.parent / "held.txt").write_text("two one four three six five eight seven\n" * 20)
    return words


@pytest.mark.parametrize("method", ["lora", "full"])
def test_gptj_is_trained_with_pose_scored_and_loaded_again(gptj, method):
    prepared = executed(gptj, method, position_encoding="rope")
    again, ids = load_trained(prepared.output / "trained").eval(), torch.randint(3, 15, (1, 40))
    bare = again.get_base_model() if method == "lora" else again
    assert isinstance(bare, ScaledGPTJForCausalLM) and bare.config.rope_parameters["factor"] == 2.0
    with torch.no_grad():
        torch.testing.assert_close(
            again(ids).logits, prepared.model.eval()(ids).logits, rtol=0, atol=1e-6
        )


def test_gptj_takes_no_other_encoding_and_no_dynamic_scaling(gptj):
    with pytest.raises(UserError, match="whose positions are RoPE"):
        assemble(recipe(gptj, **(POSE | {"method": "tape", "position_encoding": "tape"})))
    with pytest.raises(UserError, match="not computed for GPT-J"):
        assemble(recipe(gptj, method="dynamic", window=16))


@pytest.mark.parametrize("family", ["gemma3_text"], indirect=True)
@pytest.mark.parametrize(
    "changes, wrong",
    [
        ({"method": "tape"}, "extended by its own class"),
        ({"method": "longlora"}, "does not attend in groups"),
        ({"method": "full", "train_router": "true"}, "has no router"),
        (
            {"method": "lora", "lora_targets": "c_attn"},
            "'c_attn': no linear map of a gemma3_text block",
        ),
        ({"method": "lora", "attention_backend": "triton"}, "attention_backend"),
    ],
)
def test_what_a_family_has_not_is_refused(family, changes, wrong):
    with pytest.raises(UserError, match=wrong):
        assemble(recipe(family, **(POSE | changes)))


def test_rope_is_dropped_from_a_hybrid(words, tmp_path, capsys):  # noqa: F811
    """As Olmo Hybrid's long stage does, on texts longer than the native length. The untouched model has its RoPE."""
    torch.manual_seed(1)
    (words / "model.safetensors").unlink()
    layers = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    config = AutoConfig.for_model("olmo_hybrid", **(SIZES | _STATE | layers | rope))
    base = AutoModelForCausalLM.from_config(config)
    base.save_pretrained(words)
    held = f"text:{words.parent}/held.txt"
    (words.parent / "held.txt").write_text(TEXT[: len(TEXT) // 2])
    changes = {"method": "drope", "window": 64, "eval_data": held, "max_steps": 6}
    changes |= {"learning_rate": 0.01, "eval_span": 16, "rope_parameters": "{}"}
    with pytest.raises(UserError, match="position_options"):
        assemble(recipe(words, **changes, position_options='{"score_scale": 0.2}'))
    prepared = assemble(recipe(words, **changes))
    capsys.readouterr()
    assert execute(prepared) == 0
    assert "RoPE is dropped: attention without positions" in capsys.readouterr().out

    scores = json.loads((prepared.output / extension.SCORES).read_text())
    assert list(scores) == ["untouched", "drope, trained"]
    ids = torch.tensor(prepared.tokenizer((words.parent / "held.txt").read_text())["input_ids"])[
        :64
    ]
    with torch.no_grad():
        losses = torch.nn.functional.cross_entropy(base(ids[None]).logits[0, :-1], ids[1:])
    untouched = scores["untouched"]["held.txt"]["mean"]
    assert untouched == pytest.approx(float(losses), rel=1e-5)
    assert scores["drope, trained"]["held.txt"]["mean"] < untouched

    folder.write(source_model.find(str(prepared.output)), tmp_path / "exported", "tiny")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()
    assert plain.model.rotary_emb is None
    with torch.no_grad():
        wanted = prepared.model.eval()(ids[None]).logits
        torch.testing.assert_close(plain(ids[None]).logits, wanted, rtol=0, atol=2e-5)


def test_attention_without_positions_sees_no_skip(words):  # noqa: F811
    """PoSE trained a Nemotron-H, whose attention has no positions, on texts with holes."""
    config = AutoConfig.for_model("nemotron_h", **(SIZES | HYBRIDS["nemotron_h"]))
    (words / "config.json").write_text(config.to_json_string(use_diff=False))
    with pytest.raises(UserError, match="has no positions to drop") as caught:
        find_target(recipe(words, method="drope", rope_parameters="{}"))
    assert caught.value.problems[0].remedy == "method: lora, full, norms"
    changes = {"method": "full", "window": 32, "pose_chunks": 2}
    with pytest.raises(UserError, match="has no positions, and would see no skip") as caught:
        find_target(recipe(words, **changes))
    (problem,) = caught.value.problems
    assert problem.field == "pose_chunks" and problem.remedy.startswith("give pose_chunks: 1")
    config = AutoConfig.for_model("lfm2", **(SIZES | HYBRIDS["lfm2"]))
    (words / "config.json").write_text(config.to_json_string(use_diff=False))
    chosen = recipe(words, **changes)
    target = find_target(chosen)
    assert "a state counts tokens" in hybrids.lines(target.config, chosen.skipped_content)["PoSE"]
    assert recipe(words, method="full").skipped_content is None
