"""What other programs look for in a model of transformers', do with it, and what of that is refused."""

import copy

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.integrations.executorch import register_dynamic_cache_export_support

from tape_ds.models.llama import TapeForCausalLM
from tests.models.helpers import ENCODINGS, SIZES, rounding, tiny_model, tokens


def smoothed_loss(model, ids, folder):
    arguments = TrainingArguments(folder, label_smoothing_factor=0.1, use_cpu=True, report_to=[])
    with torch.no_grad():
        return Trainer(copy.deepcopy(model), arguments).compute_loss(
            model.eval(), {"input_ids": ids, "labels": ids}
        )


def test_a_plain_trainer_smooths_the_next_token_s_label(tmp_path):
    """It shifts labels for the classes in a table of transformers; elsewhere the label would be the token itself."""
    llama = LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2))
    model, ids = tiny_model(encoding="rope"), tokens(2, 12)
    model.load_state_dict(llama.state_dict())
    expected = smoothed_loss(llama, ids, tmp_path)
    torch.testing.assert_close(smoothed_loss(model, ids, tmp_path), expected, rtol=0, atol=1e-5)


def test_continuous_batching_is_refused_at_the_call():

    with pytest.raises(ValueError, match="continuous batching keeps its own pages"):
        tiny_model().generate_batch([[5, 6, 7]], max_new_tokens=2)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_blocks_on_disk_compute_the_same(tmp_path, encoding):
    """accelerate moves what a block is called with to the block's device; an encoding whose weights are on disk cannot
    be moved."""
    model, ids = tiny_model(encoding=encoding), tokens(2, 9)
    model.save_pretrained(tmp_path)
    disk = ["model.layers.1", "model.layers.2", "model.norm", "model.encoding"]
    places = {
        "model.embed_tokens": "cpu",
        "model.layers.0": "cpu",
        "lm_head": "cpu",
        **dict.fromkeys(disk, "disk"),
    }
    with torch.no_grad():
        offloaded = TapeForCausalLM.from_pretrained(
            tmp_path, device_map=places, offload_folder=tmp_path / "off"
        ).eval()
        torch.testing.assert_close(
            offloaded(ids).logits, model(ids).logits, rtol=0, atol=rounding(model, ids)
        )


class OneToken(torch.nn.Module):
    """A step of decoding as ``torch.export`` takes it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, past):
        return self.model(ids, past_key_values=past).logits


@pytest.mark.parametrize(
    "encoding",
    ["rope", "tape", "tape from alibi", "alibi", "t5", "fire", "bipe_rope", "rope log scale"],
)
def test_an_exported_step_counts_any_cache(encoding):
    """Its length is a symbol there, neither an int nor a tensor."""
    register_dynamic_cache_export_support()
    model, ids = tiny_model(encoding=encoding), tokens(1, 12)

    def filled(length):
        past = DynamicCache()
        model(ids[:, :length], past_key_values=past)
        return past

    any_length = [{2: torch.export.Dim.DYNAMIC}] * 3
    shapes = {"ids": None, "past": [any_length, any_length]}
    with torch.no_grad():
        whole = model(ids).logits
        step = torch.export.export(
            OneToken(model), (ids[:, 7:8], filled(7)), dynamic_shapes=shapes, strict=False
        )
        for at in (5, 9, 11):
            out = step.module()(ids[:, at : at + 1], filled(at))
            torch.testing.assert_close(
                out, whole[:, at : at + 1], rtol=0, atol=rounding(model, ids)
            )
