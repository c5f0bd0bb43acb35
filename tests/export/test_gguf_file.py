"""A GGUF file holds the model that the folder holds, in keys that llama.cpp reads; what llama.cpp would compute
otherwise is refused before anything is written. llama.cpp itself: ``test_llama_cpp.py``."""

import json
import math

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, dequantize
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tape_ds.checkpoint import source_model
from tape_ds.cli import export
from tape_ds.models.loading import extendable, model_folder
from tape_ds.targets.base import known_base
from tests.export import gguf_models
from tests.export.conftest import YARN
from tests.models.helpers import tokens

TINY = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}


def small(folder, kind="llama", scaling="yarn", **sizes):
    heads = {"llama": {"head_dim": 16}, "qwen2": {}, "qwen3": {"head_dim": 32}}[kind]
    return gguf_models.make(folder, kind, gguf_models.SCALINGS[scaling], **TINY | heads | sizes)


def write(source, file, *words):
    return export.main([str(source), "--gguf", str(file), "--gguf_tokenizer", "none", *words])


def fields(file):
    return {name: field.contents() for name, field in GGUFReader(file).fields.items()}


@pytest.mark.parametrize(("kind", "scaling"), gguf_models.CASES)
def test_a_file_read_back_is_the_folder(tmp_path, kind, scaling):
    """Tensors, with a Llama's rows in their own order again, and the whole configuration."""
    model = small(tmp_path / "model", kind, scaling)
    assert write(tmp_path / "model", tmp_path / "x.gguf", "--gguf_type", "F32") == 0
    back = model_folder.resolve(str(tmp_path / "x.gguf"), tmp_path / "models")
    again = AutoModelForCausalLM.from_pretrained(back)
    expected = model.state_dict()
    found = again.state_dict()
    assert found.keys() == expected.keys() and type(again) is type(model)
    assert all(torch.equal(found[name], expected[name]) for name in expected)

    before = extendable.read(tmp_path / "model").to_dict()
    after = extendable.read(back).to_dict()
    names = {name for name in before if before[name] != after.get(name)}
    assert names <= {"_name_or_path"}
    planned = extendable.read_gguf(tmp_path / "x.gguf").to_dict()
    assert planned["rope_parameters"] == after["rope_parameters"], (
        "a dry run reads what the run reads"
    )
    assert (
        planned["max_position_embeddings"] == after["max_position_embeddings"] == gguf_models.LENGTH
    )


def test_a_plan_reads_the_header_alone(tmp_path, monkeypatch):
    """A dry run took SmolLM2's 8,192 tokens for the length of every file that was not unpacked yet."""
    small(tmp_path / "model", scaling="llama3")
    assert write(tmp_path / "model", tmp_path / "x.gguf") == 0
    monkeypatch.setattr(model_folder, "resolve", lambda *_, **__: pytest.fail("it was unpacked"))
    base = known_base(str(tmp_path / "x.gguf"), online=False)
    assert (
        base.length == gguf_models.LENGTH and base.rope.type == "llama3" and base.rope.window == 256
    )


