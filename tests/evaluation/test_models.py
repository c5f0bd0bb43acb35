"""Every kind of name or path leads to the model it names, and what is wrong with one is told before anything loads."""

import argparse
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

from tape_ds import TapeForCausalLM, arguments
from tape_ds.checkpoint import source_model, trained
from tape_ds.errors import UserError
from tape_ds.export import folder as export_folder
from tape_ds.scoring import models
from tests import hub_cache
from tests.models.helpers import tokens


def found(*words):
    parser = argparse.ArgumentParser()
    arguments.add_model(parser)
    return models.find(parser.parse_args([str(word) for word in words]))


@torch.no_grad()
def logits(model, ids=None):
    return model(tokens(2, 20) if ids is None else ids).logits


def same(one, other):
    ids = tokens(2, 20)
    difference = (logits(one, ids) - logits(other, ids)).abs().max().item()
    print(f"logits differ by {difference:.2g}")
    return difference < 2e-5


def test_a_plain_llama_is_transformers_own(base):
    model = found(base)
    assert (model.kind, model.native_length, model.position_limit) == ("transformers", 64, None)
    loaded = model.load()
    assert type(loaded).__name__ == "LlamaForCausalLM" and not loaded.training
    assert same(loaded, AutoModelForCausalLM.from_pretrained(base))
    assert model.tokenizer().name_or_path == str(base)


@pytest.mark.parametrize("inner", ["", "trained"])
def test_a_run_is_its_base_and_what_was_trained(run, inner):
    folder = run()
    model = found(folder / inner)
    assert (model.kind, model.native_length) == ("trained", 128)
    assert (model.about()["encoding"], model.about()["model_type"]) == ("tape", "tape")
    assert same(model.load(), trained.load_trained(folder / "trained").eval())


def test_position_updates_are_switched_off(run):
    """The same weights with a state that stays RoPE's: the plain model at the same angles."""
    folder = run()
    on, off = found(folder), found(folder, "--position_updates", "off")
    assert off.about() == on.about() | {"position_updates": "off"}
    model, ids = on.load(), tokens(2, 20)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".position." in name:
                weight.normal_(std=0.3)
    with model.with_rope_parameters(model.config.rope_parameters):
        plain = logits(model, ids)
    assert not torch.allclose(logits(model, ids), plain, atol=1e-3)
    assert torch.equal(logits(off.load(), ids), plain)


def test_angles_are_scaled_as_yarn_s(run):
    """Beside updates that are off, or alone: up to the window nothing changes, beyond it everything does."""
    folder = run(rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    own, off = found(folder), found(folder, "--position_updates", "off")
    scaled, both = (
        found(folder, "--rope_scaling", "yarn"),
        found(folder, "--position_updates", "off", "--rope_scaling", "yarn"),
    )
    assert scaled.about() == own.about() | {"angles": "yarn"}
    assert both.about() == off.about() | {"angles": "yarn"}
    ids = tokens(2, 20)
    for plain, other in ((own.load(), scaled.load()), (off.load(), both.load())):
        with models.used_at(other, 128):
            assert torch.equal(logits(other, ids), logits(plain, ids))
        with models.used_at(other, 512):
            assert not torch.allclose(logits(other, ids), logits(plain, ids), atol=1e-3)


def test_what_a_model_has_not_cannot_be_changed(base):
    with pytest.raises(
        UserError, match=r"(?s)--position_updates.*has no position updates.*--rope_scaling.*no plain RoPE"
    ):
        found(base, "--position_updates", "off", "--rope_scaling", "yarn")


def test_an_exported_folder_loads_without_its_code(run, tmp_path):
    source = source_model.find(str(run()))
    export_folder.write(source, tmp_path / "exported", "tiny")
    (tmp_path / "exported" / "modeling_tape.py").write_text("raise SystemExit('remote code ran')\n")
    model = found(tmp_path / "exported")
    assert isinstance(model.load(), TapeForCausalLM)
    assert same(model.load(), source.load())


def adapter(base, folder):
    torch.manual_seed(5)
    config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    model.save_pretrained(folder)
    return folder


def test_an_adapter_is_merged_into_its_base(base, tmp_path):
    model = found(adapter(base, tmp_path / "adapter"))
    expected = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(tmp_path / "adapter")).eval()
    assert model.kind == "peft adapter"
    assert same(model.load(), expected)
    assert not same(model.load(), AutoModelForCausalLM.from_pretrained(base))


