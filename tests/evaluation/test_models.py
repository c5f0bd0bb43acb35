"""Every kind of name or path leads to the model it names; what is not that model is refused before it loads."""

import argparse
import json
import math
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, LoraModel, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

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
def logits(model, ids):
    return model(ids).logits


def same(one, other):
    ids = tokens(2, 20)
    return (logits(one, ids) - logits(other, ids)).abs().max() < 2e-5


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
    """The same weights with a state that stays RoPE's compute as the plain model at the same angles."""
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
    """With updates off and on: up to the window nothing changes, beyond it everything does."""
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


def test_a_model_without_updates_or_rope_refuses_their_options(base):
    with pytest.raises(UserError, match=r"(?s)--position_updates.*--rope_scaling"):
        found(base, "--position_updates", "off", "--rope_scaling", "yarn")


def test_an_exported_folder_loads_without_its_code(run, tmp_path):
    source = source_model.find(str(run()))
    export_folder.write(source, tmp_path / "exported", "tiny")
    (tmp_path / "exported" / "modeling_tape.py").write_text("raise SystemExit('remote code ran')\n")
    model = found(tmp_path / "exported")
    assert isinstance(model.load(), TapeForCausalLM)
    assert same(model.load(), source.whole().fill(torch.float32))


def adapter(base, folder, **options):
    torch.manual_seed(5)
    config = LoraConfig(
        **{"r": 2, "target_modules": ["q_proj"], "init_lora_weights": False} | options
    )
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    model.save_pretrained(folder)
    return folder


def test_an_adapter_is_merged_into_its_base(base, tmp_path):
    model = found(adapter(base, tmp_path / "adapter"))
    expected = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), str(tmp_path / "adapter")
    ).eval()
    assert model.kind == "peft adapter"
    assert same(model.load(), expected)
    assert not same(model.load(), AutoModelForCausalLM.from_pretrained(base))


def tied_base(base, folder):
    """``base`` with a head that is its embeddings."""
    shutil.copytree(base, folder)
    tied = AutoModelForCausalLM.from_pretrained(base)
    tied.config.tie_word_embeddings = True
    tied.tie_weights()
    tied.save_pretrained(folder)
    return folder


ADAPTERS = {
    "tied embeddings": {"target_modules": ["q_proj", "embed_tokens"]},
    "tied embeddings and head": {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    "repeated layers": {
        "target_modules": ["q_proj", "down_proj"],
        "layer_replication": [[0, 2], [0, 2]],
    },
    "repeated, with DoRA": {
        "target_modules": ["q_proj"],
        "layer_replication": [[0, 2], [1, 2]],
        "use_dora": True,
    },
    "a token of its own": {"target_modules": ["q_proj"], "trainable_token_indices": [60]},
    "whole embeddings": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ADAPTERS)
def test_a_merged_adapter_computes_what_it_does_unmerged(base, tmp_path, kind):
    """Merging into embeddings changed the head that is tied to them (perplexity 20,259 for 1,579), and merging into one
    of two layers that share weights changed both."""
    whole = tied_base(base, tmp_path / "base")
    torch.manual_seed(5)
    config = LoraConfig(task_type="CAUSAL_LM", r=2, **ADAPTERS[kind])
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(whole), config).eval()
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    plain = AutoModelForCausalLM.from_pretrained(whole)
    model = found(tmp_path / "adapter").load()
    ids = torch.cat((tokens(2, 19), torch.full((2, 1), 60)), dim=1)
    assert (logits(model, ids) - logits(adapted, ids)).abs().max() < 2e-5
    assert (logits(adapted, ids) - logits(plain, ids)).abs().max() > 1e-2
    with torch.no_grad():  # with a cache, each layer has its own
        grown = model.generate(ids[:1], max_new_tokens=4, do_sample=False)
    assert torch.equal(grown[:, 20:21], logits(adapted, ids[:1])[:, -1].argmax(-1)[None])
    model.save_pretrained(tmp_path / "merged")  # layers that share weights were a traceback
    stored = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert (logits(stored, ids) - logits(model, ids)).abs().max() < 1e-6


