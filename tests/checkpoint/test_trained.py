"""Folders of trained weights: small, whole again with their base, and never accepted when they do not fit."""

import errno
import json
import shutil
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from tape_ds import TapeForCausalLM, run_folder, storage
from tape_ds.checkpoint import averaging, merging, trained
from tape_ds.checkpoint.trained import TrainedRecord
from tape_ds.errors import UserError
from tape_ds.methods.prepare import prepare_model
from tape_ds.models.loading import model_folder
from tests import hub_cache
from tests.methods.test_methods import settings
from tests.models.helpers import VOCABULARY, randomised, tiny_config

IDS = torch.randint(3, VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def logits(model):
    return model.eval()(IDS).logits


@pytest.fixture
def base(tmp_path):
    """A saved tape model whose position updates are at zero."""
    torch.manual_seed(1)
    TapeForCausalLM(tiny_config(tie_word_embeddings=True)).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def trained_folder(base, tmp_path, method, **changes):
    """Pretend to train: load, choose, change what was chosen, save."""
    model = TapeForCausalLM.from_pretrained(base)
    prepared = prepare_model(method, model, settings(**changes))
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in prepared.model.named_parameters():
            if name in prepared.names:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    record = TrainedRecord(base=str(base), method=method, names=prepared.names)
    trained.save_trained(tmp_path / "trained", prepared.model, record)
    return prepared.model.eval(), tmp_path / "trained"


def with_origin(folder, model, base):
    """Write into the record of a folder what a run writes of its base."""
    record = json.loads((folder / trained.RECORD).read_text()) | trained.origin(str(model), base)
    (folder / trained.RECORD).write_text(json.dumps(record))


def test_another_base_under_its_name_is_refused(base, tmp_path):
    """A base may have been overwritten, by the merged model even."""
    model, folder = trained_folder(base, tmp_path, "lora")
    with_origin(folder, base, base)
    merging.merge(folder).save_pretrained(tmp_path / "merged")
    (tmp_path / "merged" / "model.safetensors").rename(base / "model.safetensors")
    for load in (trained.load_trained, merging.merge, merging.original_dtype):
        with pytest.raises(
            UserError, match=r"trained on model.safetensors.*which now has model.safetensors"
        ):
            load(folder)
    assert not torch.allclose(
        logits(merging.merge(folder, base_anyway=True)), logits(model), atol=1e-3
    )


def test_a_base_may_move_and_gain_other_files(base, tmp_path):
    """What a trainer leaves in a folder is none of the model's weights."""
    model, folder = trained_folder(base, tmp_path, "tape")
    with_origin(folder, base, base)
    base.rename(tmp_path / "moved")
    with pytest.raises(UserError, match=r"its base .*base is missing(?s:.*)trained\.json"):
        trained.load_trained(folder)
    torch.save({}, tmp_path / "moved" / "training_args.bin")
    record = json.loads((folder / trained.RECORD).read_text())
    (folder / trained.RECORD).write_text(json.dumps(record | {"base": str(tmp_path / "moved")}))
    assert torch.equal(logits(trained.load_trained(folder)), logits(model))


def test_the_commit_that_was_trained_on_is_loaded(base, tmp_path, monkeypatch):
    """The newest commit is another model tomorrow."""
    model, folder = trained_folder(base, tmp_path, "lora")
    other = TapeForCausalLM.from_pretrained(base)
    other.model.layers[0].mlp.down_proj.weight.data *= 3
    other.save_pretrained(tmp_path / "other")
    commits = {"a" * 40: base, "b" * 40: tmp_path / "other"}
    hub_cache.put(monkeypatch, tmp_path / "hub", "org/tiny", commits, {"main": "a" * 40})
    with_origin(folder, "org/tiny@main", model_folder.resolve("org/tiny@main"))
    record = trained.read_record(folder)
    assert (record.base, record.base_commit) == ("org/tiny", "a" * 40)
    (tmp_path / "hub" / "models--org--tiny" / "refs" / "main").write_text("b" * 40)
    assert torch.equal(logits(trained.load_trained(folder)), logits(model))
    assert not torch.allclose(
        logits(trained.load_trained(folder, base_anyway=True)), logits(model), atol=1e-3
    )


def test_only_a_whole_model_needs_no_base(base, tmp_path):
    """A tape folder holds what was trained alone."""
    _, folder = trained_folder(base, tmp_path, "tape")
    assert set(load_file(folder / trained.WEIGHTS)) == set(trained.read_record(folder).names)
    model, folder = trained_folder(base, tmp_path, "full")
    with_origin(folder, base, base)
    (base / "model.safetensors").unlink()
    assert merging.original_dtype(folder) == torch.float32
    assert torch.equal(logits(merging.merge(folder)), logits(model))


@pytest.mark.parametrize(
    "damage", [{}, {"model.layers.9.weight": torch.zeros(1)}], ids=["missing", "extra"]
)
@pytest.mark.parametrize("method", ["tape", "lora"])
def test_tensors_that_do_not_fit_are_refused(base, tmp_path, method, damage):
    """peft by itself only warns of an adapter that lacks a tensor."""
    _, folder = trained_folder(base, tmp_path, method)
    file = folder / (trained.WEIGHTS if method == "tape" else trained.ADAPTER_WEIGHTS)
    tensors = load_file(file) | damage
    name = (
        "model.layers.9.weight"
        if damage
        else next(name for name in tensors if name.endswith("model.norm.weight"))
    )
    if not damage:
        del tensors[name]
    save_file(tensors, file)
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        trained.load_trained(folder)


@pytest.mark.parametrize(
    ("first", "then"), [("full", "tape"), ("lora", "tape"), ("tape", "lora"), ("tape", "full")]
)
def test_an_earlier_run_leaves_nothing_that_would_be_loaded(base, tmp_path, first, then):
    """Two methods, one output folder."""
    trained_folder(base, tmp_path, first, train_norms=False)
    model, folder = trained_folder(base, tmp_path, then)
    assert torch.equal(logits(trained.load_trained(folder)), logits(model))
    assert trained.read_record(folder).method == then


def test_a_disk_that_fills_up_leaves_the_earlier_folder_alone(base, tmp_path, monkeypatch):
    model, folder = trained_folder(base, tmp_path, "tape")
    before = {file: file.read_bytes() for file in folder.iterdir()}

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trained.storage, "write_json", full)
    with pytest.raises(OSError, match="No space left"):
        trained.replace_trained(folder, model, trained.read_record(folder))
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
    assert list(tmp_path.glob("*.writing")) == []


