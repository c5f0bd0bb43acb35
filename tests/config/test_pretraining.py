"""The recipe of the pretraining launcher: its own contradictions, its defaults, and the shipped ones."""

from functools import partial
from pathlib import Path

import pytest
import torch

from tape_ds import TapeForCausalLM, encodings
from tape_ds.cli import train
from tape_ds.config import extension, files, pretraining
from tape_ds.config.pretraining import load
from tests.config import helpers

ENCODINGS = (
    *(
        "alibi",
        "bipe_alibi",
        "bipe_rope",
        "cope",
        "fire",
        "fox",
        "nope",
        "pope",
        "prope",
        "randpe",
        "repo",
        "rope",
        "sincos",
        "t5",
    ),
    *("tape", "xpos", "yarn"),
)
ABLATIONS = helpers.in_folder("ablations")
RECIPES = (*(f"c4_155m_{encoding}" for encoding in ENCODINGS), "c4_7b", "tiny", *ABLATIONS)

GOOD = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "position_encoding": "rope",
    "vocab_size": 600,
    "train_data": ["stdlib"],
    "eval_data": ["stdlib:typing.py"],
    "window": 64,
    "max_steps": 4,
    "global_batch_size": 8,
}
write = partial(helpers.write, good=GOOD)
problems_of = partial(helpers.problems_of, load=load)


