"""Trained folders: small, whole again with their base, and never accepted when they do not fit."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tape_ds import TapeForCausalLM
from tape_ds.errors import UserError
from tape_ds.training import checkpoint, methods
from tape_ds.training.checkpoint import Record
from tests.model.helpers import randomised, tiny_config, tokens
from tests.training.test_methods import settings


@pytest.fixture
def base(tmp_path):
    """A saved tape model whose position updates are at zero."""
    torch.manual_seed(1)
    TapeForCausalLM(tiny_config(tie_word_embeddings=True)).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def trained_folder(base, tmp_path, method, encoding="tape", **changes):
    """Pretend to train: load, choose, change what was chosen, save."""
    model = TapeForCausalLM.from_pretrained(base)
    prepared = methods.prepare(method, model, settings(**changes))
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in prepared.model.named_parameters():
            if name in prepared.names:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    record = Record(base=str(base), method=method, names=prepared.names)
    checkpoint.save_trained(tmp_path / "trained", prepared.model, record)
    return prepared.model.eval(), tmp_path / "trained"


@pytest.mark.parametrize("method", ["tape", "lora", "full"])
def test_what_was_trained_comes_back(base, tmp_path, method):
    """Loaded, and merged, the model computes what the trained one does."""
    model, folder = trained_folder(base, tmp_path, method, train_position=method != "lora")
    ids = tokens(2, 20)
    with torch.no_grad():
        expected = model(ids).logits
        assert torch.equal(checkpoint.load_trained(folder).eval()(ids).logits, expected)
        merged = checkpoint.merge(folder).eval()
        assert type(merged) is TapeForCausalLM
        torch.testing.assert_close(merged(ids).logits, expected, atol=2e-6, rtol=0)


def test_a_tape_folder_holds_only_what_was_trained(base, tmp_path):
    _, folder = trained_folder(base, tmp_path, "tape")
    record = checkpoint.read_record(folder)
    assert set(load_file(folder / checkpoint.WEIGHTS)) == set(record.names)
    assert not list(folder.glob("model*.safetensors")) and not list(folder.glob("*.partial"))


@pytest.mark.parametrize("damage", ["missing", "extra", "shape"])
def test_tensors_that_do_not_fit_are_refused(base, tmp_path, damage):
    _, folder = trained_folder(base, tmp_path, "tape")
    tensors = load_file(folder / checkpoint.WEIGHTS)
    name = "model.norm.weight"
    if damage == "missing":
        del tensors[name]
    elif damage == "extra":
        name = "model.layers.9.weight"
        tensors[name] = torch.zeros(1)
    else:
        tensors[name] = torch.zeros(5)
    save_file(tensors, folder / checkpoint.WEIGHTS)
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        checkpoint.load_trained(folder)


def test_a_folder_without_a_record_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"trained\.json"):
        checkpoint.read_record(tmp_path)
    (tmp_path / checkpoint.RECORD).write_text(json.dumps({"format": 99}))
    with pytest.raises(UserError, match="not of format"):
        checkpoint.read_record(tmp_path)


def test_an_empty_tensor_is_never_saved(tmp_path):
    """What ZeRO-3 leaves of an ungathered parameter has no elements; saved, it would be a loss found out much later."""
    model = randomised(TapeForCausalLM(tiny_config()))
    model.model.norm.weight = torch.nn.Parameter(torch.empty(0))
    with pytest.raises(RuntimeError, match=r"model\.norm\.weight"):
        checkpoint.gather(model, ["model.norm.weight"])