def test_a_person_s_file_stays_and_is_never_loaded_instead(base, tmp_path):
    """One with the name of a new file, or of weights that would be loaded, gets another; the rest keep theirs."""
    model, folder = trained_folder(base, tmp_path, "tape")
    record = trained.read_record(folder)
    run_folder.begin(tmp_path, 0, {})  # of a folder that an older version left, without a list
    assert run_folder.trained_files(tmp_path) is None
    trained.replace_trained(tmp_path / "trained", model, record)
    assert not list(folder.glob("*.kept"))
    mine = {"notes/plan.txt": "plan", "adapter_model.safetensors": "other"}
    known = run_folder.trained_files(tmp_path)
    assert "trained.safetensors" in known and "notes/plan.txt" not in known
    (tmp_path / "trained" / "notes").mkdir()
    for name, text in mine.items():
        (tmp_path / "trained" / name).write_text(text)
    trained.replace_trained(tmp_path / "trained", model, record)
    assert (tmp_path / "trained" / "notes" / "plan.txt").read_text() == "plan"
    assert (tmp_path / "trained" / "adapter_model.safetensors.kept").read_text() == "other"
    assert not (tmp_path / "trained" / "adapter_model.safetensors").exists()
    assert torch.equal(logits(trained.load_trained(tmp_path / "trained")), logits(model))


