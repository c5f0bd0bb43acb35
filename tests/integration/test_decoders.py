"""Decoders of transformers, extended by their own classes on two ranks under ZeRO: resumed, exported, scored."""

import json
from itertools import product

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tape_ds.checkpoint import merging, source_model
from tape_ds.checkpoint.trained import load_trained
from tape_ds.export import folder
from tests.integration.conftest import forked
from tests.training.runs.test_extension_decoders import FAMILIES, HYBRIDS, SIZES

DAILY = {("qwen3_moe", "full", "zero3")}
CASES = [
    pytest.param(*case, marks=() if case in DAILY else pytest.mark.slow, id="-".join(case))
    for case in product([*FAMILIES, *HYBRIDS], ("lora", "full"), ("zero2", "zero3"))
]


def made(place, tiny, family):
    """A tiny model of a family, with the tokenizer of ``tiny``."""
    torch.manual_seed(1)
    sizes = (
        SIZES | {"vocab_size": 300, "max_position_embeddings": 64} | (FAMILIES | HYBRIDS)[family]
    )
    AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes)).save_pretrained(place)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (place / file).write_bytes((tiny / "model" / file).read_bytes())
    return place


def run(tiny, model, output, method, stage, **changes):
    """Extend it with PoSE; the run's folder."""
    fields = {
        "model": model,
        "method": method,
        "target_length": 256,
        "rope_parameters": '{"rope_type": "auto"}',
        "train_data": f"text:{tiny}/text.txt",
        "eval_data": f"text:{tiny}/held_out.txt",
        "passkey_lengths": "[256]",
        "passkey_trials": 1,
        "data_cache": tiny / "cache",
        "window": 32,
        "pose_chunks": 2,
        "eval_length": 128,
        "eval_span": 64,
        "max_steps": 6,
        "save_steps": 3,
        "logging_steps": 1,
        "global_batch_size": 4,
        "learning_rate": 0.01,
        "activation_checkpointing": "true",
        "bf16": "false",
        "deepspeed": stage,
        "output_dir": output,
        "train_embeddings": "true",
    }
    words = [
        part for name, value in (fields | changes).items() for part in (f"--{name}", str(value))
    ]
    ended = forked("launchers/extend_llama.py", *words)
    assert ended.code == 0, ended.output[-4000:]
    return output


def packed(tiny, place, family):
    """Rows of documents of many lengths, so that the ranks' rows are split differently."""
    text = (tiny / "text.txt").read_text()
    (place / "texts").mkdir()
    for number in range(60):
        (place / "texts" / f"{number}.txt").write_text(
            text[number * 50 :][: 20 + number * 37 % 400]
        )
    scaling = {} if family == "nemotron_h" else {"rope_type": "auto"}
    return {
        "train_data": f"text:{place}/texts/*",
        "pose_chunks": 1,
        "window": 256,
        "min_document_tokens": 2,
        "rope_parameters": json.dumps(scaling),
    }


def losses(output):
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines]


@pytest.mark.parametrize("family, method, stage", CASES)
def test_a_family_is_extended_resumed_and_exported(tiny, tmp_path, family, method, stage):
    model = made(tmp_path / "model", tiny, family)
    changes = packed(tiny, tmp_path, family) if family in HYBRIDS else {}
    whole = run(tiny, model, tmp_path / "whole", method, stage, **changes)
    changes |= {"resume_from_checkpoint": whole / "checkpoint-3"}
    rest = run(tiny, model, tmp_path / "rest", method, stage, **changes)
    assert losses(rest) == losses(whole)[3:]
    results = json.loads((whole / "results" / "run.json").read_text())
    variants = [f"{method}, trained", "untouched"]
    if family != "nemotron_h":
        variants.append("yarn x4, untrained")
    assert sorted(results["figures"]["loss_by_position"]) == variants
    assert sorted({row["variant"] for row in results["figures"]["passkey"]}) == variants
    ids = torch.randint(3, 300, (1, 120), generator=torch.Generator().manual_seed(0))
    source = source_model.find(str(whole))
    folder.write(source, tmp_path / "exported", "tiny")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()
    with torch.no_grad():
        expected = load_trained(whole / "trained").eval()(ids).logits
        torch.testing.assert_close(
            merging.merge(whole / "trained")(ids).logits, expected, rtol=0, atol=2e-5
        )
        torch.testing.assert_close(plain(ids).logits, expected, rtol=0, atol=2e-5)
    base = AutoModelForCausalLM.from_pretrained(model).state_dict()
    unchanged = [
        name for name, tensor in plain.state_dict().items() if torch.equal(tensor, base[name])
    ]
    if method == "full":  # every parameter got a gradient, but for the routers, which are frozen
        assert all("mlp.gate." in name for name in unchanged)