def test_an_adapter_whose_embeddings_lie_beside_it_is_refused(base, tmp_path):
    """LongLoRA stores trained embeddings and norms in a file of its own; peft would leave them out in silence."""
    folder = adapter(base, tmp_path / "adapter")
    torch.save({}, folder / "trainable_params.bin")
    with pytest.raises(UserError, match="would be left out"):
        found(folder)


def without_one(file):
    tensors = load_file(file)
    del tensors[sorted(tensors)[0]]
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        (lambda file: file.write_bytes(b""), "could not be read as safetensors"),
        (lambda file: file.write_bytes(file.read_bytes()[:-4]), "could not be read as safetensors"),
        (lambda file: save_file({}, file), "holds no tensor"),
        (without_one, "Found missing adapter keys"),
        (lambda file: file.unlink(), "there is no adapter_model.safetensors"),
    ],
    ids=["empty", "cut", "no tensors", "one missing", "gone"],
)
def test_a_damaged_adapter_is_refused(base, tmp_path, damage, wrong):
    """peft warns of what is missing, and goes on with the numbers that the adapter was born with."""
    folder = adapter(base, tmp_path / "adapter")
    damage(folder / "adapter_model.safetensors")
    with pytest.raises(UserError, match=wrong):
        found(folder).load()


def changed(**changes):
    """What changes fields of a folder's config.json."""

    def change(folder):
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def renamed(new):
    """What gives the tensors of a folder other names; None: leaves one out."""

    def change(folder):
        tensors = load_file(folder / "model.safetensors")
        tensors = {new(name): tensor for name, tensor in tensors.items() if new(name) is not None}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def as_integers(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = (100 * tensors["lm_head.weight"]).to(torch.int8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def as_classifier(folder):
    LlamaForSequenceClassification.from_pretrained(folder).save_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (renamed(lambda name: None if name == "lm_head.weight" else name), "missing: lm_head.weight\n"),
        (
            renamed(lambda name: f"base_model.model.{name}"),
            r"missing: lm_head.weight,.*without a place: base_model.model.lm_head.weight,",
        ),
        (as_classifier, r"missing: lm_head.weight; without a place: score.weight\n"),
        (changed(num_hidden_layers=9), r"missing: model.layers.3"),
        (changed(num_hidden_layers=1), r"without a place: model.layers.1"),
        (changed(vocab_size=99), r"of another shape: lm_head.weight \[\d+, 32\], not \[99, 32\]"),
        (as_integers, "integers in the place of weights: lm_head.weight"),
        (
            changed(rope_scaling={"type": "clex", "factor": 2.0}, rope_parameters=None),
            "rope_type = 'clex'.*one of: default",
        ),
        (changed(hidden_act="unheard_of"), "could not load it.*unheard_of"),
        (changed(dtype="float99"), "no configuration could be read.*float99"),
        (changed(quantization_config={"quant_method": "gptq", "bits": 4}), "could not load it.*pip install"),
        (changed(quantization_config={"quant_method": "unheard_of"}), "could not load it.*unheard_of"),
    ],
    ids=[
        *("no head", "prefixed", "classifier", "a layer missing", "a layer too many", "vocabulary", "integers"),
        *("rope type", "activation", "dtype", "package missing", "unknown quantiser"),
    ],
)
def test_what_is_not_the_model_is_refused_before_it_is_loaded(base, tmp_path, change, wrong):
    """Random weights were scored for those that are not there, with exit code 0; the others ended in tracebacks."""
    folder = Path(shutil.copytree(base, tmp_path / "model"))
    change(folder)
    with pytest.raises(UserError, match=f"(?s)model.*{wrong}"):
        found(folder)