RIGHT = {"base": None, "method": "full", "names": ["a"], "format": trained.FORMAT}


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        *(
            json.dumps(RIGHT | odd).encode()
            for odd in ({"format": 99}, {"names": [1]}, {"more": 1})
        ),
    ],
)
def test_a_folder_without_a_record_is_refused(tmp_path, content):
    (tmp_path / trained.RECORD).write_bytes(content)
    with pytest.raises(UserError, match=r"trained\.json|of format 99"):
        trained.read_record(tmp_path)


def test_an_empty_tensor_is_never_saved(tmp_path):
    """What ZeRO-3 leaves of an ungathered parameter has no elements."""
    model = randomised(TapeForCausalLM(tiny_config()))
    model.model.norm.weight = torch.nn.Parameter(torch.empty(0))
    with pytest.raises(RuntimeError, match=r"model\.norm\.weight"):
        trained.gather(model, ["model.norm.weight"])


def test_an_adapter_is_one_that_peft_loads(base, tmp_path):
    model, folder = trained_folder(base, tmp_path, "lora")
    plain = PeftModel.from_pretrained(TapeForCausalLM.from_pretrained(base), folder)
    assert torch.equal(logits(plain), logits(model))


def test_a_whole_model_is_an_ordinary_folder_that_generates_with_a_cache(base, tmp_path):
    """Training keeps no key/value cache; without one, generation is quadratic."""
    model = TapeForCausalLM.from_pretrained(base)
    model.config.use_cache = False
    names = prepare_model("full", model, settings()).names
    trained.save_trained(tmp_path / "trained", model, TrainedRecord(None, "full", names))
    loaded = TapeForCausalLM.from_pretrained(tmp_path / "trained")
    assert loaded.config.use_cache is True and model.config.use_cache is False
    assert torch.equal(logits(loaded), logits(model))
    (tmp_path / "trained" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="trained from scratch, without weights"):
        trained.load_trained(tmp_path / "trained")


def test_what_makes_another_model_differs_from_how_it_is_held(base, tmp_path):
    config = tiny_config(tie_word_embeddings=True)
    config.use_cache, config.dtype = False, torch.bfloat16
    config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    record = TrainedRecord(None, "full", ())
    shutil.copytree(base, tmp_path / "saved")
    storage.write_json(tmp_path / "saved" / trained.RECORD, asdict(record))
    assert trained.differences(tmp_path / "saved", SimpleNamespace(config=config), record) == []
    other = tiny_config(
        tie_word_embeddings=True,
        position_options={"feed_forward": False},
        max_position_embeddings=128,
    )
    assert trained.differences(
        tmp_path / "saved", SimpleNamespace(config=other), replace(record, method="tape")
    ) == [
        *("method", "max_position_embeddings", "position_options"),
    ]


@torch.no_grad()
def test_what_is_stored_besides_parameters_stops_neither_a_resume_nor_a_mean(base, tmp_path):
    """Gemma 4's layers have such numbers; without them a fully trained model was a folder that did not load, and with
    them neither a run without an engine nor a mean of checkpoints found a place for them."""
    model = TapeForCausalLM.from_pretrained(base)
    model.model.register_buffer("kept", torch.tensor([3.0]))
    names = prepare_model("full", model, settings()).names
    trained.save_trained(tmp_path / "whole", model, TrainedRecord(str(base), "full", names))
    assert load_file(tmp_path / "whole/model.safetensors")["model.kept"].tolist() == [3.0]
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    for put in (
        lambda: trained.apply_trained(tmp_path / "whole", model, names),
        lambda: averaging.put_mean([tmp_path / "whole"], model, names),
    ):
        for weight in model.parameters():
            weight.zero_()
        put()
        assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
        assert model.model.kept.tolist() == [3.0]
