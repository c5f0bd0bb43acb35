"""``python -m evaluation generate``: a prompt from wherever it comes, a reply on standard output, mistakes before."""

import io
import json
import shutil
import signal
import sys

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from evaluation import generate, generate_options
from evaluation.generate import Talk, drawing
from tests.model.helpers import tiny_model

CHAT = "{% for m in messages %}{{ 'w3 ' + m.content + ' w4 ' }}{% endfor %}w5"


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
    assert "[prompt 3 tokens, read in " in shown.err


def test_settings_of_the_folder_do_not_count(base, tmp_path, capfd):
    """Many checkpoints ship settings that draw."""
    folder = tmp_path / "draws"
    shutil.copytree(base, folder)
    settings = {"do_sample": True, "temperature": 8.0, "top_k": 0, "repetition_penalty": 3.0, "eos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    assert generate.main([str(folder), "--prompt", "w7 w8 w9", "--max_new_tokens", "8"]) == 0
    assert capfd.readouterr().out == expected(base, "w7 w8 w9") + "\n"


def test_a_prompt_comes_from_a_file_or_a_pipe(base, tmp_path, monkeypatch, capfd):
    (tmp_path / "prompt.txt").write_text("w7 w8 w9\n")
    few = ["--max_new_tokens", "8"]
    assert generate.main([str(base), "--prompt_file", str(tmp_path / "prompt.txt"), *few]) == 0
    from_file = capfd.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("w7 w8 w9\n"))
    assert generate.main([str(base), *few]) == 0
    assert capfd.readouterr().out == from_file == expected(base, "w7 w8 w9") + "\n"


def test_what_a_run_trained_is_in_it(run, capfd):
    """The run's folder, read with its base; its replies are not the base's."""
    folder = run()
    assert generate.main([str(folder), "--prompt", "w7 w8 w9", "--max_new_tokens", "8", "--dtype", "float32"]) == 0
    assert len(capfd.readouterr().out.split()) > 1


def test_drawing_follows_the_seed(base, capfd):
    texts = []
    for seed in ("1", "2", "1"):
        words = ["--prompt", "w7", "--temperature", "4", "--max_new_tokens", "12", "--seed", seed]
        assert generate.main([str(base), *words]) == 0
        texts.append(capfd.readouterr().out)
    assert texts[0] == texts[2] != texts[1]