def test_the_keys_are_those_that_llama_cpp_reads(tmp_path):
    small(tmp_path / "model", scaling="yarn_own_factor")
    assert (
        write(tmp_path / "model", tmp_path / "x.gguf", "--license", "apache-2.0", "--name", "Small")
        == 0
    )
    found = fields(tmp_path / "x.gguf")
    assert found["llama.rope.scaling.attn_factor"] == pytest.approx(1 / (0.1 * math.log(4) + 1))
    assert "llama.rope.scaling.yarn_attn_factor" not in found, (
        "llama.cpp does not read it for a Llama"
    )
    expected = {
        "general.architecture": "llama",
        "general.name": "Small",
        "general.license": "apache-2.0",
        "general.file_type": 0,
        "llama.context_length": 1024,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.block_count": 1,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.key_length": 16,
        "llama.attention.value_length": 16,
        "llama.rope.dimension_count": 16,
        "llama.rope.freq_base": 1e4,
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 256,
        "llama.vocab_size": 64,
        "tokenizer.ggml.model": "none",
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_smaller_types_round_each_number(tmp_path, kind):
    """F16 keeps 11 bits (and 25 after the point), BF16 8; of Q8_0 a block of 32 has steps of its largest number / 127,
    and the step is in F16, which moves a number by 127 / 2048 of a step. Vectors stay in F32."""
    model = small(tmp_path / "model", "qwen2")
    assert write(tmp_path / "model", tmp_path / "x.gguf", "--gguf_type", kind.lower()) == 0
    tensors = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "x.gguf").tensors}
    assert "output.weight" not in tensors, "tied to the embeddings"
    down = tensors["blk.0.ffn_down.weight"]
    assert down.tensor_type.name == kind
    original = model.model.layers[0].mlp.down_proj.weight.detach().numpy()
    blocks = np.abs(original.reshape(64, 3, 32)).max(-1).repeat(32, -1)
    allowed = {
        "F16": np.abs(original) * 2**-11 + 2**-25,
        "BF16": np.abs(original) * 2**-8,
        "Q8_0": blocks / 127 * (0.5 + 127 / 2048),
    }
    error = np.abs(dequantize(down.data, down.tensor_type) - original)
    assert error.max() > 0 and np.all(error <= allowed[kind])
    for name in ("output_norm.weight", "blk.0.attn_q.bias"):
        assert tensors[name].tensor_type == GGMLQuantizationType.F32


def test_pieces_are_the_whole(tmp_path, monkeypatch):
    """A tensor is converted a few rows at a time, a Llama's queries and keys in whole heads."""
    small(tmp_path / "model")
    assert (
        write(tmp_path / "model", tmp_path / "whole.gguf", "--gguf_type", "Q8_0", "--name", "x")
        == 0
    )
    monkeypatch.setattr("tape_ds.export.gguf_file._PIECE", 5 * 64)
    assert (
        write(tmp_path / "model", tmp_path / "pieces.gguf", "--gguf_type", "Q8_0", "--name", "x")
        == 0
    )
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "pieces.gguf").read_bytes()


@pytest.mark.parametrize("scaling", [YARN, {"rope_type": "ntk", "rope_theta": 1e4, "factor": 2.0}])
def test_a_run_is_written_from_its_base_and_what_it_trained(run, tmp_path, scaling):
    made = run("rope", "norms", scaling, trained=("norm",))
    assert write(made, tmp_path / "x.gguf") == 0
    again = AutoModelForCausalLM.from_pretrained(
        model_folder.resolve(str(tmp_path / "x.gguf"), tmp_path / "models")
    )
    ids = tokens(2, 100)
    with torch.no_grad():
        expected = source_model.find(str(made)).whole().fill(torch.float32)(ids).logits
        assert (again.eval()(ids).logits - expected).abs().max() <= 1e-4


def test_a_folder_and_a_file_are_written_together(run, tmp_path, capsys):
    made = run("rope", "norms", YARN, trained=("norm",))
    assert write(made, tmp_path / "x.gguf", "--dtype", "bfloat16") == 0
    words = [
        str(made),
        str(tmp_path / "out"),
        "--gguf",
        str(tmp_path / "y.gguf"),
        "--gguf_tokenizer",
        "none",
    ]
    assert export.main([*words, "--dtype", "bfloat16"]) == 0
    assert (tmp_path / "out" / "config.json").is_file()
    one = GGUFReader(tmp_path / "x.gguf").tensors
    other = GGUFReader(tmp_path / "y.gguf").tensors
    assert all(
        np.array_equal(first.data, second.data) for first, second in zip(one, other, strict=True)
    )
    assert {tensor.tensor_type.name for tensor in other} == {"BF16", "F32"}, "as --dtype says"
    assert "llama, BF16" in capsys.readouterr().out