def test_a_base_is_scored_with_the_rope_that_it_was_trained_with(base, tmp_path):
    """transformers ignores vLLM's attn_factor and FastChat's ratio, which changed every score without a word."""
    folder = Path(shutil.copytree(base, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
    (folder / "config.json").write_text(json.dumps({**config, "rope_parameters": yarn | {"attn_factor": 0.5}}))
    expected = AutoModelForCausalLM.from_pretrained(base)
    expected.config.rope_parameters = yarn | {"attention_factor": 0.5 * (0.1 * math.log(4.0) + 1)}
    whole = type(expected)(expected.config)
    whole.load_state_dict(expected.state_dict())
    assert same(found(folder).load(), whole)
    (folder / "config.json").write_text(json.dumps({**config, "rope_condense_ratio": 8}))
    with pytest.raises(UserError, match="rope_condense_ratio"):
        found(folder)
    old = {"type": "linear", "factor": 4.0}  # without the theta of the other form, which transformers would not read
    both = {**config, "rope_scaling": old, "rope_parameters": {**old, "rope_theta": 1e5}}
    (folder / "config.json").write_text(json.dumps(both))
    with pytest.raises(UserError, match="two readings of rope_theta"):
        found(folder)
    (folder / "config.json").write_text(
        json.dumps(
            {
                **config,
                "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
                "max_position_embeddings": 64,
                "max_sequence_length": 256,
            }
        )
    )
    assert found(folder).native_length == 256


def test_tied_heads_and_old_frequencies_are_no_mistake(base, tmp_path):
    tied = AutoModelForCausalLM.from_pretrained(base)
    tied.config.tie_word_embeddings = True
    tied.tie_weights()
    folder = Path(shutil.copytree(base, tmp_path / "tied"))
    tied.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in tensors
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert same(found(folder).load(), tied)


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights_are_loaded_where_their_package_is(tmp_path, base, bits):
    pytest.importorskip("bitsandbytes")
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=61,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "whole")
    packed = BitsAndBytesConfig(load_in_4bit=bits == 4, load_in_8bit=bits == 8)
    packed = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", quantization_config=packed)
    packed.save_pretrained(tmp_path / "packed")
    loaded = found(tmp_path / "packed", "--tokenizer", base).load()
    assert loaded.model.layers[0].mlp.up_proj.weight.dtype in (torch.uint8, torch.int8)
    assert same(loaded, packed)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight": (2, 32)}, "without a place: .*layers.7"),
        (
            {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (4, 32)},
            "peft could not put it onto.*size mismatch",
        ),
    ],
    ids=["a layer too many", "rank"],
)
def test_an_adapter_that_does_not_fit_is_refused(base, tmp_path, change, wrong):
    """peft passes over what has no place."""
    file = adapter(base, tmp_path / "adapter") / "adapter_model.safetensors"
    save_file(load_file(file) | {name: torch.ones(shape) for name, shape in change.items()}, file)
    with pytest.raises(UserError, match=f"(?s){wrong}"):
        found(tmp_path / "adapter").load()


def test_an_adapter_with_its_base_s_configuration_is_an_adapter(base, tmp_path):
    """axolotl puts it there; transformers then loaded the adapter unmerged, and no hash was of the base."""
    folder = adapter(base, tmp_path / "adapter")
    shutil.copy(base / "config.json", folder)
    model = found(folder)
    assert model.kind == "peft adapter" and base / "model.safetensors" in model.files
    assert not same(model.load(), AutoModelForCausalLM.from_pretrained(base))


def test_an_adapter_s_revision_of_its_base_is_loaded(base, tmp_path, monkeypatch):
    folder = adapter(base, tmp_path / "adapter")
    commits = {letter * 40: base for letter in "ab"}
    hub_cache.put(monkeypatch, tmp_path / "hub", "org/tiny", commits, {"main": "b" * 40, "v1": "a" * 40})
    content = json.loads((folder / "adapter_config.json").read_text())
    for revision, commit in ((None, "b"), ("v1", "a")):
        content |= {"base_model_name_or_path": "org/tiny", "revision": revision}
        (folder / "adapter_config.json").write_text(json.dumps(content))
        assert commit * 40 in str([*found(folder).files][-1])


