"""Merging: every method's folder becomes a whole model that computes the same, or it is not written at all."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraModel, PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tape_ds import TapeConfig, TapeForCausalLM, methods
from tape_ds.checkpoint import merging, trained
from tape_ds.checkpoint.trained import TrainedRecord
from tape_ds.cli import merge
from tape_ds.errors import UserError
from tape_ds.methods.prepare import prepare
from tape_ds.models import convert
from tests.disks import files, mounted
from tests.methods.test_methods import settings
from tests.models.helpers import VOCABULARY, tiny_config

ROOT = Path(__file__).resolve().parents[2]
IDS = torch.randint(3, VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(2))
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}


def trained_folder(tmp_path, method, tied):
    """A run's end: a base, RoPE scaled, what the method trains changed, saved. Returns model and folder."""
    torch.manual_seed(1)
    plain = TapeForCausalLM(tiny_config(encoding="rope", tie_word_embeddings=tied))
    plain.save_pretrained(tmp_path / "base")
    kind = methods.METHODS[method]
    config = convert.tape_config(plain.config, position_encoding=kind.encoding, rope_parameters=LINEAR)
    model = convert.load(tmp_path / "base", config)
    prepared = prepare(
        method,
        model,
        settings(train_position=kind.learns_positions, train_embeddings=kind.embeddings, group_tokens=4),
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


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("method", methods.available())
def test_merged_computes_what_was_trained(tmp_path, method, tied):
    """Nothing is lost on the way: adapters, norms, embeddings and position updates, and RoPE scaling."""
    model, folder = trained_folder(tmp_path, method, tied)
    torch.testing.assert_close(logits(trained.load_trained(folder)), logits(model), atol=0, rtol=0)
    merged = merging.merge(folder)
    assert type(merged) is TapeForCausalLM and merged.config.rope_parameters == LINEAR
    assert (merged.lm_head.weight is merged.model.embed_tokens.weight) == tied
    torch.testing.assert_close(logits(merged), logits(model), atol=1e-5, rtol=0)


def test_a_method_that_trains_nothing_leaves_a_configuration(tmp_path):
    _, folder = trained_folder(tmp_path, "linear", tied=True)
    assert trained.read_record(folder).names == () and not list(folder.glob("*.safetensors"))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert not torch.equal(logits(merging.merge(folder)), logits(plain))


def test_peft_loads_base_and_adapter_in_one_call(tmp_path):
    """Its own call, given the folder's configuration: the base's does not know of RoPE scaling."""
    model, folder = trained_folder(tmp_path, "lora", tied=True)
    base = TapeForCausalLM.from_pretrained(tmp_path / "base", config=TapeConfig.from_pretrained(folder))
    torch.testing.assert_close(logits(PeftModel.from_pretrained(base, folder)), logits(model), atol=0, rtol=0)


def test_a_merge_that_changes_logits_is_refused(tmp_path, monkeypatch):
    _, folder = trained_folder(tmp_path, "lora", tied=False)
    unloaded = LoraModel.merge_and_unload

    def wrong(self, **arguments):
        merged = unloaded(self, **arguments)
        merged.model.norm.weight.data *= 1.001
        return merged

    monkeypatch.setattr(LoraModel, "merge_and_unload", wrong)
    with pytest.raises(RuntimeError, match="merging changed logits by"):
        merging.merge(folder)


def tool(*arguments):
    command = [sys.executable, "tools/merge_adapter.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_tool_writes_a_whole_folder_or_none(tmp_path):
    """In the base's dtype by default; a damaged adapter is named, and nothing half-written stays."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model, folder = trained_folder(tmp_path, "lora", tied=True)
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}))).save_pretrained(folder)
    done = tool(folder, f"{tmp_path / 'whole'}/")  # the last slash made a folder inside itself of it, after the merge
    assert done.returncode == 0, done.stderr
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert whole.dtype == torch.float32 and whole.config.use_cache
    torch.testing.assert_close(logits(whole), logits(model), atol=1e-5, rtol=0)
    assert "name a new folder" in tool(folder, tmp_path / "whole").stderr

    file = folder / trained.ADAPTER_WEIGHTS
    tensors = load_file(file)
    missing = sorted(tensors)[0]
    del tensors[missing]
    save_file(tensors, file)
    refused = tool(folder, tmp_path / "damaged")
    assert refused.returncode == 2 and missing in refused.stderr and "Traceback" not in refused.stderr
    assert not list(tmp_path.glob("damaged*"))


def test_the_tool_writes_one_line_to_a_log(tmp_path, capsys, recwarn):
    """Two bars of transformers' and a warning to peft's authors were between it."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    _, folder = trained_folder(tmp_path, "lora", tied=False)
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}))).save_pretrained(folder)
    capsys.readouterr()
    recwarn.clear()
    assert merge.main([str(folder), str(tmp_path / "whole")]) == 0
    said = capsys.readouterr()
    assert said.out.count("\n") == 1 and said.err == ""
    assert not [each for each in recwarn if "is_gradient_checkpointing" in str(each.message)]


def test_the_tool_on_a_full_disk_leaves_nothing_and_says_so(tmp_path, monkeypatch, capsys):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    _, folder = trained_folder(tmp_path, "lora", tied=True)
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}))).save_pretrained(folder)
    with mounted(tmp_path / "disk", "16k") as disk:
        assert merge.main([str(folder), str(disk / "whole")]) == 2
        assert files(disk) == []
        assert f"out = '{disk / 'whole'}': the disk of {disk / 'whole'} is full (" in capsys.readouterr().err

    def refuse(self, *arguments, **options):
        raise RuntimeError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(TapeForCausalLM, "save_pretrained", refuse)
    assert merge.main([str(folder), str(tmp_path / "whole")]) == 2
    assert not list(tmp_path.glob("whole*"))
    assert "is full" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [lambda raw: b"", lambda raw: raw[:-4]], ids=["empty", "cut"])
def test_damaged_adapters_are_refused(tmp_path, damage):
    _, folder = trained_folder(tmp_path, "lora", tied=True)
    file = folder / trained.ADAPTER_WEIGHTS
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=r"trained weights = .*could not be read"):
        merging.merge(folder)