def test_an_adapter_that_merging_changes_is_refused(base, tmp_path, monkeypatch):
    """Every adapter is compared, of a run or of peft: the logits of the merged model were never looked at."""
    model = found(adapter(base, tmp_path / "adapter", init_lora_weights="olora"))
    unloaded = LoraModel.merge_and_unload

    def wrong(self, **arguments):
        merged = unloaded(self, **arguments)
        merged.model.norm.weight.data *= 1.001
        return merged

    monkeypatch.setattr(LoraModel, "merge_and_unload", wrong)
    with pytest.raises(
        UserError, match=r"merging changed logits by .* more than rounding .*its kind: LORA"
    ):
        model.load()


def test_the_remedy_for_resized_embeddings_works(base, tmp_path):
    """ "give the adapter's own base, and all its files" was what was said of it."""
    resized = AutoModelForCausalLM.from_pretrained(base)
    torch.manual_seed(7)
    resized.resize_token_embeddings(69, mean_resizing=False)
    config = LoraConfig(
        task_type="CAUSAL_LM", r=2, target_modules=["q_proj"], init_lora_weights=False
    )
    config.modules_to_save = ["embed_tokens", "lm_head"]
    adapted = get_peft_model(resized, config).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    with pytest.raises(UserError) as caught:
        found(tmp_path / "adapter")
    (problem,) = caught.value.problems
    assert "embeddings of 69 rows, and its base" in problem.wrong and "has 61" in problem.wrong
    assert (
        "model.resize_token_embeddings(69)" in problem.remedy
        and "base_model_name_or_path" in problem.remedy
    )

    again = AutoModelForCausalLM.from_pretrained(base)
    again.resize_token_embeddings(69)
    again.save_pretrained(tmp_path / "resized")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "resized")
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(
        json.dumps(
            json.loads(file.read_text()) | {"base_model_name_or_path": str(tmp_path / "resized")}
        )
    )
    model = found(tmp_path / "adapter")
    assert model.rows == 69 and same(model.load(), adapted)


def test_a_folder_with_weights_and_an_adapter_is_refused(base, tmp_path):
    """The adapter was put onto the weights that it had been merged into, and the score stored."""
    both = Path(shutil.copytree(base, tmp_path / "both"))
    adapter(base, both)
    shutil.copytree(base, both, dirs_exist_ok=True)
    with pytest.raises(UserError, match="either may be what is meant"):
        found(both)


@pytest.mark.parametrize("where", ["weights", "epsilon"])
def test_a_model_whose_logits_are_nan_is_not_scored(base, tmp_path, where):
    """A perplexity of NaN was stored, with exit code 0."""
    folder = Path(shutil.copytree(base, tmp_path / "model"))
    if where == "weights":
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.1.mlp.down_proj.weight"][0, 0] = float("nan")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(UserError, match="its logits are not finite"):
            found(folder).load()
    else:
        changed(folder, rms_norm_eps=float("nan"))
        with pytest.raises(UserError, match="NaN, which is no number, as rms_norm_eps"):
            found(folder)


def test_an_adapter_with_embeddings_in_another_file_is_refused(base, tmp_path):
    """LongLoRA stores trained embeddings and norms separately; peft would silently leave them out."""
    folder = adapter(base, tmp_path / "adapter")
    torch.save({}, folder / "trainable_params.bin")
    with pytest.raises(UserError, match="would be left out"):
        found(folder)


@pytest.mark.parametrize("field", ["base_model_name_or_path", "revision"])
def test_an_adapter_s_base_is_a_text(base, tmp_path, field):
    """A number was a traceback of pathlib."""
    folder = adapter(base, tmp_path / "adapter")
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: -1}))
    with pytest.raises(UserError, match=f"has {field} = -1, not a text"):
        found(folder)


