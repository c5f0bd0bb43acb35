"""What an extension run assembles, as far as no engine is needed."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast

from tape_ds import TapeForCausalLM
from tape_ds.errors import UserError
from tape_ds.models.files import weight_files
from tape_ds.training import execution
from tape_ds.training.run import build_trainer
from tests import hub_cache
from tests.config.loads import extension as load
from tests.integration.conftest import make_tiny
from tests.models.helpers import randomised, tiny_config, tokens
from tests.training.runs.helpers import assemble, complete, flags, refusals

TEXT = "one two three four five six seven eight nine ten eleven twelve\n" * 60


@pytest.fixture
def model(tmp_path) -> Path:
    """A tiny rope model with a tokenizer of words, and text next to it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = sorted(set(TEXT.split()))
    tokenizer = Tokenizer(
        models.WordLevel(
            {word: 3 + i for i, word in enumerate(words)} | {"<s>": 0}, unk_token="<s>"
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(1)
    TapeForCausalLM(tiny_config(encoding="rope")).save_pretrained(tmp_path / "model")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<s>").save_pretrained(
        tmp_path / "model"
    )
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "model"


def recipe(model, /, **changes):
    fields = {
        "model": model,
        "method": "tape",
        "target_length": 64,
        "eval_length": 64,
        "rope_parameters": "{}",
        "train_data": f"text:{model.parent}/text.txt",
        "eval_data": "",
        "passkey_lengths": "[]",
        "data_cache": model.parent / "cache",
        "window": 16,
        "pose_chunks": 1,
        "global_batch_size": 4,
        "deepspeed": "null",
        "bf16": "false",
        "output_dir": model.parent / "run",
    }
    return load(flags(fields | changes))


def test_epochs_are_counted_once(model):
    """The sequences served hold every epoch; transformers ran its own epochs over all of them: 9 passes for 3."""
    prepared = assemble(recipe(model, max_steps=-1, num_train_epochs=3))
    passes = len(prepared.sequences) / len(prepared.sequences.stored)
    assert 3 <= passes < 3.2
    trainer = build_trainer(prepared)
    steps = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())[-1]
    assert steps == prepared.steps == len(prepared.sequences) // 4


def test_the_record_has_the_commit_and_the_weights_of_the_base(model, tmp_path, monkeypatch):
    """A hub id without a revision names another model tomorrow, and a path whatever is there."""
    (file,) = weight_files.files(model)
    own = assemble(recipe(model)).record
    assert (own.base, own.base_commit) == (str(model), None)
    assert own.base_files == {file.name: weight_files.fingerprint(file)}
    hub_cache.put(
        monkeypatch,
        tmp_path / "hub",
        "org/tiny",
        {"a" * 40: model},
        {"main": "a" * 40, "v1": "a" * 40},
    )
    for name in ("org/tiny", "org/tiny@v1"):
        run = assemble(recipe(model, model=name, output_dir=tmp_path / name))
        assert (run.record.base, run.record.base_commit) == ("org/tiny", "a" * 40)
        assert run.record.base_files == own.base_files and f"base.{file.name}" in run.identity


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_base_with_weights_that_are_no_numbers_is_refused(model, number):
    """Every step was skipped; a run shorter than nonfinite_limit ended well, and stored the damaged weights."""
    (file,) = weight_files.files(model)
    tensors = weight_files.read(file)
    damaged = {
        **tensors,
        "model.norm.weight": torch.full_like(tensors["model.norm.weight"], number),
    }
    save_file(damaged, file, metadata={"format": "pt"})
    found = refusals(recipe(model))
    assert list(found) == ["model"] and "NaN or infinite: model.norm.weight" in found["model"].wrong


def test_a_base_with_an_encoding_of_its_own_is_extended_as_it_is(model, tmp_path):
    """A merged TAPE model extended once more: its options were dropped where the recipe gave none, and "untouched" was
    said of it as a Llama, without its position updates."""
    torch.manual_seed(2)
    options = {"rank": 3, "start": "alibi"}
    base = randomised(TapeForCausalLM(tiny_config(position_options=options))).eval()
    base.save_pretrained(model)
    prepared = assemble(recipe(model))
    assert prepared.config.position_options == options and prepared.variants == {"untouched": None}
    ids = tokens(1, 20)
    with torch.no_grad():
        assert torch.equal(prepared.model.eval()(ids).logits, base(ids).logits)
    linear = '{"rope_type": "linear"}'
    scaled = assemble(recipe(model, rope_parameters=linear, target_length=128))
    assert scaled.variants == {"linear x2, untrained": None}
    assert assemble(recipe(model, position_options='{"rank": 3, "start": "rope"}')).variants == {
        "theta 10000, untrained": None
    }


