"""`tape-ds merge` of adapters that peft itself saved; of runs see tests/checkpoint/test_merging.py."""

import json
import os
import signal

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from tape_ds import TapeForCausalLM, storage
from tape_ds.checkpoint.adapted_weights import AdaptedWeights
from tape_ds.cli import export, merge
from tape_ds.models import writing
from tape_ds.models.loading import known_config
from tape_ds.models.writing import SafetensorsFile
from tests.export.conftest import base
from tests.models.helpers import tiny_config, tokens

__all__ = ["base"]

IDS = tokens(2, 20)


def adapter(base, folder, **options):
    """Save an adapter of random numbers, as peft does; return the folder."""
    torch.manual_seed(5)
    options = {"r": 2, "target_modules": ["q_proj"], "init_lora_weights": False} | options
    model = AutoModelForCausalLM.from_pretrained(base)
    get_peft_model(model, LoraConfig(**options)).save_pretrained(folder)
    return folder


@torch.no_grad()
def logits(model):
    return model.eval().float()(IDS).logits


@torch.no_grad()
def unmerged(base, folder):
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return logits(PeftModel.from_pretrained(model, str(folder)))


def test_an_adapter_of_peft_becomes_a_whole_folder(base, tmp_path, capsys):
    """It was refused for want of a run's record."""
    folder = adapter(base, tmp_path / "adapter")
    assert merge.main([str(folder), str(tmp_path / "whole")]) == 0
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert type(whole).__name__ == "LlamaForCausalLM" and whole.dtype == torch.float32
    torch.testing.assert_close(logits(whole), unmerged(base, folder), atol=1e-5, rtol=0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "whole")
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(base).get_vocab()
    assert tokenizer.model_max_length == whole.config.max_position_embeddings
    assert not list((tmp_path / "whole").glob("adapter*"))
    assert known_config.check_model(str(tmp_path / "whole"), online=False) == []
    assert f"whole: {base} + the adapter {folder}, 0." in capsys.readouterr().out


def test_other_families_and_this_project_s_own_are_merged(tmp_path, capsys):
    """In the dtype in which the base is stored; a base without a tokenizer makes a folder without one."""
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    torch.manual_seed(0)
    neox = GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, vocab_size=128))
    tape = TapeForCausalLM(tiny_config())
    for name, model, target in (("neox", neox, "query_key_value"), ("tape", tape, "q_proj")):
        model.to(torch.bfloat16).save_pretrained(tmp_path / name)
        folder = adapter(tmp_path / name, tmp_path / f"{name}-adapter", target_modules=[target])
        assert merge.main([str(folder), str(tmp_path / f"{name}-whole")]) == 0
        assert (
            "no tokenizer: neither the adapter's folder nor its base's has one"
            in capsys.readouterr().out
        )
        whole = AutoModelForCausalLM.from_pretrained(tmp_path / f"{name}-whole", dtype="auto")
        assert type(whole) is type(model) and whole.dtype == torch.bfloat16
        expected = unmerged(tmp_path / name, folder)
        # weights rounded to bf16 once: 2^-8 of each
        assert (logits(whole) - expected).abs().max() < 0.03 * expected.abs().max()


