"""A decoder inside a model with pictures is taken out, trained, and put back."""

import hashlib
import json

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
)

from tape_ds.cli import export, plan, train
from tape_ds.export import config_json
from tape_ds.models.loading import model_folder
from tape_ds.targets.find import find_target
from tape_ds.training.execution import execute
from tests.data.conftest import build_tokenizer
from tests.training.runs.helpers import assemble, refusals
from tests.training.runs.test_extension import model as words  # noqa: F401  (a folder with a tokenizer, and text next to it)
from tests.training.runs.test_extension import recipe

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 61,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.15,
}
PICTURES = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
KINDS = ["sliding_attention", "full_attention"]
WRAPPERS = {
    "gemma3": ("gemma3_text", {"layer_types": KINDS, "sliding_window": 12}, {}),
    "gemma4": (
        "gemma4_text",
        {
            "layer_types": KINDS,
            "sliding_window": 12,
            "global_head_dim": 8,
            "vocab_size_per_layer_input": 61,
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 0,
        },
        {"num_key_value_heads": 2, "head_dim": 8},
    ),
    "qwen3_5": (
        "qwen3_5_text",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
        {"depth": 1, "num_heads": 2, "out_hidden_size": 32},
    ),
    "mistral3": ("mistral", {}, {"model_type": "pixtral", "head_dim": 8}),
    "llava": ("llama", {}, {"model_type": "clip_vision_model"}),
    "internvl": ("qwen2", {}, {"image_size": [28, 28], "patch_size": [14, 14]}),
}
"""Model type -> type and fields of its text model, fields of what reads pictures."""
# YaRN would undo Gemma 4's scaling
NOT_TRAINED = [("gemma4", "yarn")]
FIELDS = {"image_token_id": 58, "image_token_index": 58}


def in_bytes(folder):
    """Give a folder a tokenizer of bytes, as Qwen3.5's class expects, which adds tokens; return the rows for it."""
    tokenizer = build_tokenizer(bos=False)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|image_pad|>"]})
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    return {"vocab_size": len(tokenizer) + 19, **ends}


def wrapped(kind, folder):
    text, fields, pictures = WRAPPERS[kind]
    if kind == "qwen3_5":
        fields = fields | in_bytes(folder)
    config = AutoConfig.for_model(
        kind,
        text_config={"model_type": text, **TEXT, **fields},
        vision_config=PICTURES | pictures,
        **FIELDS,
    )
    torch.manual_seed(1)
    model = AutoModelForImageTextToText.from_config(config).eval()
    for file in folder.glob("*.safetensors"):
        file.unlink()
    model.save_pretrained(folder, max_shard_size="40KB")
    (folder / "preprocessor_config.json").write_text('{"size": 28}')
    return model


@pytest.fixture(params=WRAPPERS)
def whole(request, words):  # noqa: F811
    return words, wrapped(request.param, words)


def tensors(folder):
    found = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (no dict)
                content = opened.get_tensor(name).view(torch.uint8).numpy().tobytes()
                found[name] = (file.name, hashlib.sha256(content).hexdigest())
    return found


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=ids).logits


IDS = torch.arange(3, 23)[None]


def test_the_text_part_is_one_more_decoder(whole, tmp_path):
    folder, model = whole
    alone = AutoModelForCausalLM.from_pretrained(model_folder.resolve(str(folder), tmp_path)).eval()
    assert torch.equal(logits(alone, IDS), logits(model, IDS))
    assert not any("vision" in name for name in alone.state_dict())


@pytest.mark.parametrize(
    "kind, method",
    [
        ("gemma3", "lora"),
        ("mistral3", "yarn"),
        # which has buffers in its files
        ("gemma4", "full"),
        # a hybrid
        ("qwen3_5", "full"),
        *(
            pytest.param(kind, method, marks=pytest.mark.slow)
            for kind in WRAPPERS
            for method in ("full", "lora", "yarn")
            if (kind, method) not in NOT_TRAINED
        ),
    ],
)
def test_what_was_trained_is_put_back_and_nothing_else(kind, method, words, tmp_path):  # noqa: F811
    folder = words
    wrapped(kind, folder)
    before = tensors(folder)
    length = 64
    changes = {"rope_parameters": '{"rope_type": "auto"}', "method": method}
    if kind == "gemma4":
        length = 32  # its scaling is kept as it is
    if method != "yarn":
        changes |= {"max_steps": 2, "learning_rate": 0.01}
    changes |= {"target_length": length, "eval_length": length}
    prepared = assemble(recipe(folder, **changes))
    assert execute(prepared) == 0
    assert export.main([str(prepared.output), str(tmp_path / "out")]) == 0

    after = tensors(tmp_path / "out")
    assert {name: file for name, (file, _) in after.items()} == {
        name: file for name, (file, _) in before.items()
    }
    changed = {name for name in after if after[name] != before[name]}
    if method == "yarn":
        assert not changed
    elif method == "lora":
        # LongLoRA's recipe trains the norms as well
        assert changed and all("_proj.weight" in name or "norm" in name for name in changed)
    else:
        assert len(changed) > 4
    assert not any("vision" in name or "projector" in name for name in changed)

    again = AutoModelForImageTextToText.from_pretrained(tmp_path / "out").eval()
    long = torch.arange(length - 4)[None] % 20 + 3
    trained = prepared.model.eval()(input_ids=long).logits.detach()
    torch.testing.assert_close(logits(again, long), trained, rtol=0, atol=2e-5)

    config = json.loads((tmp_path / "out/config.json").read_text())
    own = json.loads((folder / "config.json").read_text())
    assert config["text_config"]["max_position_embeddings"] == length
    for content in (config, own):
        for name in list(content["text_config"]):
            if "rope_" in name or name in ("max_position_embeddings", "partial_rotary_factor"):
                del content["text_config"][name]
    assert config == own
    text = "one two three <|image_pad|>"
    own, exported = (AutoTokenizer.from_pretrained(each) for each in (folder, tmp_path / "out"))
    assert exported(text).input_ids == own(text).input_ids
    kept = [file.name for file in folder.iterdir() if file.suffix != ".safetensors"]
    for name in set(kept) - {"config.json", "README.md", "tokenizer_config.json"}:
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


