"""The model that a recipe trains, found from small files."""

import pytest
import torch
from safetensors.torch import save_file

from tape_ds.errors import UserError
from tape_ds.models.loading import extendable, model_folder
from tape_ds.planning import shape
from tape_ds.targets.base import find_base, known_base
from tape_ds.targets.find import find_target, known_target, planned_target
from tape_ds.targets.finetuning import finetuned
from tape_ds.targets.published import configuration
from tests.config import loads


def test_a_folders_configuration_stands_in_for_the_recipes_model(tmp_path):
    configuration("meta-llama/Llama-2-13b-hf").save_pretrained(tmp_path)
    recipe = loads.extension(["--recipe", "llama2_7b_8k"], world_size=8)
    for given in (tmp_path, tmp_path / "config.json"):
        assert planned_target(recipe, str(given)).config.hidden_size == 5120
        assert find_base(str(given)).config.hidden_size == 5120


def test_a_look_reads_no_model_that_is_not_at_hand(monkeypatch, tmp_path):
    """Neither the network nor an unpacked file: published sizes, or a folder's configuration, or nothing."""
    monkeypatch.setattr(model_folder, "resolve", lambda model: pytest.fail(model))
    monkeypatch.setattr(
        "tape_ds.data.tokenizer.load_tokenizer", lambda tokenizer: pytest.fail(tokenizer)
    )
    assert known_target(loads.extension(["--model", "somebody/llama-11b"], world_size=1)) is None
    assert (
        known_target(loads.extension(["--model", "smollm2"], world_size=1)).config.hidden_size
        == 576
    )
    configuration("meta-llama/Llama-2-13b-hf").save_pretrained(tmp_path)
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "tokenizer.json").write_text("{}")
    local = loads.extension(["--recipe", "llama2_7b_8k", "--model", str(tmp_path)], world_size=1)
    assert known_target(local).config.hidden_size == 5120
    own = loads.pretraining(
        ["--recipe", "c4_155m_tape", "--tokenizer", "somebody/words", "--vocab_size", "null"], 1
    )
    assert known_target(own) is None


def test_a_run_finds_its_model_before_anything_is_unpacked(monkeypatch):
    """Of a GGUF file the header is enough for every check; unpacking one of 7 B takes minutes."""
    monkeypatch.setattr(model_folder, "resolve", lambda *_, **__: pytest.fail("it was unpacked"))
    found = find_target(loads.extension(["--model", "smollm2"], world_size=1))
    assert (found.base.folder, found.base.length, found.config.hidden_size) == ("", 8192, 576)


def test_smollm2_is_planned_by_the_sizes_that_it_has():
    unpacked = extendable.read(model_folder.resolve("smollm2"))
    found = shape.sizes(extendable.configure(unpacked, position_encoding="rope"))
    assert shape.sizes(configuration("smollm2")) == found


def test_a_base_that_has_the_encoding_keeps_its_options(tmp_path):
    """The planner counted the default rank, whatever the model had."""
    configuration(
        "smollm2", position_encoding="tape", position_options={"rank": 5}
    ).save_pretrained(tmp_path)
    found = planned_target(
        loads.extension(["--method", "tape"], world_size=1), str(tmp_path)
    ).config
    assert found.position_options["rank"] == 5


def test_a_new_model_that_cannot_be_cut_is_refused_beforehand():
    """It was built first, and refused when it was handed to its ranks."""
    words = [
        "--vocab_size",
        "3",
        "--tensor_parallel_size",
        "4",
        "--deepspeed",
        "zero1",
        "--global_batch_size",
        "8",
    ]
    recipe = loads.pretraining(["--recipe", "tiny", "--position_encoding", "rope", *words], 4)
    with pytest.raises(UserError, match="tensor_parallel_size"):
        known_target(recipe)


def test_log_scale_begins_at_the_length_that_a_model_has_natively(tmp_path):
    """It began at the target, and had no effect on any text that was trained."""
    words = [
        "--recipe",
        "smollm2_16k_lora",
        "--position_options",
        "{log_scale: all, log_scale_by: positions}",
    ]
    found = planned_target(loads.extension(words, world_size=1)).config
    assert found.max_position_embeddings == 16384
    assert found.position_options == {
        "log_scale": "all",
        "log_scale_by": "positions",
        "log_scale_from": 8192,
    }
    own = [*words[:2], "--position_options", "{log_scale: all, log_scale_from: 4096}"]
    assert (
        planned_target(loads.extension(own, world_size=1)).config.position_options["log_scale_from"]
        == 4096
    )


def test_a_model_keeps_the_length_where_its_log_scale_begins(tmp_path):
    """It moved with max_position_embeddings: an extended or fine-tuned model computed other scores than its base."""
    configuration(
        "smollm2", position_encoding="rope", position_options={"log_scale": "all"}
    ).save_pretrained(tmp_path)
    kept = {"log_scale": "all", "log_scale_from": 8192}
    extended = loads.extension(
        ["--recipe", "smollm2_16k_lora", "--position_options", "{}"], world_size=1
    )
    assert planned_target(extended, str(tmp_path)).config.position_options == kept
    base = find_base(str(tmp_path))
    tuned = finetuned(loads.chat([], world_size=1), base, 16384)
    assert tuned.max_position_embeddings == 16384 and tuned.position_options == kept
    plain = known_base("smollm2", online=False)
    assert not finetuned(loads.chat([], world_size=1), plain, 16384).position_options