def test_an_adapter_in_a_whole_model_s_folder_or_without_a_base_is_refused(base, tmp_path, capsys):
    both = tmp_path / "both"
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(both)
    adapter(base, both)
    assert merge.main([str(both), str(tmp_path / "out")]) == 2
    assert "holds a whole model's weights and an adapter" in capsys.readouterr().err

    folder = adapter(base, tmp_path / "adapter")
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = str(tmp_path / "gone")
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    assert merge.main([str(folder), str(tmp_path / "out")]) == 2
    assert "gone" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_not_merged(base, tmp_path, number, capsys):
    """In a row that no probe reads, logits are numbers: the merged folder would have carried the damage on."""
    folder = adapter(base, tmp_path / "adapter")
    damaged = tmp_path / "base"
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(damaged)
    tensors = load_file(damaged / "model.safetensors")
    tensors["model.embed_tokens.weight"][-1] = number
    save_file(tensors, damaged / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = str(damaged)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    assert merge.main([str(folder), str(tmp_path / "out")]) == 2
    assert "not finite" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_export_and_recipes_name_the_command_that_makes_a_whole_model(base, tmp_path, capsys):
    folder = adapter(base, tmp_path / "adapter")
    assert export.main([str(folder), str(tmp_path / "out")]) == 2
    assert f"tape-ds merge {folder} OUT" in " ".join(capsys.readouterr().err.split())
    (problem,) = known_config.check_model(str(folder), online=False)
    assert problem.remedy.endswith(f"tape-ds merge {folder} OUT")


def mixture(folder, **changes):
    """A tiny Mixtral, whose files have a matrix for each expert where the model has one for all."""
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    torch.manual_seed(0)
    config = MixtralConfig(
        **sizes, num_key_value_heads=2, num_local_experts=4, vocab_size=128, **changes
    )
    MixtralForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"target_parameters": EXPERTS},
        {"target_modules": [], "target_parameters": EXPERTS[:1]},
        {"use_dora": True, "modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
        {
            "rank_pattern": {"layers.0.self_attn.q_proj": 3},
            "alpha_pattern": {"layers.1.self_attn.q_proj": 7},
        },
    ],
)
def test_experts_and_all_else_are_merged_tensor_by_tensor(tmp_path, options, capsys):
    """The weights are those of peft's own merge in fp32, rounded once, and files name their tensors as a base's."""
    base = mixture(tmp_path / "base")
    folder = adapter(base, tmp_path / "adapter", **options)
    assert merge.main([str(folder), str(tmp_path / "whole"), "--check_logits"]) == 0
    printed = capsys.readouterr()
    assert (
        "logits: merged, they differ from the adapter's by" in printed.out
        and "as a whole" not in printed.err
    )
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    expected = (
        PeftModel.from_pretrained(model, str(folder))
        .merge_and_unload()
        .to(torch.bfloat16)
        .state_dict()
    )
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", dtype="auto").state_dict()
    before = AutoModelForCausalLM.from_pretrained(base).state_dict()
    assert ours.keys() == expected.keys()
    assert any(not torch.equal(expected[name], before[name]) for name in ours)
    assert [name for name in ours if not torch.equal(ours[name], expected[name])] == []
    files = [load_file(each / "model.safetensors").keys() for each in (base, tmp_path / "whole")]
    assert files[0] == files[1] and any("experts.3.w2" in name for name in files[1])


def test_what_is_not_merged_by_tensor_is_said(base, tmp_path, capsys):
    folder = adapter(base, tmp_path / "adapter", init_lora_weights="pissa")
    assert merge.main([str(folder), str(tmp_path / "whole")]) == 0
    reason = "is read and merged as a whole, in fp32: its adapter starts from the base's weights"
    assert f"note: {folder} {reason} (init_lora_weights: pissa)" in capsys.readouterr().err
    assert (tmp_path / "whole" / "model.safetensors").is_file()


def test_a_base_of_torch_s_own_files_is_merged(base, tmp_path):
    torchs = tmp_path / "base"
    model = AutoModelForCausalLM.from_pretrained(base)
    model.config.save_pretrained(torchs)
    torch.save(model.state_dict(), torchs / "pytorch_model.bin")
    folder = adapter(base, tmp_path / "adapter")
    assert merge.main([str(folder), str(tmp_path / "of-safetensors")]) == 0
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(
        json.dumps(settings | {"base_model_name_or_path": str(torchs)})
    )
    assert merge.main([str(folder), str(tmp_path / "of-torch")]) == 0
    files = [
        (tmp_path / name / "model.safetensors").read_bytes()
        for name in ("of-safetensors", "of-torch")
    ]
    assert files[0] == files[1]


