"""``tape-ds evaluate generate``: a prompt from wherever it comes, a reply on standard output, mistakes before."""

import io
import json
import shutil
import sys

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from tape_ds.cli.evaluate import generate


@pytest.fixture
def gpt2(base, tmp_path_factory):
    """A folder with a model that has a table of 32 positions."""
    folder = tmp_path_factory.mktemp("gpt2")
    config = GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=32, vocab_size=61, bos_token_id=1, eos_token_id=2)
    GPT2LMHeadModel(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


def expected(folder, prompt, count=8):
    """The most likely words, by a plain loop."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    start = ids.shape[1]
    with torch.no_grad():
        for _ in range(count):
            ids = torch.cat((ids, model(ids).logits[:, -1:].argmax(-1)), dim=1)
            if ids[0, -1] == 2:
                ids = ids[:, :-1]
                break
    return tokenizer.decode(ids[0, start:], skip_special_tokens=True)


def test_the_reply_alone_on_standard_output(base, capfd):
    assert generate.main([str(base), "--prompt", "w7 w8 w9", "--max_new_tokens", "8"]) == 0
    shown = capfd.readouterr()
    assert shown.out == expected(base, "w7 w8 w9") + "\n"
    assert "[prompt 3 tokens, reply " in shown.err


def test_settings_of_the_folder_do_not_count(base, tmp_path, capfd):
    """Many checkpoints ship settings that draw."""
    folder = tmp_path / "draws"
    shutil.copytree(base, folder)
    settings = {"do_sample": True, "temperature": 8.0, "top_k": 0, "repetition_penalty": 3.0, "eos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    assert generate.main([str(folder), "--prompt", "w7 w8 w9", "--max_new_tokens", "8"]) == 0
    assert capfd.readouterr().out == expected(base, "w7 w8 w9") + "\n"


def test_a_prompt_comes_from_a_pipe(base, monkeypatch, capfd):
    monkeypatch.setattr(sys, "stdin", io.StringIO("w7 w8 w9\n"))
    assert generate.main([str(base), "--max_new_tokens", "8"]) == 0
    assert capfd.readouterr().out == expected(base, "w7 w8 w9") + "\n"


def test_what_a_run_trained_is_in_it(run, capfd):
    """The run's folder, read with its base; its replies are not the base's."""
    folder = run()
    assert generate.main([str(folder), "--prompt", "w7 w8 w9", "--max_new_tokens", "8", "--dtype", "float32"]) == 0
    assert len(capfd.readouterr().out.split()) > 1


def test_a_chat(base, tmp_path, capfd):
    """The prompt goes through the tokenizer's template."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = "{{ 'w3 ' + messages[0].content + ' w4' }}"
    tokenizer.save_pretrained(tmp_path)
    words = ["--tokenizer", str(tmp_path), "--prompt", "w9", "--max_new_tokens", "8"]
    assert generate.main([str(base), "--chat", *words]) == 0
    assert capfd.readouterr().out == expected(base, "w3 w9 w4") + "\n"
    assert generate.main([str(base), *words]) == 0
    assert capfd.readouterr().out == expected(base, "w9") + "\n"


def test_beyond_the_native_length_is_said(base, capfd):
    """The tiny model is made for 64 tokens."""
    prompt = " ".join(["w7"] * 60)
    assert generate.main([str(base), "--prompt", prompt, "--max_new_tokens", "4"]) == 0
    assert "native length" not in capfd.readouterr().err
    assert generate.main([str(base), "--prompt", prompt, "--max_new_tokens", "5"]) == 0
    assert "note: 65 tokens are 1.02 times the native length" in capfd.readouterr().err


def test_beyond_the_last_position_is_refused(gpt2, capfd):
    """Before a model loads."""
    words = [str(gpt2), "--max_new_tokens", "4"]
    assert generate.main([*words, "--prompt", " ".join(["w7"] * 28)]) == 0
    assert generate.main([*words, "--prompt", " ".join(["w7"] * 29)]) == 2
    assert "positions for 32 tokens and no more" in capfd.readouterr().err


def test_all_that_is_wrong_is_told_at_once(base, monkeypatch, capfd):
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = ["--max_new_tokens", "0", "--device", "nowhere"]
    assert generate.main([str(base), *words, "--prompt", ""]) == 2
    told = capfd.readouterr().err
    for field in ("max_new_tokens", "device", "prompt"):
        assert f"--{field} = " in told
    assert "processes = 2" in told and "4 problems found" in told


@pytest.mark.parametrize(
    ("words", "expected_words"),
    [
        (["--prompt", " "], "no text"),
        (["--prompt", "w7", "--chat"], "no chat template"),
        (["--prompt", "w7 \udcff"], "is not UTF-8"),
    ],
)
def test_refusals(base, words, expected_words, capfd):
    assert generate.main([str(base), *words]) == 2
    assert expected_words in capfd.readouterr().err


def test_no_prompt_at_a_terminal(base, monkeypatch, capfd):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    assert generate.main([str(base)]) == 2
    assert "or pipe a text in" in capfd.readouterr().err


def test_a_pipe_that_holds_no_text(base, monkeypatch, capfd):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"w7 \xff"), encoding="utf-8"))
    assert generate.main([str(base)]) == 2
    assert "is not UTF-8" in capfd.readouterr().err


@pytest.mark.parametrize(("given", "prompt"), [("w7\n", "w7"), ("w7\n\n", "w7\n"), (" w7 \nw8", " w7 \nw8")])
def test_the_end_of_the_last_line_is_no_part_of_a_prompt(given, prompt, monkeypatch):
    """``echo 'The sky is' | ...``: the model is to go on in that line."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    assert generate.read_prompt(None) == prompt
    assert generate.read_prompt(given) == given


def test_a_prompt_without_a_token_is_refused(base, tmp_path, capfd):
    """A tokenizer that drops what it does not know."""
    from tokenizers import normalizers

    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\u200b", "")
    tokenizer.save_pretrained(tmp_path)
    assert generate.main([str(base), "--tokenizer", str(tmp_path), "--prompt", "\u200b"]) == 2
    assert "makes no token of it" in capfd.readouterr().err


def test_a_prompt_is_not_ended_by_a_tokenizer_that_ends_texts(base):
    """The model was asked to go on behind an end of text."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    ends = [(tokenizer.eos_token, tokenizer.eos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"$A {ends[0][0]}", special_tokens=ends)
    assert tokenizer("w7 w8")["input_ids"] == [7, 8, tokenizer.eos_token_id]
    assert generate.ids_of("w7 w8", tokenizer, chat=False) == [7, 8]