# (what to change, expected field, part of the value shown, part of the remedy)
MALFORMED = {
    # sizes
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers", "0", "1 or more"),
    "heads that do not share": ({"num_attention_heads": 5}, "hidden_size", "64", "a multiple"),
    "key heads that do not share": ({"num_key_value_heads": 3}, "num_key_value_heads", "3", "divisor"),
    "odd heads": ({"head_dim": 15}, "head_dim", "15", "even"),
    "no spread": ({"initializer_range": 0}, "initializer_range", "0", "above 0"),
    "unknown encoding": ({"position_encoding": "roep"}, "position_encoding", "roep", "rope"),
    "unknown option": ({"position_options": {"rank": 4}}, "position_options.rank", "rope", "one of"),
    "impossible option": (
        {"position_encoding": "randpe", "position_options": {"max_range": 32}},
        "position_options.max_range",
        "32",
        "that or more",
    ),
    "unknown angles": ({"rope_parameters": {"rope_type": "yran"}}, "rope_parameters.rope_type", "yran", "yarn"),
    "unknown backend": ({"attention_backend": "flash9"}, "attention_backend", "flash9", "flash"),
    # vocabulary
    "no vocabulary": ({"vocab_size": None}, "vocab_size", "None", "tokenizer"),
    "empty vocabulary": ({"vocab_size": 0}, "vocab_size", "0", "1 or more"),
    "no such tokenizer": ({"tokenizer": "./gone"}, "tokenizer", "./gone", "hub id"),
    # data
    "no sequence": ({"window": 1}, "window", "1", "2 or more"),
    "no data": ({"train_data": []}, "train_data", "[]", "stdlib"),
    "epochs with weights": (
        {
            "train_data": [{"source": "stdlib", "weight": 1}, {"source": "stdlib:ast.py", "weight": 1}],
            "max_steps": -1,
            "num_train_epochs": 2.0,
        },
        "max_steps",
        "-1",
        "give the number of steps",
    ),
    "no stream workers": ({"streaming": True, "stream_workers": 0}, "stream_workers", "0", "1 or more"),
    "stream by epochs": (
        {"streaming": True, "max_steps": -1, "num_train_epochs": 2},
        "max_steps",
        "-1",
        "give the steps",
    ),
    "many readers": ({"streaming": True, "dataloader_num_workers": 2}, "dataloader_num_workers", "2", "1"),
    # evaluation
    "no lengths": ({"eval_lengths": []}, "eval_lengths", "[]", "eval_data"),
    "a length without a target": ({"eval_lengths": [1, 64]}, "eval_lengths", "[1, 64]", "2 or more"),
    "a length twice": ({"eval_lengths": [64, 64]}, "eval_lengths", "[64, 64]", "once"),
    "less than a block": ({"eval_tokens": 500}, "eval_tokens", "500", "512 or more"),
    "a field of the other launcher": ({"method": "lora"}, "method", "lora", "one of"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_recipe_names_field_value_and_remedy(name):
    helpers.check_malformed(*MALFORMED[name], load=load, good=GOOD)


def test_token_ids_are_not_streamed(tmp_path):
    import datasets

    datasets.Dataset.from_dict({"input_ids": [[1, 2, 3]]}).save_to_disk(str(tmp_path / "ids"))
    found, _ = problems_of("--recipe", write(train_data=[f"arrow:{tmp_path}/ids"], eval_data=[], streaming=True))
    assert found["train_data"].remedy == "set streaming: false"


def test_required_fields_are_named_together():
    fields = pretraining.PretrainingRecipe.fields()
    required = [name for name, field in fields.items() if field.is_required()]
    found, _ = problems_of("--recipe", write(without=required))
    assert set(found) == set(required)


def test_what_follows_from_other_fields():
    recipe = load(["--recipe", write()])
    assert (recipe.model.num_key_value_heads, recipe.model.head_dim) == (4, 16)
    assert recipe.evaluation.eval_lengths == [64, 128, 256, 512]
    assert recipe.model.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}
    assert load(["--recipe", write(head_dim=32, num_attention_heads=5, hidden_size=80)]).model.head_dim == 32


# --- recipes know their launcher


def test_a_recipe_of_the_other_launcher_is_one_problem():
    """Not a dozen unknown fields."""
    found, message = problems_of("--recipe", "demo")
    assert set(found) == {"recipe"} and "it is a recipe of extend_llama.py" in message and "tiny" in message
    found, message = helpers.problems_of("--recipe", "tiny", load=extension.load)
    assert set(found) == {"recipe"} and "it is a recipe of pretrain_c4.py" in message and "demo" in message


def test_an_unknown_launcher_is_named():
    found, _ = problems_of("--recipe", write(launcher="pretrain_c5"))
    assert "pretrain_c4" in found["launcher"].remedy


def test_a_recipe_that_names_no_launcher_fits_the_one_that_reads_it():
    assert load(["--recipe", write()]).as_dict()["launcher"] == "pretrain_c4"


# --- the shipped recipes


def test_every_shipped_recipe_is_of_one_launcher():
    launchers = ("extend_llama", "finetune", "finetune_scrolls", "pretrain_c4", "train_arithmetic")
    shipped = {launcher: files.recipes_of(launcher) for launcher in launchers}
    assert shipped["pretrain_c4"] == sorted([*RECIPES, "c4_155m"])
    assert sorted(name for names in shipped.values() for name in names) == list(files.shipped())


@pytest.mark.parametrize("name", RECIPES)
def test_the_shipped_recipes_load_and_can_be_planned(name):
    recipe = load(["--recipe", name, "--dry_run"], world_size=2)
    described = train.describe(recipe)
    assert f"runs/{name}" in described and f"encoding   {recipe.model.position_encoding}" in described
    assert f"2 processes x {recipe.accumulation()} accumulation" in described


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_written_out_loads_to_itself(name):
    recipe = load(["--recipe", name], world_size=2)
    Path("again.yaml").write_text(recipe.to_yaml())
    again = load(["--recipe", "again.yaml"], world_size=2)
    assert again.to_yaml() == recipe.to_yaml()


def test_there_is_a_recipe_for_every_encoding():
    """An encoding that is added gets one."""
    assert list(ENCODINGS) == encodings.available()


def test_the_family_differs_in_the_encoding_alone():
    """Derived from one base, not copied: what a comparison must not vary stands once."""
    own = {"position_encoding", "position_options", "rope_parameters", "attention_backend"}
    for encoding in ENCODINGS:
        said = helpers.said(f"c4_155m_{encoding}")
        assert said.pop("base") == "c4_155m" and set(said) <= own and said["position_encoding"] == encoding
        recipe = load(["--recipe", f"c4_155m_{encoding}"], world_size=8)
        kwargs = recipe.trainer.kwargs
        assert (recipe.global_batch_size, recipe.window, kwargs["max_steps"]) == (512, 1024, 10000)
        assert (kwargs["learning_rate"], kwargs["weight_decay"], kwargs["warmup_steps"]) == (1e-4, 0.01, 0.02)
        assert kwargs["lr_scheduler_type"] == "polynomial" and recipe.evaluation.eval_lengths[-1] == 8192


@pytest.fixture(scope="module")
def tokenizer():
    """32,000 words, a full stop and a line end among them."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(32000) if i not in (13, 869)} | {"\n": 13, ".": 869}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")))


# Beyond the 162,417,408 that all share: FIRE 12 x (32 + 32 + 384 + 12 + 2) (the code counts a frozen number more), T5
# 12 x 64 x 12, CoPE 12 x 64 x 64, FoX 12 x (768 + 1) x 12, PoPE 12 x 12 x 64, RePo 8 x (2 x 768 x 96 + 96 x 12), BiPE
# 1,024 x 768, TAPE 11 x (768 x 48 + 2 x 48 x 12 + 12 x 12), of which the code has a twelfth layer.
PARAMETERS = {
    "fire": 5544,
    "t5": 9216,
    "cope": 49152,
    "fox": 110736,
    "pope": 9216,
    "repo": 1188864,
    "bipe_rope": 786432,
    "bipe_alibi": 786432,
    "tape": 419760,
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_family_has_the_paper_s_parameters(encoding, tokenizer):
    config = load(["--recipe", f"c4_155m_{encoding}"]).model_config(tokenizer)
    with torch.device("meta"):
        model = TapeForCausalLM(config)
    assert model.num_parameters() == 162_417_408 + PARAMETERS.get(encoding, 0)
    assert config.max_position_embeddings == 1024 and config.pad_token_id is None
    if encoding.startswith("bipe"):
        assert config.position_options["separators"] == [13, 869]


def test_seven_billion(tokenizer):
    recipe = load(["--recipe", "c4_7b"], world_size=64)
    with torch.device("meta"):
        model = TapeForCausalLM(recipe.model_config(tokenizer))
    assert model.num_parameters() == 6_738_415_616 + 31 * (4096 * 128 + 2 * 128 * 32 + 32 * 32)
    assert recipe.accumulation() == 16 and recipe.deepspeed["zero_optimization"]["stage"] == 3
    assert recipe.trainer.kwargs["activation_checkpointing_kwargs"] == {"use_reentrant": False}