@pytest.mark.parametrize(("layer", "shape"), [(0, None), (7, (2, 32))])
def test_an_adapter_with_a_tensor_missing_or_without_a_place_is_refused(
    base, tmp_path, layer, shape
):
    """peft would warn, or not even that, and compute without them."""
    file = adapter(base, tmp_path / "adapter") / "adapter_model.safetensors"
    tensors = load_file(file)
    name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_A.weight"
    if shape is None:
        del tensors[name]
    else:
        tensors[name] = torch.ones(shape)
    save_file(tensors, file)
    with pytest.raises(
        UserError,
        match=rf"{'missing' if shape is None else 'without a place'}: .*layers\.{layer}\.",
    ):
        found(tmp_path / "adapter").load()


def changed(folder, **changes):
    """Change fields of a folder's config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def without_head(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def as_integers(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = (100 * tensors["lm_head.weight"]).to(torch.int8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (without_head, "missing: lm_head.weight\n"),
        (as_integers, "integers in the place of weights: lm_head.weight"),
        (partial(changed, num_hidden_layers=1), r"without a place: model.layers.1"),
        (
            partial(changed, vocab_size=99),
            r"of another shape: lm_head.weight \[\d+, 32\], not \[99, 32\]",
        ),
        (partial(changed, rope_parameters={"type": "clex", "factor": 2.0}), "rope_type = 'clex'"),
        (partial(changed, model_type="t5"), "no causal LM"),
    ],
    ids=["no head", "integers", "a layer too many", "vocabulary", "rope type", "not causal"],
)
def test_weights_and_configurations_that_do_not_match_are_refused(base, tmp_path, change, wrong):
    """transformers would score random weights for missing ones, with exit code 0."""
    folder = Path(shutil.copytree(base, tmp_path / "model"))
    change(folder)
    with pytest.raises(UserError, match=f"(?s)model.*{wrong}"):
        found(folder)


def test_a_base_is_scored_with_the_rope_that_it_was_trained_with(base, tmp_path):
    """transformers silently ignores vLLM's attn_factor and FastChat's ratio."""
    folder = Path(shutil.copytree(base, tmp_path / "model"))
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    changed(folder, rope_parameters=yarn | {"attn_factor": 0.5})
    expected = AutoModelForCausalLM.from_pretrained(base)
    expected.config.rope_parameters = yarn | {"attention_factor": 0.5 * (0.1 * math.log(4.0) + 1)}
    whole = type(expected)(expected.config)
    whole.load_state_dict(expected.state_dict())
    assert same(found(folder).load(), whole)
    changed(
        folder, rope_parameters={"rope_type": "default", "rope_theta": 1e4}, rope_condense_ratio=8
    )
    with pytest.raises(UserError, match="rope_condense_ratio"):
        found(folder)


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


def test_an_adapter_with_its_base_s_configuration_is_an_adapter(base, tmp_path):
    """axolotl puts it there; transformers would load the adapter unmerged."""
    folder = adapter(base, tmp_path / "adapter")
    shutil.copy(base / "config.json", folder)
    model = found(folder)
    assert model.kind == "peft adapter" and base / "model.safetensors" in model.files
    assert not same(model.load(), AutoModelForCausalLM.from_pretrained(base))


def test_an_adapter_s_revision_of_its_base_is_loaded(base, tmp_path, monkeypatch):
    folder = adapter(base, tmp_path / "adapter")
    commits = {letter * 40: base for letter in "ab"}
    hub_cache.put(
        monkeypatch, tmp_path / "hub", "org/tiny", commits, {"main": "b" * 40, "v1": "a" * 40}
    )
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
    with pytest.raises(
        UserError, match=r"it was trained on model.safetensors.*which now has model.safetensors"
    ):
        found(folder)
    assert not same(found(folder, "--base_anyway").load(), model)


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_the_hash_is_of_the_weights(base, tmp_path):
    copied = shutil.copytree(base, tmp_path / "copied")
    assert found(copied).about()["sha256"] == found(base).about()["sha256"]
    flip_a_bit(copied / "model.safetensors")
    assert found(copied).about()["sha256"] != found(base).about()["sha256"]


def test_the_hash_of_what_was_trained_holds_its_base(base, run, tmp_path):
    folder = run()
    before = found(folder).about()["sha256"]
    record = json.loads((folder / "trained" / "trained.json").read_text())
    copied = shutil.copytree(base, tmp_path / "copied")
    flip_a_bit(copied / "model.safetensors")
    (folder / "trained" / "trained.json").write_text(json.dumps(record | {"base": str(copied)}))
    assert found(folder).about()["sha256"] != before


def test_16_bit_weights_keep_exact_angles(base):
    """A module's own cast would round the frequencies, and put neighbouring positions at one angle."""
    model = found(base, "--dtype", "bfloat16").load()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_the_dtype_is_the_stored_one_unless_asked(base, tmp_path):
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(
        tmp_path / "half"
    )
    shutil.copy(base / "tokenizer.json", tmp_path / "half")
    shutil.copy(base / "tokenizer_config.json", tmp_path / "half")
    assert found(tmp_path / "half").load().dtype == torch.bfloat16
    assert found(tmp_path / "half", "--dtype", "float32").load().dtype == torch.float32
    assert found(tmp_path / "half").about()["dtype"] == "bfloat16"


