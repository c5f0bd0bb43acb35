"""Folders that are written tensor by tensor are those that transformers writes, to the last byte."""

import inspect

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
)

from tape_ds.errors import UserError
from tape_ds.models import model_weights, writing
from tape_ds.models.files import weight_files
from tape_ds.models.files.tensor_rows import StoredRows
from tape_ds.models.model_weights import StoredWeights
from tests.disks import files

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 90,
}


def llama(**changes):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, **changes))


def mixtral():
    torch.manual_seed(0)
    return MixtralForCausalLM(MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=3))


def weights_of(folder, kind):
    on_meta = kind.from_pretrained(folder, device_map={"": "meta"}, dtype=torch.float32)
    return StoredWeights(on_meta, StoredRows(weight_files.files(folder)))


def same_folder(one, other):
    assert files(one) == files(other)
    assert [
        name for name in files(one) if (one / name).read_bytes() != (other / name).read_bytes()
    ] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "make",
    [llama, lambda: llama(tie_word_embeddings=True), mixtral],
    ids=["llama", "tied", "experts"],
)
def test_a_written_folder_is_the_one_that_transformers_saves(tmp_path, make, dtype):
    """Configuration, settings of generation and weights, from a base in fp32 cast to the dtype that is asked for."""
    model = make()
    model.save_pretrained(tmp_path / "base")
    model.to(dtype).save_pretrained(tmp_path / "theirs")
    writing.write(
        weights_of(tmp_path / "base", type(model)), tmp_path / "ours", dtype, "model", "base"
    )
    same_folder(tmp_path / "ours", tmp_path / "theirs")


def test_shards_are_those_of_transformers(tmp_path, monkeypatch):
    """And so is the index; the base's own shards may be others."""
    llama().save_pretrained(tmp_path / "base", max_shard_size="30KB")
    LlamaForCausalLM.from_pretrained(tmp_path / "base").save_pretrained(
        tmp_path / "theirs", max_shard_size="50KB"
    )
    signature = inspect.signature(PreTrainedModel.save_pretrained)
    smaller = [
        each.replace(default="50KB") if each.name == "max_shard_size" else each
        for each in signature.parameters.values()
    ]
    monkeypatch.setattr(inspect, "signature", lambda _: signature.replace(parameters=smaller))
    writing.write(
        weights_of(tmp_path / "base", LlamaForCausalLM),
        tmp_path / "ours",
        torch.float32,
        "model",
        "base",
    )
    assert len(list((tmp_path / "ours").glob("model-*-of-*.safetensors"))) > 1
    same_folder(tmp_path / "ours", tmp_path / "theirs")


def test_weights_that_are_not_finite_are_all_named(tmp_path):
    llama().save_pretrained(tmp_path / "base")
    tensors = load_file(tmp_path / "base" / "model.safetensors")
    for name in ("model.norm.weight", "lm_head.weight"):
        tensors[name].view(-1)[-1] = float("inf")
    save_file(tensors, tmp_path / "base" / "model.safetensors", metadata={"format": "pt"})
    for use in (
        lambda weights: writing.write(weights, tmp_path / "ours", torch.bfloat16, "model", "base"),
        lambda weights: model_weights.fill(weights, torch.bfloat16, "model", "base"),
    ):
        with pytest.raises(
            UserError, match=r"not finite, NaN or infinite: lm_head.weight, model.norm.weight"
        ):
            use(weights_of(tmp_path / "base", LlamaForCausalLM))


def test_a_file_of_several_dtypes_is_read_by_safetensors(tmp_path):
    """In any order of writing, and with a tensor without dimensions and an empty one."""
    tensors = {
        "b": torch.randn(3, 5).bfloat16(),
        "a": torch.randn(7),
        "count": torch.tensor(5),
        "mask": torch.tensor([True, False, True]),
        "none": torch.zeros(0, 4),
    }
    forms = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    file = writing.SafetensorsFile(tmp_path / "x.safetensors", forms)
    for name in ("mask", "none", "a", "count", "b"):
        assert sum(file.write(name, [tensors[name]])) == tensors[name].nbytes
    assert file.is_full
    file.close()
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys() and all(
        torch.equal(found[name], tensors[name]) for name in tensors
    )
    stored = StoredRows([tmp_path / "x.safetensors"])
    assert all(torch.equal(stored.rows(name), tensor) for name, tensor in tensors.items())
    assert torch.equal(stored.rows("b", 1, 3), tensors["b"][1:3])


def test_a_model_is_filled_as_transformers_loads_it(tmp_path):
    """A base whose two tied weights differ is loaded with both, with a warning."""
    model = llama(tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "base")
    tensors = load_file(tmp_path / "base" / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, tmp_path / "base" / "model.safetensors", metadata={"format": "pt"})
    expected = LlamaForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.bfloat16).eval()
    filled = model_weights.fill(
        weights_of(tmp_path / "base", LlamaForCausalLM), torch.bfloat16, "model", "base"
    )
    assert filled.lm_head.weight is not filled.model.embed_tokens.weight
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(filled(ids).logits, expected(ids).logits)
    assert filled.config.to_dict() | {"dtype": None} == expected.config.to_dict() | {"dtype": None}
    writing.write(
        weights_of(tmp_path / "base", LlamaForCausalLM),
        tmp_path / "again",
        torch.float32,
        "model",
        "base",
    )
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert torch.equal(again["lm_head.weight"], tensors["lm_head.weight"])
