"""``tape-ds evaluate generate``: a prompt in, the greedy reply on standard output."""

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from tape_ds.cli.evaluate import generate


@pytest.fixture
def gpt2(base, tmp_path_factory):
    """A folder with a model that has a table of 32 positions."""
    folder = tmp_path_factory.mktemp("gpt2")
    config = GPT2Config(
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=32,
        vocab_size=61,
        bos_token_id=1,
        eos_token_id=2,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


def expected(folder, prompt, count=8):
    """The most likely words, by a plain loop."""
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
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


def test_a_chat_prompt_goes_through_the_template(base, tmp_path, capfd):
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = "{{ 'w3 ' + messages[0].content + ' w4' }}"
    tokenizer.save_pretrained(tmp_path)
    words = ["--tokenizer", str(tmp_path), "--prompt", "w9", "--max_new_tokens", "8"]
    assert generate.main([str(base), "--chat", *words]) == 0
    assert capfd.readouterr().out == expected(base, "w3 w9 w4") + "\n"
    assert generate.main([str(base), *words]) == 0
    assert capfd.readouterr().out == expected(base, "w9") + "\n"


def test_a_template_that_fails_is_a_mistake(base, tmp_path, capfd):
    """jinja's traceback was printed."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    tokenizer.save_pretrained(tmp_path)
    assert generate.main([str(base), "--chat", "--tokenizer", str(tmp_path), "--prompt", "w9"]) == 2
    said = capfd.readouterr().err
    assert (
        "--chat = True: the tokenizer's chat template does not render it (roles must alternate)"
        in said
    )
    assert "Traceback" not in said


def test_a_text_beyond_the_last_position_is_refused(gpt2, capfd):
    words = [str(gpt2), "--max_new_tokens", "4"]
    assert generate.main([*words, "--prompt", " ".join(["w7"] * 28)]) == 0
    assert generate.main([*words, "--prompt", " ".join(["w7"] * 29)]) == 2
    assert "positions for 32 tokens and no more" in capfd.readouterr().err


def test_all_problems_are_in_one_message(base, monkeypatch, capfd):
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = ["--max_new_tokens", "0", "--device", "nowhere"]
    assert generate.main([str(base), *words, "--prompt", ""]) == 2
    message = capfd.readouterr().err
    for field in ("--max_new_tokens", "--device", "--prompt", "processes"):
        assert f"{field} = " in message
    assert "4 problems found" in message


@pytest.mark.parametrize(
    ("words", "wrong"),
    [(["w7", "--chat"], "no chat template"), (["w7 \udcff"], "is not UTF-8"), ([" "], "no text")],
)
def test_refusals(base, words, wrong, capfd):
    assert generate.main([str(base), "--prompt", *words]) == 2
    assert wrong in capfd.readouterr().err


def test_a_token_without_a_row_is_refused(base, tmp_path, capfd):
    """An adapter's tokenizer with tokens that were added in training and not saved: an IndexError of torch."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens(["extra"])
    tokenizer.save_pretrained(tmp_path)
    words = [str(base), "--tokenizer", str(tmp_path), "--max_new_tokens", "2", "--prompt"]
    assert generate.main([*words, "w7 extra w9"]) == 2
    assert (
        "--prompt = 'w7 extra w9': it has 'extra' (token 61), and the model has 61 rows"
        in capfd.readouterr().err
    )
    assert generate.main([*words, "w7 w9"]) == 0


def test_a_template_that_fails_is_a_message(base, tmp_path, capfd):
    """It was jinja's traceback."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = "{{ raise_exception('only with a system message') }}"
    tokenizer.save_pretrained(tmp_path)
    assert generate.main([str(base), "--tokenizer", str(tmp_path), "--chat", "--prompt", "w9"]) == 2
    assert "does not render it (only with a system message)" in capfd.readouterr().err


def test_an_eos_that_the_tokenizer_appends_is_removed(base):
    tokenizer = AutoTokenizer.from_pretrained(base)
    ends = [(tokenizer.eos_token, tokenizer.eos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {ends[0][0]}", special_tokens=ends
    )
    assert tokenizer("w7 w8")["input_ids"] == [7, 8, tokenizer.eos_token_id]
    assert generate.ids_of("w7 w8", tokenizer, chat=False) == [7, 8]