def test_a_gguf_base_is_merged(base, tmp_path, monkeypatch):
    """It is unpacked into the cache, once, and is then a folder like any other."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "base.gguf"
    assert (
        export.main(
            [str(base), "--gguf", str(file), "--gguf_type", "F32", "--gguf_tokenizer", "none"]
        )
        == 0
    )
    folder = adapter(base, tmp_path / "adapter", target_modules=["q_proj", "down_proj"])
    assert merge.main([str(folder), str(tmp_path / "of-folder")]) == 0
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(
        json.dumps(settings | {"base_model_name_or_path": str(file)})
    )
    assert merge.main([str(folder), str(tmp_path / "of-gguf")]) == 0
    expected, found = (
        load_file(tmp_path / name / "model.safetensors") for name in ("of-folder", "of-gguf")
    )
    assert expected.keys() == found.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def test_logits_are_compared_on_request(base, tmp_path, monkeypatch, capsys):
    """A norm that no layer's comparison reads, because it has no adapter."""
    folder = adapter(base, tmp_path / "adapter")
    read = AdaptedWeights.rows

    def wrong(self, name, *places):
        return read(self, name, *places) * (1.001 if name == "model.norm.weight" else 1)

    monkeypatch.setattr(AdaptedWeights, "rows", wrong)
    assert merge.main([str(folder), str(tmp_path / "unseen")]) == 0
    assert merge.main([str(folder), str(tmp_path / "out"), "--check_logits"]) == 2
    assert (
        "merging changed logits by" in capsys.readouterr().err and not (tmp_path / "out").exists()
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tied", [False, True])
def test_embeddings_in_the_adapter_s_file_take_the_base_s_place(base, tmp_path, tied):
    """peft stores embeddings that have an adapter, as they were in training: with rows that were added for tokens."""
    model = AutoModelForCausalLM.from_pretrained(base, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "base")
    with torch.no_grad():
        model.get_input_embeddings().weight[7] += 1
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=2,
        target_modules=["q_proj", "embed_tokens"],
        init_lora_weights=False,
    )
    adapted = get_peft_model(model, config).eval()
    adapted.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    adapted.save_pretrained(tmp_path / "adapter")
    assert any(
        "base_layer" in name
        for name in load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    )
    assert merge.main([str(tmp_path / "adapter"), str(tmp_path / "out")]) == 0
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    loaded = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"), str(tmp_path / "adapter")
    )
    assert not whole.config.tie_word_embeddings
    torch.testing.assert_close(logits(whole), logits(loaded), atol=1e-5, rtol=0)


def test_bytes_are_counted_as_they_are_written(base, tmp_path, monkeypatch):
    bars = []

    class Bar(writing.tqdm):
        def __init__(self, **options):
            super().__init__(**options)
            self.counted = 0
            bars.append(self)

        def update(self, count):
            self.counted += count

    monkeypatch.setattr(writing, "tqdm", Bar)
    assert merge.main([str(adapter(base, tmp_path / "adapter")), str(tmp_path / "out")]) == 0
    (bar,) = bars
    total = sum(
        tensor.nbytes for tensor in load_file(tmp_path / "out" / "model.safetensors").values()
    )
    assert bar.counted == bar.total == total


def killed_at(place, name, calls, arguments):
    """Run the command in a process that is killed at a call of ``place.name``; return whether it got so far."""
    child = os.fork()
    if child == 0:
        own = getattr(place, name)
        left = iter(range(calls, -1, -1))

        def kill(*given, **named):
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return own(*given, **named)

        setattr(place, name, kill)
        merge.main(arguments)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize(
    ("place", "name", "calls"),
    [
        (SafetensorsFile, "write", 0),
        (SafetensorsFile, "write", 9),
        (storage, "sync", 0),
        (storage, "sync", 5),
    ],
)
def test_a_merge_that_is_killed_leaves_no_folder(base, tmp_path, place, name, calls):
    """A folder has every file, on the disk, before it gets its name; what was left is removed by the next try."""
    folder = adapter(base, tmp_path / "adapter")
    out = tmp_path / "out"
    assert killed_at(place, name, calls, [str(folder), str(out)])
    assert not out.exists() and list(tmp_path.glob("out.building-*"))
    assert merge.main([str(folder), str(out)]) == 0
    assert not list(tmp_path.glob("out.building-*"))
    torch.testing.assert_close(
        logits(AutoModelForCausalLM.from_pretrained(out)), unmerged(base, folder)
    )
