"""What a fine-tuning run assembles, trains and scores, as far as no engine is needed."""

import json
import math
import shutil

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from tape_ds import TapeForCausalLM, encodings
from tape_ds.data.order import collate
from tape_ds.errors import Problem, UserError
from tape_ds.targets.base import BaseModel
from tape_ds.training.run import build_trainer
from tape_ds.training.runs import assembly, finetuning
from tests import hub_cache
from tests.config.loads import scrolls as load
from tests.data.conftest import build_tokenizer
from tests.models.helpers import tiny_config
from tests.training.runs.helpers import assemble, flags, refusals

PLACES = ["mill", "harbour", "archive", "quarry"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Folder with a data set (questions of very unequal length, answers of 2 to 8 tokens), an empty recipe, and models:
    ``llama`` and, for each of some encodings, one as pretraining leaves it."""
    folder = tmp_path_factory.mktemp("place")
    lines = []
    for number in range(24):
        text = f"Which number?\n\n{' '.join(PLACES) * (number % 5)} {number}"
        lines.append(
            {"id": str(number), "input": text, "output": "number " * (number % 3) + str(number)}
        )
    (folder / "data" / "qasper").mkdir(parents=True)
    for split, part in {"train": lines[:16], "validation": lines[16:]}.items():
        (folder / "data" / "qasper" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, part)))
    (folder / "empty.yaml").write_text("seed: 7\n")
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 1}
    llama = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, **sizes
    )
    save(LlamaForCausalLM(llama), folder / "llama")
    for name in ("tape", "randpe", "alibi"):
        save(TapeForCausalLM(tiny_config(position_encoding=name, **sizes)), folder / name)
    yarn = encodings.options_of("yarn", {}).default_rope_parameters(32)
    save(
        TapeForCausalLM(tiny_config(position_encoding="yarn", rope_parameters=yarn, **sizes)),
        folder / "yarn",
    )
    return folder


def save(model, folder):
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)


def recipe(place, model="llama", **changes):
    fields = {
        "model": model if "/" in str(model) else place / model,
        "dataset": "qasper",
        "data_dir": place / "data",
        "data_cache": place / "cache",
        "max_tokens": 80,
        "answer_tokens": 8,
        "eval_examples": 4,
        "global_batch_size": 8,
        "max_steps": 2,
        "learning_rate": 0.01,
        "deepspeed": "null",
        "force": "true",  # sequences are longer than the models were made for
        "output_dir": place / "run",
    }
    return load(["--recipe", str(place / "empty.yaml"), *flags(fields | changes)])


def one_step(place, output, **changes):
    """The logged loss and gradient's norm of one step, and the weights after it."""
    run = assemble(recipe(place, max_steps=1, eval_examples=0, output_dir=output, **changes))
    trainer = build_trainer(run)
    trainer.train()
    logged = next(entry for entry in trainer.state.log_history if "loss" in entry)
    return run, logged, {name: weight.clone() for name, weight in run.model.named_parameters()}


@pytest.mark.slow
def test_every_target_of_a_step_weighs_the_same_however_the_batch_is_cut(place, tmp_path):
    """A mean of micro-batches' means would favour the targets of short answers: loss and gradient are those of the
    whole batch, the mean over all of its targets, computed here directly."""
    run = assemble(recipe(place, eval_examples=0))
    batch = collate([run.sequences[index] for index in range(8)])
    targets = (batch["labels"] != -100).sum(dim=1)
    assert len(set(targets.tolist())) > 1
    logits = run.model.eval()(**batch, skip_logits=False).logits
    loss = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=-100
    )
    loss.backward()
    norm = torch.nn.utils.get_total_norm([weight.grad for weight in run.model.parameters()])
    expected = float(loss.detach())
    found = {
        each: one_step(place, tmp_path / str(each), per_device_train_batch_size=each)
        for each in (8, 2, 1)
    }
    for each, (_, logged, weights) in found.items():
        assert logged["loss"] == pytest.approx(expected, rel=1e-5), each
        assert logged["grad_norm"] == pytest.approx(float(norm), rel=1e-4), each
        for name, weight in weights.items():
            assert torch.allclose(weight, found[8][2][name], atol=2e-4), (each, name)