def test_rope_of_published_files_leaves_nothing_that_transformers_would_read_instead(
    words,  # noqa: F811
    tmp_path,
):
    """Published Gemma 3 has ``rope_scaling``, which its class puts over what the export writes."""
    model = wrapped("gemma3", words)
    content = json.loads((words / "config.json").read_text())
    text = content["text_config"]
    text["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    text["rope_theta"] = text["rope_parameters"]["full_attention"]["rope_theta"]
    text["rope_local_base_freq"] = text["rope_parameters"]["sliding_attention"]["rope_theta"]
    del text["rope_parameters"]
    (words / "config.json").write_text(json.dumps(content))
    scaled = '{"rope_type": "linear", "factor": 16.0}'
    changes = {"rope_parameters": scaled, "method": "linear", "target_length": 64}
    prepared = assemble(recipe(words, **changes))
    assert execute(prepared) == 0
    (words / "consolidated.safetensors").write_bytes(b"other weights")
    assert export.main([str(prepared.output), str(tmp_path / "out")]) == 0
    again = AutoModelForImageTextToText.from_pretrained(tmp_path / "out").eval()
    assert again.config.text_config.rope_parameters["full_attention"]["factor"] == 16.0
    assert not (tmp_path / "out/consolidated.safetensors").exists()
    card = (tmp_path / "out/README.md").read_text()
    assert "Gemma3ForConditionalGeneration" in card and "AutoModelForImageTextToText" in card
    assert model.config.model_type == "gemma3"


def test_another_model_in_the_place_of_the_base_is_refused(words, tmp_path, capsys):  # noqa: F811
    """A decoder that was trained as a whole needs no base, and would be put into whatever is there now."""
    wrapped("llava", words)
    changes = {"method": "full", "max_steps": 1, "rope_parameters": '{"rope_type": "auto"}'}
    prepared = assemble(recipe(words, **changes))
    assert execute(prepared) == 0
    file = next(words.glob("model-00001*"))
    file.write_bytes(file.read_bytes()[:-4] + b"else")
    capsys.readouterr()
    command = [str(prepared.output), str(tmp_path / "out")]
    assert export.main(command) == 2
    assert "which now has" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert export.main([*command, "--base_anyway"]) == 0


def test_the_decoder_alone_is_exported_if_asked(words, tmp_path):  # noqa: F811
    wrapped("gemma3", words)
    prepared = assemble(recipe(words, rope_parameters='{"rope_type": "yarn"}', method="yarn"))
    assert execute(prepared) == 0
    assert export.main([str(prepared.output), str(tmp_path / "text"), "--text_only"]) == 0
    assert json.loads((tmp_path / "text/config.json").read_text())["model_type"] == "gemma3_text"


def test_what_the_model_around_it_cannot_be_given_is_refused(words, tmp_path, capsys):  # noqa: F811
    wrapped("llava", words)
    prepared = assemble(recipe(words, method="tape", max_steps=1))
    assert execute(prepared) == 0
    capsys.readouterr()
    command = [str(prepared.output), str(tmp_path / "out"), "--dtype", "bfloat16"]
    assert export.main(command) == 2
    said = capsys.readouterr().err
    assert "2 problems" in said and "positions (tape)" in said and "--dtype" in said
    assert said.count("--text_only") == 2 and not (tmp_path / "out").exists()


def test_a_dry_run_names_the_decoder_that_is_trained(words, capsys):  # noqa: F811
    wrapped("gemma3", words)
    command = ["--model", str(words), "--target_length", "64", "--method", "lora", "--dry_run"]
    command += ["--train_data", f"text:{words.parent}/text.txt", "--deepspeed", "null", "--no_bf16"]
    command += ["--eval_data", "[]", "--passkey_lengths", "[]", "--rope_parameters", "{}"]
    command += ["--window", "16", "--eval_length", "64", "--eval_span", "16"]
    command += ["--output_dir", str(words.parent / "run")]
    assert train.main("extend_llama", command) == 0
    said = capsys.readouterr().out
    assert "by transformers' class for gemma3_text" in said
    assert "would refuse" not in said
    assert (
        "after tape-ds export (a Gemma3ForConditionalGeneration with the decoder put back):" in said
    )


def test_a_decoder_that_is_exported_alone_is_announced_as_that(words):  # noqa: F811
    wrapped("llava", words)
    alone = config_json.described(find_target(recipe(words, method="tape")).config, str(words))
    assert alone.startswith(
        "after tape-ds export --text_only: by transformers with the folder's own"
    )
    plain = find_target(recipe(words, method="full")).config
    into = "after tape-ds export (a LlavaForConditionalGeneration with the decoder put back): "
    assert config_json.described(plain, str(words)).startswith(into)
    assert config_json.described(plain, "").startswith("after tape-ds export: right by")


@pytest.mark.parametrize(
    "kind, field", [("gemma3", "image_token_index"), ("internvl", "image_token_id")]
)
def test_texts_with_its_pictures_tokens_are_refused_also_by_a_second_run(
    kind,
    field,
    words,  # noqa: F811
    tmp_path,
):
    """Both by its own class and by this project's, whose configuration is another."""
    wrapped(kind, words)
    changes = {"method": "full", "max_steps": 1, "rope_parameters": '{"rope_type": "auto"}'}
    prepared = assemble(recipe(words, **changes))
    assert execute(prepared) == 0
    for model in (words, prepared.output / "trained"):
        # "seven" is a word of the text
        seven = prepared.tokenizer.convert_tokens_to_ids("seven")
        config = json.loads((model / "config.json").read_text())
        if model == words:
            config[field] = seven
        else:
            assert config["placeholder_token_ids"][field] == [58]
            config["placeholder_token_ids"][field] = [seven]
        (model / "config.json").write_text(json.dumps(config))
        again = changes | {"output_dir": tmp_path / "other", "data_cache": tmp_path / "cache"}
        again |= {"train_data": f"text:{words.parent}/text.txt", "target_length": 128}
        refused = refusals(recipe(model, **again))
        assert list(refused) == ["train_data"]
        wrong = f"text.txt has the token 'seven' ({seven}), which stands for pictures or sound in the model around"
        assert wrong in refused["train_data"].wrong and f"({field})" in refused["train_data"].wrong


@pytest.mark.parametrize("kind", ["gemma3", "qwen3_5"])
def test_a_plan_is_of_the_decoder(kind, words, capsys):  # noqa: F811
    model = wrapped(kind, words)
    argv = ["demo", "--model", str(words), "--method", "full", "--rope_parameters", "{}"]
    argv += ["--target_length", "64", "--window", "16", "--pose_chunks", "1", "--eval_data", "[]"]
    argv += ["--passkey_lengths", "[]", "--eval_length", "64", "--gpus", "1", "--gpu", "h200"]
    capsys.readouterr()
    assert plan.main(argv) == 0
    said = capsys.readouterr().out
    head = model.get_output_embeddings().weight
    decoder = {*model.get_decoder().parameters(), head}
    trained = sum(weight.numel() for weight in decoder)
    assert trained < sum(weight.numel() for weight in model.parameters())
    assert f"0.000 B, {trained / 1e6:,.3f} M trained" in said
    is_hybrid = kind == "qwen3_5"
    assert ("recurrent layers: 1 of 2: " in said) == is_hybrid
    assert ("memory is planned as torch alone needs it" in said) == is_hybrid


def test_another_end_of_answers_is_added_and_replaces_none(words, tmp_path):  # noqa: F811
    """The trainer of transformers writes the tokenizer's EOS over the configuration's; an end that training adds, and
    its chat template, were left behind with the decoder."""
    wrapped("llava", words)
    tokenizer = AutoTokenizer.from_pretrained(words)
    tokenizer.eos_token = "seven"
    tokenizer.save_pretrained(words)
    changes = {"method": "full", "max_steps": 1, "rope_parameters": '{"rope_type": "auto"}'}
    prepared = assemble(recipe(words, **changes))
    assert execute(prepared) == 0
    # as chat tuning saves it
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(prepared.output / "trained")
    (words / "chat_template.json").write_text('{"chat_template": "{{ messages }}"}')
    assert export.main([str(prepared.output), str(tmp_path / "out")]) == 0
    again = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert again.chat_template == tokenizer.chat_template
    assert not (tmp_path / "out/chat_template.json").exists()
    for file in ("generation_config.json", "config.json"):
        before = json.loads((words / file).read_text())
        after = json.loads((tmp_path / "out" / file).read_text())
        if file == "config.json":
            after = after["text_config"]
            before = before["text_config"]
            assert after["eos_token_id"] == before["eos_token_id"] == 2
        else:
            assert before.pop("eos_token_id") == 2
            assert after.pop("eos_token_id") == [2, tokenizer.eos_token_id]
            assert after == before