def test_frequencies_in_older_files_are_left_out(tmp_path):
    """Llama 2's files hold them in each layer; llama.cpp stops at a tensor that it does not know."""
    small(tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    assert write(tmp_path / "model", tmp_path / "x.gguf") == 0
    assert len(GGUFReader(tmp_path / "x.gguf").tensors) == len(tensors) - 1


REFUSED = {
    "truncate": (
        gguf_models.SCALINGS["yarn"] | {"truncate": False},
        r"rope_parameters\.truncate = False",
    ),
    "beta_fast": (
        gguf_models.SCALINGS["yarn"] | {"beta_fast": 8},
        r"rope_parameters\.beta_fast = 8",
    ),
    "dynamic": (
        {
            "rope_type": "dynamic",
            "rope_theta": 1e4,
            "factor": 2.0,
            "original_max_position_embeddings": 1024,
        },
        r"rope_parameters\.rope_type = 'dynamic'",
    ),
    "longrope": (
        {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 256,
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 8,
        },
        r"rope_parameters\.rope_type = 'longrope'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_llama_cpp_computes_otherwise_is_refused(tmp_path, capsys, name):
    rope_parameters, words = REFUSED[name]
    gguf_models.make(tmp_path / "model", "llama", rope_parameters, **TINY, head_dim=16)
    before = sorted(tmp_path.iterdir())
    assert write(tmp_path / "model", tmp_path / "x.gguf") == 2
    shown = capsys.readouterr().err
    assert words.replace("\\", "") in shown and "export a folder" in shown
    assert sorted(tmp_path.iterdir()) == before, "nothing is written"


def test_llama3_of_a_qwen_is_refused(tmp_path, capsys):
    """llama.cpp's graphs of Qwen2 and Qwen3 do not read rope_freqs.weight."""
    small(tmp_path / "model", "qwen3", "llama3")
    assert write(tmp_path / "model", tmp_path / "x.gguf") == 2
    assert "rope_freqs.weight to a Llama alone, and this is qwen3" in capsys.readouterr().err


def test_other_models_are_refused(run, tmp_path, capsys):
    assert write(run(), tmp_path / "x.gguf") == 2
    assert "position_encoding = 'tape': llama.cpp has no such positions" in capsys.readouterr().err
    small(tmp_path / "gpt")
    content = json.loads((tmp_path / "gpt" / "config.json").read_text()) | {"model_type": "gpt2"}
    (tmp_path / "gpt" / "config.json").write_text(json.dumps(content))
    assert write(tmp_path / "gpt", tmp_path / "x.gguf") == 2
    assert "model_type is 'gpt2'" in capsys.readouterr().err
    assert not (tmp_path / "x.gguf").exists()


def test_all_mistakes_at_once(tmp_path, capsys):
    words = [
        str(tmp_path / "none"),
        "--gguf",
        str(tmp_path / "x.bin"),
        "--gguf_type",
        "Q4_0",
        "--push",
        "me/model",
    ]
    assert export.main([*words, "--gguf_tokenizer", "lama-bpe"]) == 2
    shown = capsys.readouterr().err
    for expected in ("no such folder", "ends in .gguf", "'Q4_0'", "'lama-bpe'", "none is written"):
        assert expected in shown
    assert export.main([str(tmp_path)]) == 2
    assert "name a new folder, or a file: --gguf FILE" in capsys.readouterr().err
    (tmp_path / "x.gguf").touch()
    assert write(tmp_path, tmp_path / "x.gguf") == 2
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [(float("nan"), "F32", "not finite"), (7e4, "F16", "it holds 70000, and F16 ends at 65504")],
)
def test_a_weight_that_is_no_number_leaves_no_file(tmp_path, capsys, value, kind, words):
    small(tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][3, 5] = value
    save_file(tensors, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    assert write(tmp_path / "model", tmp_path / "x.gguf", "--gguf_type", kind) == 2
    shown = capsys.readouterr().err
    assert words in shown and "model.layers.0.mlp.up_proj.weight" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_q8_0_needs_whole_blocks(tmp_path, capsys):
    small(tmp_path / "model", intermediate_size=100)
    assert write(tmp_path / "model", tmp_path / "x.gguf", "--gguf_type", "Q8_0") == 2
    assert "intermediate_size = 100: Q8_0 has blocks of 32 columns" in capsys.readouterr().err
    assert write(tmp_path / "model", tmp_path / "x.gguf", "--gguf_type", "F16") == 0
