"""A model is built from exactly the files that were checked, and compared with them before memory is taken."""

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tape_ds.cli import convert as convert_command
from tape_ds.errors import UserError
from tape_ds.models import convert
from tape_ds.models.files import exact, weight_files
from tape_ds.models.loading import extendable, known_config
from tape_ds.targets.find import find_target
from tape_ds.training import dry_run
from tape_ds.training.runs import assembly
from tests.config import loads
from tests.models import tiny_decoders
from tests.models.helpers import tiny_model, tokens
from tests.models.test_rows import tokenizer_of
from tests.training.runs.helpers import flags


@pytest.fixture
def plain(tmp_path):
    """A Llama's folder."""
    folder = tmp_path / "plain"
    convert.to_plain(tiny_model(encoding="rope")).save_pretrained(folder)
    return folder


def load(folder):
    return convert.load(folder, convert.tape_config(extendable.read(folder)))


def change(folder, **fields):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def merged_over_adapter(base, folder):
    """What ``merge_and_unload().save_pretrained(ADAPTER_FOLDER)`` leaves: whole weights, and the old adapter."""
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"], init_lora_weights=False),
    )
    adapted.save_pretrained(folder)
    whole = adapted.merge_and_unload()
    whole.save_pretrained(folder)
    return whole


def test_an_adapter_beside_whole_weights_is_refused_until_one_is_moved(plain, tmp_path, capsys):
    """transformers put the adapter onto the weights that it was merged into: another model was scored, and trained."""
    both = tmp_path / "both"
    whole = merged_over_adapter(plain, both)
    (both / "tokenizer.json").write_text("{}")
    assert any(
        "an adapter (adapter_config.json)" in each.wrong
        for each in known_config.check_model(str(both), online=False)
    )
    with pytest.raises(UserError, match="either may be what is meant"):
        load(both)
    assert convert_command.main(["llama-to-tape", str(both), str(tmp_path / "out")]) == 2
    assert (
        "either may be what is meant" in capsys.readouterr().err and not (tmp_path / "out").exists()
    )

    (tmp_path / "aside").mkdir()
    for file in both.glob("adapter_*"):
        file.rename(tmp_path / "aside" / file.name)
    ids = tokens(1, 20)
    torch.testing.assert_close(load(both)(ids).logits, whole(ids).logits, atol=1e-5, rtol=0)


def shard_without_metadata(folder):
    (folder / weight_files.WHOLE).rename(folder / "model-1.safetensors")
    places = dict.fromkeys(
        weight_files.headers_of(folder / "model-1.safetensors"), "model-1.safetensors"
    )
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


LEFT_OVERS = {
    "distributed checkpoint": lambda folder: (folder / ".metadata").write_bytes(b"x"),
    "older weights": lambda folder: torch.save({"x": torch.ones(1)}, folder / "pytorch_model.bin"),
    "stale shard": lambda folder: save_file(
        {"x": torch.ones(1)}, folder / "model-00001-of-00002.safetensors"
    ),
    "code": lambda folder: (folder / "modeling_llama.py").write_text("raise SystemExit\n"),
    "an index without metadata": shard_without_metadata,
}


@pytest.mark.parametrize("leave", LEFT_OVERS.values(), ids=LEFT_OVERS)
def test_what_else_is_in_a_folder_changes_nothing(plain, leave):
    """A file ``.metadata`` made transformers read a distributed checkpoint; an index without ``metadata`` was a
    KeyError of its own."""
    expected = load(plain)
    leave(plain)
    with exact.checked_files(plain) as folder:
        read = {file.name for file in folder.iterdir()}
    extra = {"model.safetensors.index.json"} if leave is shard_without_metadata else set()
    files = {file.name for file in weight_files.files(plain)}
    assert read == files | extra | {"config.json", "generation_config.json"}
    model = load(plain)
    ids = tokens(1, 20)
    assert torch.equal(model(ids).logits, expected(ids).logits)
    assert model.name_or_path == model.config.name_or_path == str(plain)