def test_trained_weights_on_another_base_are_refused_unless_wanted(base, run, tmp_path):
    own = Path(shutil.copytree(base, tmp_path / "own"))
    folder = run(**trained.origin(str(own), own))
    model = found(folder).load()
    tensors = load_file(base / "model.safetensors")
    (own / "model.safetensors").unlink()  # the loaded model still reads the file that was there
    save_file({name: 2 * tensor for name, tensor in tensors.items()}, own / "model.safetensors")
    with pytest.raises(UserError, match=r"it was trained on model.safetensors.*which now has model.safetensors"):
        found(folder)
    assert not same(found(folder, "--base_anyway").load(), model)


def test_an_adapter_of_another_kind_is_refused(base, tmp_path):
    folder = adapter(base, tmp_path / "adapter")
    content = {"peft_type": "PROMPT_TUNING", "base_model_name_or_path": str(base), "num_virtual_tokens": 4}
    (folder / "adapter_config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="is not merged into weights"):
        found(folder)
    (folder / "adapter_config.json").write_text(json.dumps(content | {"peft_type": "UNHEARD_OF"}))
    with pytest.raises(UserError, match="cannot be read"):
        found(folder)
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": str(folder)})
    )
    with pytest.raises(UserError, match="names its own folder as the base"):
        found(folder)


def test_damaged_weights_are_refused(base, tmp_path):
    shutil.copytree(base, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(UserError, match=r"model\.safetensors.*could not be read as safetensors"):
        found(tmp_path / "model").load()


def test_the_hash_is_of_the_weights(base, run, tmp_path):
    copied = shutil.copytree(base, tmp_path / "copied")
    assert found(copied).about()["sha256"] == found(base).about()["sha256"]
    weights = copied / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert found(copied).about()["sha256"] != found(base).about()["sha256"]


def test_the_hash_of_what_was_trained_holds_its_base(base, run, tmp_path):
    """Another base under the same path is another model, though the trained tensors are the same."""
    folder = run()
    before = found(folder).about()["sha256"]
    record = json.loads((folder / "trained" / "trained.json").read_text())
    copied = shutil.copytree(base, tmp_path / "copied")
    content = bytearray((copied / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (copied / "model.safetensors").write_bytes(content)
    (folder / "trained" / "trained.json").write_text(json.dumps(record | {"base": str(copied)}))
    assert found(folder).about()["sha256"] != before


def test_16_bit_weights_keep_exact_angles(base):
    """A module's own cast reaches the buffer of frequencies, which then puts neighbouring positions at one angle."""
    model = found(base, "--dtype", "bfloat16").load()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_packed_weights_are_not_cast(base, monkeypatch):
    """Two 4-bit weights to a byte are no numbers that another dtype could hold."""
    packed = AutoModelForCausalLM.from_pretrained(base)
    head = torch.nn.Parameter(torch.zeros(4, dtype=torch.uint8), requires_grad=False)
    packed.lm_head.weight, packed.config.quantization_config = head, {"quant_method": "bitsandbytes"}
    monkeypatch.setattr(models, "_load_plain", lambda *told, **more: packed)
    assert found(base, "--dtype", "bfloat16").load().lm_head.weight.dtype == torch.uint8


def test_the_dtype_is_the_stored_one_unless_asked(base, tmp_path):
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(tmp_path / "half")
    shutil.copy(base / "tokenizer.json", tmp_path / "half")
    shutil.copy(base / "tokenizer_config.json", tmp_path / "half")
    assert found(tmp_path / "half").load().dtype == torch.bfloat16
    assert found(tmp_path / "half", "--dtype", "float32").load().dtype == torch.float32
    assert found(tmp_path / "half").about()["dtype"] == "bfloat16"


def test_learned_positions_end(base, tmp_path):
    config = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=61, n_positions=32, bos_token_id=1, eos_token_id=2)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    model = found(tmp_path, "--tokenizer", base)
    assert (model.position_limit, model.native_length) == (32, 32)


def words_of(error):
    return [f"{problem.field}: {problem.wrong}" for problem in error.value.problems]


def test_everything_wrong_is_told_at_once():
    with pytest.raises(UserError) as error:
        found("./nowhere", "--device", "cuda:77")
    assert len(words_of(error)) == 2
    assert "--device" in words_of(error)[0] and "no such folder" in words_of(error)[1]


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ({"model_type": "t5"}, "no causal LM"),
        ({"model_type": "nonsense"}, "no configuration could be read"),
        ({"model_type": "llama", "auto_map": {"AutoConfig": "a.B"}, "hidden_size": "x"}, "no configuration"),
    ],
)
def test_what_is_no_causal_lm_is_refused(content, wrong, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=wrong):
        found(tmp_path)