def test_a_distilled_run_has_the_base_as_its_teacher(model):
    run = assemble(recipe(model, distill="true"))
    base = TapeForCausalLM.from_pretrained(model)
    ids = tokens(1, 20)
    with torch.no_grad():
        torch.testing.assert_close(run.teacher.model.eval()(ids).logits, base.eval()(ids).logits)


def test_held_out_documents_of_one_name_get_different_names(model):
    """Scores are kept by name: of two files called long.txt one vanished."""
    specs = []
    for folder in ("a", "b"):
        (model.parent / folder).mkdir()
        (model.parent / folder / "long.txt").write_text(folder + " " + TEXT)
        specs.append(f"text:{model.parent}/{folder}/*.txt")
    prepared = assemble(recipe(model, eval_data=",".join(specs)))
    names = [document.name for document in prepared.data.held_out]
    assert names == ["long.txt", f"long.txt ({specs[1]})"]


def test_passkeys_are_asked_of_every_method_alike(model):
    """Prompts follow from the seed and the recipe's lengths; no held-out text is needed for them."""
    asked = {"passkey_lengths": "400,500", "passkey_trials": 3, "seed": 5}
    one, other = (assemble(recipe(model, method=name, **asked)) for name in ("norms", "lora"))
    drawn = [(prompt.length, prompt.trial) for prompt in one.data.prompts]
    assert drawn == [(n, t) for n in (400, 500) for t in range(3)]
    assert one.data.prompts == other.data.prompts
    (asking,) = one.scoring()
    assert asking.file.name == "passkey.json" and list(asking.before) == ["untouched"]
    assert list(asking.after) == ["norms, trained"]
    with pytest.raises(UserError, match="without any filler"):
        assemble(recipe(model, passkey_lengths="5"))


def test_rulers_questions_are_asked_of_every_variant(model):
    """The same ones for every method; each variant's replies are scored by task and length."""
    asked = {"ruler_lengths": "1k", "ruler_tasks": "vt,fwe", "ruler_samples": 2}
    one, other = (assemble(recipe(model, method=name, **asked)) for name in ("norms", "lora"))
    assert [(each.task, each.length, each.number) for each in one.data.ruler] == [
        (task, 1024, number) for task in ("vt", "fwe") for number in (0, 1)
    ]
    assert one.data.ruler == other.data.ruler
    assert all(len(each.ids) + each.new_tokens <= 1024 for each in one.data.ruler)
    (asking,) = one.scoring()
    assert asking.file.name == "ruler.json" and list(asking.after) == ["norms, trained"]
    found = asking.measure(one.model, asking.before)
    assert [(row["task"], row["length"], row["samples"]) for row in found["untouched"]] == [
        ("vt", 1024, 2),
        ("fwe", 1024, 2),
    ]
    for row in found["untouched"]:
        assert row["score"] == sum(reply["score"] for reply in row["replies"]) / 2
        assert row["low"] <= row["score"] <= row["high"]
    asking.write(asking.file, found)
    assert asking.read(asking.file) == found