def with_tensors(folder, rename):
    tensors = load_file(folder / weight_files.WHOLE)
    renamed = {rename(name): tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / weight_files.WHOLE, metadata={"format": "pt"})


WRONG = {
    "layers": (
        partial(change, num_hidden_layers=9_000_000),
        "num_hidden_layers = 9,000,000, and the weights are",
    ),
    "width": (
        partial(change, hidden_size=2**40),
        r"hidden_size = 1,099,511,627,776, and the weights are",
    ),
    "rows": (
        partial(change, vocab_size=60),
        r"of another shape: .*embed_tokens.weight \[61, 32\], not \[60, 32\]",
    ),
    "compiled": (
        partial(with_tensors, rename=lambda name: f"_orig_mod.{name}"),
        r"without a place: _orig_mod",
    ),
    "wrapped": (
        partial(with_tensors, rename=lambda name: f"module.{name}"),
        r"without a place: module.*every name begins with 'module\.'",
    ),
    "other file": (
        partial(change, transformers_weights="ema.safetensors"),
        "names ema.safetensors as its weights",
    ),
}


@pytest.mark.parametrize(("damage", "wrong"), WRONG.values(), ids=WRONG)
def test_headers_are_compared_before_a_model_is_built(plain, monkeypatch, damage, wrong):
    """Sizes that the weights do not bear out took gigabytes; other names were found when the data had been read."""
    config = convert.tape_config(extendable.read(plain))
    extendable.check_weights(plain, config)
    damage(plain)
    monkeypatch.setattr(torch.nn.Module, "to", lambda *_, **__: pytest.fail("it was built"))
    with pytest.raises(UserError, match=f"(?s){wrong}"):
        extendable.check_weights(plain, convert.tape_config(extendable.read(plain)))


def test_settings_of_generation_are_read_or_refused(plain):
    """transformers takes none, silently, from a file that it cannot read."""
    (plain / "generation_config.json").write_text('{"temperature": 0.5, "do_sample": true}')
    assert load(plain).generation_config.temperature == 0.5
    (plain / "generation_config.json").write_text('{"temperature": 0.5')
    with pytest.raises(UserError, match=r"generation_config\.json is not readable"):
        load(plain)


def test_a_pipe_in_a_folder_is_refused(plain):
    os.mkfifo(plain / "tokenizer.json")
    (problem,) = weight_files.check_folder(plain)
    assert "tokenizer.json: a pipe" in problem.wrong


def test_a_padding_token_without_a_row_is_none(plain, caplog):
    """People add [PAD] and do not resize: torch's assertion was the message. What is padded is never read."""
    extendable.say_once.cache_clear()
    change(plain, pad_token_id=32_000)
    native = extendable.read(plain)
    assert native.pad_token_id is None
    assert "pad_token_id 32,000 has none of the 61 rows" in caplog.text
    assert load(plain).config.pad_token_id is None
    for kept in (-1, 60):  # the first LLaMA's, counted from the end
        change(plain, pad_token_id=kept)
        assert extendable.read(plain).pad_token_id == kept


def test_a_padding_token_without_a_row_is_refused_where_the_class_takes_no_null(tmp_path):
    """It was a traceback."""
    config = tiny_decoders.tiny_config("modernbert-decoder").to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config | {"pad_token_id": 50_283}))
    with pytest.raises(
        UserError, match=r"pad_token_id 50,283 has none of the 97 rows.* takes no null"
    ):
        extendable.read(tmp_path)


def test_sizes_that_differ_by_layer_are_compared(tmp_path):
    """transformers gives no head_dim for all layers of Gemma 4, and its error was the end of every run."""
    embeddings = {f"model.layers.{layer}.weight": torch.zeros(97, 64) for layer in range(8)}
    save_file(embeddings, tmp_path / "model.safetensors")
    assert exact.check_sizes(tmp_path, tiny_decoders.tiny_config("gemma4_text")) == []
    (problem,) = exact.check_sizes(
        tmp_path, tiny_decoders.tiny_config("gemma4_text", head_dim=1_000_000)
    )
    assert "head_dim = 1,000,000" in problem.wrong


