"""What a run assembles, where it can be told without an engine."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from tape_ds import TapeForCausalLM
from tape_ds.errors import UserError
from tape_ds.training import run
from tape_ds.training.recipe import arguments
from tests.model.helpers import tiny_config

TEXT = "one two three four five six seven eight nine ten eleven twelve\n" * 60


@pytest.fixture
def model(tmp_path) -> Path:
    """A tiny rope model with a tokenizer of words, and text beside it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = sorted(set(TEXT.split()))
    tokenizer = Tokenizer(models.WordLevel({word: 3 + i for i, word in enumerate(words)} | {"<s>": 0}, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(1)
    TapeForCausalLM(tiny_config(encoding="rope")).save_pretrained(tmp_path / "model")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<s>").save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "model"


def recipe(model, **changes):
    """A recipe without an engine."""
    fields = {
        "model": model,
        "target_length": 64,
        "rope_parameters": "{}",
        "train_data": f"text:{model.parent}/text.txt",
        "eval_data": "",
        "data_cache": model.parent / "cache",
        "window": 16,
        "pose_chunks": 1,
        "global_batch_size": 4,
        "deepspeed": "null",
        "bf16": "false",
        "output_dir": model.parent / "run",
    }
    flags = [part for name, value in (fields | changes).items() for part in (f"--{name}", str(value))]
    return arguments.load(flags)


def test_epochs_are_counted_once(model):
    """The rows served hold every epoch; transformers ran its own epochs over all of them: 9 passes for 3."""
    extension = run.assemble(recipe(model, max_steps=-1, num_train_epochs=3))
    passes = len(extension.rows) / len(extension.rows.rows)
    assert 3 <= passes < 3.2
    trainer = run.build_trainer(extension)
    steps = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())[-1]
    assert steps == len(extension.rows) // 4


def test_weights_are_16_bit_only_under_an_engine():
    """AdamW on bf16 weights loses steps of 2e-5 on a norm's weight of 1 whole; a gradient scaler refuses fp16."""
    half = {"bf16": True, "fp16": False}
    assert run.weights_dtype(SimpleNamespace(deepspeed=None, **half)) == torch.float32
    assert run.weights_dtype(SimpleNamespace(deepspeed={"bf16": {}}, **half)) == torch.bfloat16


def test_the_base_is_found_from_any_folder(model, tmp_path, monkeypatch):
    monkeypatch.chdir(model.parent)
    monkeypatch.setenv("HOME", str(model.parent))
    assert run.base_address("model") == run.base_address("~/model") == str(model)
    assert run.base_address("smollm2") == "smollm2" and run.base_address("owner/name") == "owner/name"


def test_a_trained_folder_is_no_base(model):
    """It has a config.json, so everything went well until its weights were looked for."""
    (model / "model.safetensors").unlink()
    (model / "trained.json").write_text("{}")
    with pytest.raises(UserError, match="merge_trained"):
        run.assemble(recipe(model))


def test_a_model_without_a_tokenizer_is_one_message(model):
    for file in model.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match="no tokenizer could be read"):
        run.assemble(recipe(model))


def test_held_out_documents_of_one_name_are_told_apart(model):
    """Scores are kept by name: of two files called long.txt one vanished."""
    addresses = []
    for folder in ("a", "b"):
        (model.parent / folder).mkdir()
        (model.parent / folder / "long.txt").write_text(folder + " " + TEXT)
        addresses.append(f"text:{model.parent}/{folder}/*.txt")
    extension = run.assemble(recipe(model, eval_data=",".join(addresses)))
    names = [document.name for document in extension.held_out]
    assert names == ["long.txt", f"long.txt ({addresses[1]})"]
