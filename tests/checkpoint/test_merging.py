"""Merging: every method's folder becomes a whole model that computes the same, or it is not written at all."""

import json

import pytest
import torch
from peft import LoraModel
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from tape_ds import TapeForCausalLM, methods
from tape_ds.checkpoint import merging, trained
from tape_ds.checkpoint.trained import TrainedRecord
from tape_ds.cli import merge
from tape_ds.errors import UserError
from tape_ds.methods.prepare import prepare_model
from tape_ds.models import convert
from tape_ds.models.writing import SafetensorsFile
from tests.methods.test_methods import settings
from tests.models.helpers import VOCABULARY, tiny_config

IDS = torch.randint(3, VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(2))
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}


def trained_folder(tmp_path, method, tied):
    """A run's end: a base, RoPE scaled, what the method trains changed, saved. Returns model and folder."""
    torch.manual_seed(1)
    plain = TapeForCausalLM(tiny_config(encoding="rope", tie_word_embeddings=tied))
    plain.save_pretrained(tmp_path / "base")
    kind = methods.METHODS[method]
    config = convert.tape_config(
        plain.config, position_encoding=kind.encoding, rope_parameters=LINEAR
    )
    model = convert.load(tmp_path / "base", config)
    prepared = prepare_model(
        method,
        model,
        settings(
            train_position=kind.learns_positions, train_embeddings=kind.embeddings, group_tokens=4
        ),
    )
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in prepared.model.named_parameters():
            if name in prepared.names:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    record = TrainedRecord(base=str(tmp_path / "base"), method=method, names=prepared.names)
    trained.save_trained(tmp_path / "trained", prepared.model, record)
    return prepared.model.eval(), tmp_path / "trained"


@torch.no_grad()
def logits(model):
    return model.eval()(IDS).logits


@pytest.mark.parametrize("method", methods.available())
def test_merged_computes_what_was_trained(tmp_path, method):
    """Nothing is lost on the way: adapters, norms, embeddings and position updates, and RoPE scaling."""
    tied = method != "lora"
    model, folder = trained_folder(tmp_path, method, tied)
    torch.testing.assert_close(logits(trained.load_trained(folder)), logits(model), atol=0, rtol=0)
    merged = merging.merge(folder)
    assert type(merged) is TapeForCausalLM and merged.config.rope_parameters == LINEAR
    assert (merged.lm_head.weight is merged.model.embed_tokens.weight) == tied
    torch.testing.assert_close(logits(merged), logits(model), atol=1e-5, rtol=0)


def test_a_merge_that_changes_logits_is_refused(tmp_path, monkeypatch, capsys):
    """Of an adapter that is merged as a whole, because it starts from the base's weights."""
    _, folder = trained_folder(tmp_path, "lora", tied=False)
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(
        json.dumps(settings | {"init_lora_weights": "olora"})
    )
    unloaded = LoraModel.merge_and_unload

    def wrong(self, **arguments):
        merged = unloaded(self, **arguments)
        merged.model.norm.weight.data *= 1.001
        return merged

    monkeypatch.setattr(LoraModel, "merge_and_unload", wrong)
    with pytest.raises(UserError, match="merging changed logits by"):
        merging.merge(folder)
    assert (
        "as a whole, in fp32: its adapter starts from the base's weights" in capsys.readouterr().err
    )


def test_the_tool_writes_a_whole_folder_or_none(tmp_path, monkeypatch, capsys):
    model, folder = trained_folder(tmp_path, "lora", tied=True)
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}))).save_pretrained(
        folder
    )
    assert merge.main([str(folder), str(tmp_path / "whole")]) == 0
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert whole.dtype == torch.float32 and whole.config.use_cache
    torch.testing.assert_close(logits(whole), logits(model), atol=1e-5, rtol=0)
    length = AutoTokenizer.from_pretrained(tmp_path / "whole").model_max_length
    assert length == whole.config.max_position_embeddings
    folder.rename(tmp_path / "trained")  # of a run, whose folder is taken as well
    assert merge.main([str(tmp_path), str(tmp_path / "again")]) == 0
    (tmp_path / "trained").rename(folder)

    def refuse(self, *arguments, **options):
        raise RuntimeError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(SafetensorsFile, "write", refuse)
    assert merge.main([str(folder), str(tmp_path / "other")]) == 2
    assert not list(tmp_path.glob("other*")) and "is full" in capsys.readouterr().err