def test_remote_code_runs_only_when_asked(base, tmp_path):
    folder = Path(shutil.copytree(base, tmp_path / "coded"))
    content = json.loads((folder / "config.json").read_text())
    content |= {"model_type": "own_code", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "code.py").write_text("raise SystemExit('remote code ran')\n")
    with pytest.raises(UserError, match=r"no configuration could be read(?s:.*)remedy: .*--trust_remote_code"):
        found(folder)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_git_lfs_pointers_are_told(file, base, tmp_path):
    folder = Path(shutil.copytree(base, tmp_path / "cloned"))
    (folder / file).write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UserError, match=f"{file}: a git-lfs pointer.*\n.*git lfs pull"):
        found(folder)


def test_a_folder_without_a_model_says_what_is_missing(tmp_path):
    with pytest.raises(UserError, match=r"no config\.json and no adapter_config\.json in this folder"):
        found(tmp_path)


def test_a_tokenizer_s_code_runs_only_when_asked(base, tmp_path, monkeypatch):
    """Nor does transformers stop to ask, as it does on a terminal where nobody said."""
    monkeypatch.setattr("builtins.input", lambda *text: pytest.fail("nobody is asked"))
    folder = Path(shutil.copytree(base, tmp_path / "coded"))
    content = json.loads((folder / "tokenizer_config.json").read_text())
    content |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "code.Own"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    (folder / "code.py").write_text(
        "from transformers import PreTrainedTokenizerFast\n\n\nclass Own(PreTrainedTokenizerFast):\n    ran = True\n"
    )
    with pytest.raises(UserError, match=r"no tokenizer could be read(?s:.*)remedy: .*--trust_remote_code"):
        found(folder)
    model = found(folder, "--trust_remote_code")
    assert model.tokenizer().ran


@pytest.mark.parametrize("whose", ["model", "tokenizer"])
def test_the_hash_is_of_the_code_that_may_run(whose, base, tmp_path):
    """A stored evaluation was complete, or gone on with, whatever was changed in the code that computes it."""
    words = (
        [base, "--tokenizer", shutil.copytree(base, tmp_path / "own")] if whose == "tokenizer" else [tmp_path / "own"]
    )
    shutil.copytree(base, tmp_path / "own", dirs_exist_ok=True)
    hashes = {run: [found(*words, *run).about()["sha256"]] for run in ((), ("--trust_remote_code",))}
    (tmp_path / "own" / "code.py").write_text("A = 1\n")
    for run, known in hashes.items():
        known.append(found(*words, *run).about()["sha256"])
    assert [len(set(known)) for known in hashes.values()] == [1, 2]


def test_a_missing_tokenizer_is_told(base, tmp_path):
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no tokenizer could be read"):
        found(tmp_path)
    assert found(tmp_path, "--tokenizer", base).tokenizer() is not None


def test_an_adapter_of_a_quantised_base_is_refused(base, tmp_path, monkeypatch):
    """Its packed weights cannot be cast to fp32, in which adapters are merged."""
    own = Path(shutil.copytree(base, tmp_path / "own"))
    folder = adapter(own, tmp_path / "adapter")
    changed(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})(own)
    installed = SimpleNamespace(validate_environment=lambda **_: None)  # as where bitsandbytes is installed
    monkeypatch.setattr(models.AutoHfQuantizer, "from_config", lambda *_, **__: installed)
    with pytest.raises(UserError, match=r"its base .*own is quantised"):
        found(folder)
