"""The written folder: plain where transformers computes the same, with its own code otherwise; whole or absent."""

import json
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tape_ds.checkpoint import source_model
from tape_ds.checkpoint.trained import TrainedRecord, save_trained
from tape_ds.export import folder
from tape_ds.methods.prepare import prepare_model
from tape_ds.models import convert
from tape_ds.models.loading import extendable
from tests.export.conftest import YARN
from tests.models.helpers import ENCODINGS, tiny_config, tokens

PLAIN = {
    "yarn": YARN,
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    "ntk": {"rope_type": "ntk", "rope_theta": 1e4, "factor": 2.0},
    "theta": {"rope_type": "default", "rope_theta": 1e6},
}


def write(run_folder, out, **options):
    source = source_model.find(str(run_folder))
    folder.write(source, out, "test", **options)
    return source.whole().fill(torch.float32)


def config_of(out):
    return json.loads((out / "config.json").read_text())


@pytest.mark.parametrize("rope_parameters", PLAIN)
def test_scaled_rotary_angles_make_a_plain_folder(run, tmp_path, rope_parameters):
    """With the angles under their older names, too. 1e-4: transformers takes its angles in fp32, ours are fp64 and
    rounded once."""
    out = tmp_path / "out"
    model = write(run("rope", "norms", PLAIN[rope_parameters], trained=("norm",)), out)
    plain = AutoModelForCausalLM.from_pretrained(out).eval()
    ids = tokens(2, 100)
    with torch.no_grad():
        assert (plain(ids).logits - model(ids).logits).abs().max() <= 1e-4
    assert (
        type(plain).__name__ == "LlamaForCausalLM" and plain.config.max_position_embeddings == 128
    )
    assert plain.config.use_cache and not list(out.glob("*.py"))
    assert AutoTokenizer.from_pretrained(out).model_max_length == 128
    config = config_of(out)
    scaled = config["rope_parameters"]
    assert plain.config.rope_parameters == scaled and config["rope_theta"] == scaled["rope_theta"]
    older = {name: value for name, value in scaled.items() if name != "rope_theta"}
    assert config["rope_scaling"] == (None if scaled["rope_type"] == "default" else older)
    if rope_parameters == "ntk":  # theta' = theta factor^(K / (K - 2)), K = 8
        assert scaled == {"rope_type": "default", "rope_theta": pytest.approx(1e4 * 2 ** (8 / 6))}


def test_adapters_are_merged_into_a_plain_folder(base, tmp_path):
    """Trained with peft, exported without a trace of it."""
    settings = SimpleNamespace(
        lora_targets=["q_proj", "v_proj"], lora_r=2, lora_alpha=4, lora_dropout=0.0,
        train_position=False, train_norms=True, train_embeddings=False,
    )  # fmt: skip
    config = convert.tape_config(
        extendable.read(base),
        max_position_embeddings=128,
        rope_parameters=YARN,
        position_encoding="rope",
    )
    trained = prepare_model("lora", convert.load(base, config), settings)
    with torch.no_grad():
        for name, weight in trained.model.named_parameters():
            if "lora_" in name:
                weight.copy_(0.2 * torch.randn(weight.shape))
    record = TrainedRecord(base=str(base), method="lora", names=trained.names)
    save_trained(tmp_path / "trained", trained.model, record, AutoTokenizer.from_pretrained(base))
    write(tmp_path / "trained", tmp_path / "out")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = tokens(2, 100)
    with torch.no_grad():
        assert (plain(ids).logits - trained.model.eval()(ids).logits).abs().max() <= 1e-4
        trained.model.disable_adapter_layers()
        assert (plain(ids).logits - trained.model(ids).logits).abs().max() > 0.01, (
            "the adapters have an effect"
        )
    assert "| adapters | merged into the weights |" in (tmp_path / "out" / "README.md").read_text()


def test_tape_carries_its_code(run, tmp_path):
    made, out = run(), tmp_path / "out"
    own = json.loads((made / "trained" / "config.json").read_text()) | {
        "attention_backend": "triton"
    }
    (made / "trained" / "config.json").write_text(json.dumps(own))
    folder.write(source_model.find(str(made)), out, "test", dtype=torch.bfloat16)
    config = config_of(out)
    assert config["attention_backend"] == "auto", "Triton's kernels are not exported"
    assert config["auto_map"]["AutoModelForCausalLM"] == "modeling_tape.TapeForCausalLM"
    assert (
        config["dtype"] == "bfloat16"
        and config["use_cache"] is True
        and config["model_type"] == "tape"
    )
    assert "class TapeForCausalLM" in (out / "modeling_tape.py").read_text()
    assert {path.name for path in out.iterdir()} >= {
        "README.md",
        "generation_config.json",
        "tokenizer.json",
    }


@pytest.mark.parametrize("name", ENCODINGS)
def test_which_models_are_plain(name):
    config = tiny_config(encoding=name)
    source = source_model.SourceModel(None, config, None, None, "", torch.float32)
    assert folder.is_plain(source) == (name in ("rope", "yarn"))


def test_a_late_failure_leaves_nothing(run, tmp_path, monkeypatch):
    """Everything is written but the card; and another folder is not touched, whatever its name."""

    def fails(*_, **__):
        raise RuntimeError("no card")

    source = source_model.find(str(run("rope", "norms", YARN, trained=("norm",))))
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "mine.txt").touch()
    with monkeypatch.context() as patched:
        patched.setattr(folder.card, "text", fails)
        with pytest.raises(RuntimeError, match="no card"):
            folder.write(source, tmp_path / "out", "test")
    assert [path.name for path in tmp_path.iterdir()] == ["out.partial"]
    folder.write(source, tmp_path / "out", "test")
    assert (tmp_path / "out" / "README.md").is_file() and (
        tmp_path / "out.partial" / "mine.txt"
    ).is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.partial"]