def test_a_tokenizer_s_code_runs_only_when_asked(base, tmp_path, monkeypatch):
    """transformers does not ask on the terminal either."""
    monkeypatch.setattr("builtins.input", lambda *text: pytest.fail("a question on the terminal"))
    folder = Path(shutil.copytree(base, tmp_path / "coded"))
    content = json.loads((folder / "tokenizer_config.json").read_text())
    content |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "code.Own"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    (folder / "code.py").write_text(
        "from transformers import PreTrainedTokenizerFast\n\n\nclass Own(PreTrainedTokenizerFast):\n    ran = True\n"
    )
    with pytest.raises(
        UserError, match=r"no tokenizer could be read(?s:.*)remedy: .*--trust_remote_code"
    ):
        found(folder)
    model = found(folder, "--trust_remote_code")
    assert model.tokenizer().ran


@pytest.mark.parametrize("whose", ["model", "tokenizer"])
def test_the_hash_is_of_the_code_that_may_run(whose, base, tmp_path):
    words = (
        [base, "--tokenizer", shutil.copytree(base, tmp_path / "own")]
        if whose == "tokenizer"
        else [tmp_path / "own"]
    )
    shutil.copytree(base, tmp_path / "own", dirs_exist_ok=True)
    hashes = {
        run: [found(*words, *run).about()["sha256"]] for run in ((), ("--trust_remote_code",))
    }
    (tmp_path / "own" / "code.py").write_text("A = 1\n")
    for run, known in hashes.items():
        known.append(found(*words, *run).about()["sha256"])
    assert [len(set(known)) for known in hashes.values()] == [1, 2]


def test_an_adapter_of_a_quantised_base_is_refused(base, tmp_path, monkeypatch):
    """Its packed weights cannot be cast to fp32, in which adapters are merged."""
    own = Path(shutil.copytree(base, tmp_path / "own"))
    folder = adapter(own, tmp_path / "adapter")
    changed(own, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    # as where bitsandbytes is installed
    installed = SimpleNamespace(validate_environment=lambda **_: None)
    monkeypatch.setattr(models.AutoHfQuantizer, "from_config", lambda *_, **__: installed)
    with pytest.raises(UserError, match=r"its base .*own is quantised"):
        found(folder)


def test_a_device_that_is_not_there_is_refused():
    for device in ("meta", "nonsense"):
        with pytest.raises(UserError, match="not available"):
            found("smollm2", "--device", device)