def test_attention_from_the_hub_is_not_fetched(plain, caplog):
    """With the package kernels, transformers would run what config.json names."""
    extendable.say_once.cache_clear()
    change(plain, attn_implementation="kernels-community/flash-attn2")
    assert extendable.read(plain)._attn_implementation is None
    assert "names the attention kernels-community/flash-attn2" in caplog.text
    change(plain, attn_implementation="eager")
    assert extendable.read(plain)._attn_implementation == "eager"


def test_weights_keep_the_dtype_of_their_files(plain, tmp_path):
    """Pythia's and EXAONE's files are fp32, their config.json says 16 bit: merging and exporting rounded to that."""
    change(plain, dtype="bfloat16")
    native = extendable.read(plain)
    assert native.dtype == torch.bfloat16
    assert exact.stored_dtype(plain, native) == torch.float32
    assert (
        convert_command.main(
            ["llama-to-tape", str(plain), str(tmp_path / "out"), "--position_encoding", "rope"]
        )
        == 0
    )
    assert {header.dtype for header in weight_files.headers(tmp_path / "out").values()} == {"F32"}
    torch.save(load(plain).state_dict(), plain / weight_files.PICKLED)
    (plain / weight_files.WHOLE).unlink()
    assert exact.stored_dtype(plain, native) == torch.bfloat16


@pytest.mark.parametrize("dtype", ["int8", 1.5])
def test_a_dtype_that_no_weight_has_is_refused(plain, dtype):
    change(plain, dtype=dtype)
    with pytest.raises(UserError, match=r"its config\.json has dtype = "):
        extendable.read(plain)


def test_weights_that_are_nan_are_not_converted(plain, tmp_path, capsys):
    """They were written into the new folder, with exit code 0."""
    tensors = load_file(plain / weight_files.WHOLE)
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, plain / weight_files.WHOLE, metadata={"format": "pt"})
    assert convert_command.main(["llama-to-tape", str(plain), str(tmp_path / "out")]) == 2
    assert "NaN or infinite: model.norm.weight" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_first_llama_s_length_is_its_own(plain):
    """Its config.json has max_sequence_length alone."""
    content = json.loads((plain / "config.json").read_text())
    del content["max_position_embeddings"]
    (plain / "config.json").write_text(json.dumps(content | {"max_sequence_length": 2048}))
    assert extendable.read(plain).max_position_embeddings == 2048


def test_a_copy_elsewhere_is_the_same_model(plain, tmp_path):
    """A folder's name has no part in what is built, though links are read in its place."""
    copied = Path(shutil.copytree(plain, tmp_path / "with space [and] % signs"))
    ids = tokens(1, 20)
    assert torch.equal(load(copied)(ids).logits, load(plain)(ids).logits)


def test_a_run_and_its_dry_run_compare_the_weights_first(plain, tmp_path, monkeypatch):
    """Weights of a wrapped model were found when the data had been tokenised, and by the dry run not at all."""
    tokenizer_of(61).save_pretrained(plain)
    (tmp_path / "text.txt").write_text("some text\n")
    fields = {
        "model": plain,
        "train_data": f"text:{tmp_path}/text.txt",
        "output_dir": tmp_path / "run",
    }
    fields |= {
        "method": "lora",
        "target_length": 128,
        "rope_parameters": "{}",
        "window": 16,
        "pose_chunks": 1,
    }
    fields |= {
        "eval_data": "",
        "eval_length": 64,
        "passkey_lengths": "[]",
        "global_batch_size": 4,
        "deepspeed": "null",
    }
    recipe = loads.extension(flags(fields | {"bf16": "false", "dry_run": "true"}))
    assert "64 -> 128 positions" in dry_run.describe(recipe)
    with_tensors(plain, lambda name: f"module.{name}")
    with pytest.raises(UserError, match="without a place: module"):
        dry_run.describe(recipe)
    monkeypatch.setattr(assembly, "join", lambda *_: pytest.fail("it joined the job"))
    with pytest.raises(UserError, match="without a place: module"):
        assembly.assemble(find_target(recipe))