MISTAKES = {
    "a family without positions": ({"model_type": "bert"}, {}, "model"),
    "a model that has the length": ({"max_position_embeddings": 128}, {}, "target_length"),
    "a target that the base has not": ({}, {"lora_targets": ["query"]}, "lora_targets"),
    "an encoding that would be lost": ({"position_encoding": "fire"}, {}, "position_encoding"),
    "a folder with another run's files": ({}, {}, "output_dir"),
    "a tokenizer with more entries than rows": ({"vocab_size": 3}, {}, "model"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_no_weights_are_fetched_for_a_run_that_cannot_start(model, tmp_path, monkeypatch, mistake):
    """A base of the hub was downloaded whole, 140 GB of it, and the message came then."""
    config, fields, named = MISTAKES[mistake]
    name = hub_cache.without_weights(monkeypatch, tmp_path, model, **config)
    output = tmp_path / "run"
    if named == "output_dir":
        (output / "trained").mkdir(parents=True)
        (output / "trained" / "mine.txt").write_text("mine")
    assert list(
        refusals(recipe(model, model=name, output_dir=output, method="lora", **fields))
    ) == [named]


def test_what_the_model_a_library_and_the_device_refuse_is_one_message(
    model, tmp_path, monkeypatch
):
    """The model's part came after its download, and alone."""
    name = hub_cache.without_weights(monkeypatch, tmp_path, model)
    wrong = {"lora_targets": ["query"], "optim_args": "momentum=0.9"}
    with pytest.raises(UserError) as refused:
        execution.launch(recipe(model, model=name, method="lora", **wrong))
    assert {problem.field for problem in refused.value.problems} == {"lora_targets", "optim_args"}
    half = {"fp16": "true", "use_cpu": "true", "optim_args": "momentum=0.9"}
    with pytest.raises(UserError) as refused:
        execution.launch(recipe(model, model=name, method="lora", **half))
    assert {problem.field for problem in refused.value.problems} == {"fp16", "optim_args"}


def test_long_documents_are_read_again_and_said_so(model):
    """A text of 720 words and one of 12: three copies of the long one fill three times as many sequences."""
    (model.parent / "short.txt").write_text(
        "one two three four five six seven eight nine ten eleven twelve"
    )
    data = f"text:{model.parent}/*.txt"
    plain, more = (
        assemble(recipe(model, train_data=data, max_steps=2, **own))
        for own in ({}, {"upsample.100": "3"})
    )
    tokens = [sum(map(len, run.sequences.stored["input_ids"])) for run in (plain, more)]
    assert tokens == [720 + 12 - 12, 3 * 720]
    assert "long ones again: 4 documents, 2,172 tokens" in more.outline()["data"]


def test_weights_by_context_are_measured_before_weights_are_loaded(model, monkeypatch):
    """On the run's first sequences: of 16 tokens each, all of one text, a tail from 4 on."""
    run = assemble(recipe(model, target_weights="exact", max_steps=2))
    assert run.exact_weights.samples == 8 and run.exact_weights.histogram.longest == 15
    assert run.exact_weights.edges.tolist() == [4, 8] and run.exact_weights.weights.tolist() == [
        2.5,
        1.75,
    ]
    lines = run.target_weights
    assert lines["target weights"].startswith("exact: +1 in the mean from 4 tokens")
    assert "4 to 7 x2.5, from 8 x1.75" in lines["left context"]
    trainer = build_trainer(run)
    batch = trainer.data_collator([run.sequences[0]])
    assert batch["target_weights"][0].tolist() == [1.0] * 4 + [2.5] * 4 + [1.75] * 8
    plain = assemble(recipe(model, max_steps=2, output_dir=model.parent / "plain"))
    assert plain.exact_weights is None and plain.target_weights == {}

    (model.parent / "text.txt").write_text("one two three\n")
    monkeypatch.setattr("tape_ds.training.runs.extension.Extension.load_model", None)
    short = {"packing": "whole", "target_weights": "exact", "exact_tail": "8", "max_steps": 2}
    short["output_dir"] = model.parent / "other"
    with pytest.raises(UserError, match="no target of the first 8 sequences"):
        assemble(recipe(model, **short))


def test_generated_documents_train_across_jumps_with_scaled_queries(tmp_path):
    """In windows of 512 tokens: answers alone are targets, asked from positions far behind their records."""
    folder = make_tiny(tmp_path)
    spec = f"generated:retrieval#families=lookup&questions=1&rivals=2&text=text:{folder}/text.txt"
    options = {"log_scale": "all", "log_scale_by": "positions"}
    asked = recipe(
        folder / "model",
        method="lora",
        position_encoding="rope",
        position_options=json.dumps(options),
        train_data=json.dumps([spec]),
        target_length=4096,
        window=512,
        pose_chunks=2,
        max_steps=3,
        logging_steps=1,
    )
    run = assemble(asked)
    gaps = []
    for index in range(12):
        row = run.sequences[index]
        positions, is_target = row["position_ids"], row["labels"] != -100
        assert 0 < int(is_target.sum()) < 40
        (jump,) = (positions.diff() > 1).nonzero().flatten().tolist() or [None]
        if jump is not None:
            assert not is_target[: jump + 1].any(), "answers are behind the jump"
            gaps.append(int(positions[jump + 1] - positions[jump]))
    assert max(gaps) > 1024 and len(gaps) > 6
    trainer, result = complete(run)
    assert run.config.position_options["log_scale_from"] == 64
    assert all(torch.isfinite(each).all() for each in trainer.model.parameters())
    assert result["data"][spec] == run.identity[f"data.{spec}"] and result["figures"]["steps"] == 3