@pytest.mark.parametrize("model", ["llama", "tape", "randpe", "alibi"])
def test_a_model_keeps_its_encoding_and_its_weights(place, model):
    """Sequences are longer than any of these was made for, which its configuration then has."""
    run = assemble(recipe(place, model))
    assert run.config.position_encoding == ("rope" if model == "llama" else model)
    assert run.config.max_position_embeddings == 80
    ids = torch.tensor([[0, 5, 9, 200, 31]])
    before = LlamaForCausalLM if model == "llama" else TapeForCausalLM
    before = before.from_pretrained(place / model).eval()
    if model != "randpe":  # which spreads its range over the length it is made for
        torch.testing.assert_close(
            run.model.eval()(ids).logits, before(ids).logits, atol=1e-5, rtol=1e-5
        )
    assert set(run.names) == {name for name, _ in run.model.named_parameters()}


def test_sequences_beyond_the_native_length_are_refused_where_rope_has_no_scaling(place):
    found = problems(place, force="false", output_dir=place / "refused")["max_tokens"]
    assert (
        "12 of 16 sequences are longer than the model's native length, 32 tokens (the longest: 80)"
        in found.wrong
    )
    assert assemble(recipe(place, "yarn", force="false")).config.max_position_embeddings == 80


def test_a_length_that_config_json_leaves_open_is_asked_for(place, tmp_path):
    """LongAlpaca's config.json: linear scaling, and the length from before it."""
    shutil.copytree(place / "llama", tmp_path / "open")
    file = tmp_path / "open" / "config.json"
    config = json.loads(file.read_text())
    config["rope_parameters"] = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    file.write_text(json.dumps(config))
    found = problems(place, model=tmp_path / "open", force="false", output_dir=tmp_path / "refused")
    assert "max_sequence_length: 128" in found["max_tokens"].remedy
    file.write_text(json.dumps(config | {"max_sequence_length": 128}))
    assemble(recipe(place, tmp_path / "open", force="false"))


YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 32_768,
}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "original_max_position_embeddings": 8_192,
}
LLAMA_3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("length", "rope", "expected"),
    [
        (4096, {"rope_type": "default", "rope_theta": 1e4}, 4096),
        # as Qwen2.5's are published: the window's length, times the factor
        (
            32_768,
            YARN,
            131_072,
        ),
        (40_960, YARN, 131_072),  # Qwen3's, with the scaling that its model card asks for
        (131_072, LLAMA_3, 131_072),
        (4096, {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, math.inf),
    ],
)
def test_the_length_that_a_base_reaches_with_its_own_scaling(length, rope, expected):
    native = LlamaConfig(
        hidden_size=32, num_attention_heads=4, max_position_embeddings=length, rope_parameters=rope
    )
    assert finetuning.reach(BaseModel("base", "", native), native) == expected


def test_the_end_of_an_answer_is_an_end_of_generation(place, tmp_path):
    """Also where the base's settings name another token than its tokenizer does."""
    shutil.copytree(place / "llama", tmp_path / "model")
    GenerationConfig(eos_token_id=7).save_pretrained(tmp_path / "model")
    assert assemble(recipe(place, tmp_path / "model")).model.generation_config.eos_token_id == [
        7,
        1,
    ]
    endless = build_tokenizer()
    endless.eos_token = None
    endless.save_pretrained(tmp_path / "model")
    assert "no EOS" in problems(place, model=tmp_path / "model")["model"].wrong


def test_an_encoding_that_is_scaled_at_a_length_is_so_trained(place):
    """``yarn`` was trained on plain angles for 32 tokens; sequences of 80 are read at the angles that it has for 80."""
    run = assemble(recipe(place, "yarn"))
    assert run.config.rope_parameters["factor"] == pytest.approx(80 / 32)
    assert encodings.config_at(run.config, 80) is run.config


def problems(place, **changes):
    return refusals(recipe(place, **changes))


def test_no_weights_are_fetched_for_answers_that_could_not_end(place, tmp_path, monkeypatch):
    name = hub_cache.without_weights(monkeypatch, tmp_path, place / "llama")
    settings = tmp_path / "small" / "tokenizer_config.json"
    content = json.loads(settings.read_text())
    settings.write_text(json.dumps({**content, "eos_token": None}))
    (problem,) = problems(place, model=name).values()
    assert "no EOS token" in problem.wrong


def test_a_run_that_does_not_fit_is_refused_before_its_text_is_tokenised(place, monkeypatch):
    """It came after hours of it."""
    monkeypatch.setattr(
        assembly.search, "refusal", lambda *_: [Problem("memory", "1 GiB", "too little", "more")]
    )
    monkeypatch.setattr(finetuning.ScrollsTuning, "tokenise", lambda *_: pytest.fail("tokenised"))
    with pytest.raises(UserError, match="too little"):
        assemble(recipe(place, force="false"))