def test_a_conversation_line_by_line(run, monkeypatch, capfd):
    """The first prompt, then what is typed, empty lines left out."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("w11 w12\n\nw13\n"))
    words = ["-i", "--prompt", "w7 w8 w9", "--max_new_tokens", "4", "--dtype", "float32"]
    assert generate.main([str(run()), *words]) == 0
    shown = capfd.readouterr()
    assert len(shown.out.splitlines()) == 3 and "Ctrl-D ends" in shown.err
    assert shown.err.count("[prompt ") == 3


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
    assert "[65 tokens, reply included, go beyond the model's native length of 64]" in capfd.readouterr().err


def test_beyond_the_last_position_is_refused(gpt2, monkeypatch, capfd):
    """Before a model loads; in a conversation the turn is left out, and the next one is not."""
    words = [str(gpt2), "--max_new_tokens", "4"]
    assert generate.main([*words, "--prompt", " ".join(["w7"] * 28)]) == 0
    assert generate.main([*words, "--prompt", " ".join(["w7"] * 29)]) == 2
    assert "beyond the model's 32 positions" in capfd.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO(" ".join(["w7"] * 29) + "\nw8\n"))
    assert generate.main([*words, "-i"]) == 0
    shown = capfd.readouterr()
    assert "not said: prompt = '29 tokens'" in shown.err and shown.err.count("read in") == 1


def test_all_that_is_wrong_is_told_at_once(base, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = ["--max_new_tokens", "0", "--temperature", "-1", "--top_p", "1.5", "--top_k", "0", "--device", "nowhere"]
    assert generate.main([str(base), *words, "--prompt_file", str(tmp_path / "none.txt")]) == 2
    told = capfd.readouterr().err
    for field in ("max_new_tokens", "temperature", "top_p", "top_k", "device", "prompt_file"):
        assert f"--{field} = " in told
    assert "processes = 2" in told and "7 problems found" in told


@pytest.mark.parametrize(
    ("words", "expected_words"),
    [
        (["--prompt", " "], "no text"),
        (["--prompt", "w7", "--chat"], "no chat template"),
        (["--prompt_file", "."], "Is a directory"),
        (["--prompt", "w7 \udcff"], "is not UTF-8"),
        (["--prompt", "w7", "--temperature", "nan"], "--temperature = nan"),
        (["--prompt", "w7", "--temperature", "inf"], "--temperature = inf"),
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
    assert "pipe a text in, or add -i" in capfd.readouterr().err


def test_a_file_that_is_no_text(base, tmp_path, capfd):
    (tmp_path / "a.bin").write_bytes(b"\xff\xfe\x00")
    assert generate.main([str(base), "--prompt_file", str(tmp_path / "a.bin")]) == 2
    assert "is not UTF-8" in capfd.readouterr().err


def test_a_pipe_that_holds_no_text(base, monkeypatch, capfd):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"w7 \xff"), encoding="utf-8"))
    assert generate.main([str(base)]) == 2
    assert "standard input" in (said := capfd.readouterr().err) and "is not UTF-8" in said


@pytest.mark.parametrize(("given", "prompt"), [("w7\n", "w7"), ("w7\n\n", "w7\n"), (" w7 \nw8", " w7 \nw8")])
def test_the_end_of_the_last_line_is_no_part_of_a_prompt(given, prompt, tmp_path, monkeypatch):
    """``echo 'The sky is' | ...``: the model is to go on in that line."""
    (tmp_path / "prompt.txt").write_text(given)
    named = generate_options.parse(["model", "--prompt_file", str(tmp_path / "prompt.txt")])
    assert generate.read_prompt(named) == prompt
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    assert generate.read_prompt(generate_options.parse(["model"])) == prompt
    assert generate.read_prompt(generate_options.parse(["model", "--prompt", given])) == given


def test_a_prompt_without_a_token_is_refused(base, tmp_path, capfd):
    """A tokenizer that drops what it does not know."""
    from tokenizers import normalizers

    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\u200b", "")
    tokenizer.save_pretrained(tmp_path)
    assert generate.main([str(base), "--tokenizer", str(tmp_path), "--prompt", "\u200b"]) == 2
    assert "makes no token of it" in capfd.readouterr().err


@pytest.fixture
def tokenizer(base):
    return AutoTokenizer.from_pretrained(base)


def asked(*more, new_tokens=6):
    return generate_options.parse(["model", "--max_new_tokens", str(new_tokens), *map(str, more)])


def words(*numbers):
    """A word for each token. In w10 to w29 the tokenizer finds its special tokens w1 and w2: they are not used."""
    return " ".join(f"w{number}" for number in numbers)


def shown(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True)


@torch.no_grad()
def greedy(model, ids, count, end=2):
    """The most likely tokens by whole passes, up to the end of text."""
    ids_1T = torch.tensor([ids])
    new = []
    while len(new) < count:
        new.append(int(model(ids_1T).logits[0, -1].argmax()))
        if new[-1] == end:
            return new[:-1]
        ids_1T = torch.cat((ids_1T, torch.tensor([[new[-1]]])), dim=1)
    return new


@pytest.mark.parametrize("encoding", ["tape", "alibi", "yarn", "rope dynamic"])
def test_a_turn_goes_on_from_all_that_was_said(encoding, tokenizer, capsys):
    model, talk = tiny_model(encoding=encoding), Talk(tokenizer, chat=False)
    said = [7, 8, 9]
    first = talk.say(model, words(*said), asked())
    said += [*greedy(model, said, 6), 31, 32]
    assert talk.ids == said[:-2] and first == shown(tokenizer, said[3:-2])
    assert talk.say(model, words(31, 32), asked()) == shown(tokenizer, greedy(model, said, 6))
    out, err = capsys.readouterr()
    assert out.startswith(f"{first}\n") and f"[prompt {len(said)} tokens, read in " in err and " tokens/s]" in err


def test_a_prompt_is_not_ended_by_a_tokenizer_that_ends_texts(tokenizer):
    """The model was asked to go on behind an end of text."""
    ends = [(tokenizer.eos_token, tokenizer.eos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"$A {ends[0][0]}", special_tokens=ends)
    assert tokenizer(words(7, 8))["input_ids"] == [7, 8, tokenizer.eos_token_id]
    assert Talk(tokenizer, chat=False).ids_with(words(7, 8)) == [7, 8]


def test_a_chat_is_one_growing_text(tokenizer):
    tokenizer.chat_template = CHAT
    model, talk = tiny_model(), Talk(tokenizer, chat=True)
    first = talk.say(model, words(9), asked())
    assert first == shown(tokenizer, greedy(model, [3, 9, 4, 5], 6))
    assert talk.messages[1] == {"role": "assistant", "content": first}
    whole = tokenizer(f"{words(3, 9, 4, 3)} {first} {words(4, 3, 30, 4, 5)}")["input_ids"]
    assert talk.say(model, words(30), asked()) == shown(tokenizer, greedy(model, whole, 6))


def test_every_setting_that_draws_is_said():
    assert drawing(asked("--temperature", 0, "--top_p", 0.5)) == drawing(asked()) == {"do_sample": False}
    drawn = {"do_sample": True, "temperature": 1.0, "top_p": 0.9, "top_k": 0}
    assert drawing(asked("--top_p", 0.9)) == drawn
    assert drawing(asked("--top_k", 5)) == drawn | {"top_p": 1.0, "top_k": 5}


def test_an_end_of_text_ends_a_reply_and_is_no_part_of_it(tokenizer):
    model = tiny_model()
    written = greedy(model, [7, 8], 20, end=None)
    place = next(at for at, each in enumerate(written) if at > 1 and each > 2 and each not in written[:at])
    tokenizer.eos_token = f"w{written[place]}"
    talk = Talk(tokenizer, chat=False)
    assert talk.say(model, words(7, 8), asked(new_tokens=20)) == shown(tokenizer, written[:place])
    assert talk.ids == [7, 8, *written[:place]]


def test_an_interrupt_ends_the_reply_and_the_conversation_goes_on(tokenizer):
    model, calls = tiny_model(), []
    expected = greedy(model, [7, 8, 9], 2)

    def third_token(*_):
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)

    model.model.layers[1].register_forward_hook(third_token)
    talk = Talk(tokenizer, chat=False)
    assert talk.say(model, words(7, 8, 9), asked(new_tokens=20)) == shown(tokenizer, expected)
    said = [7, 8, 9, *expected, 31]
    assert talk.ids == said[:-1]
    assert talk.say(model, words(31), asked()) == shown(tokenizer, greedy(model, said, 6))
