"""Passkey retrieval: greedy replies from the cache, right or wrong by their first integer, ranks kept in step."""

from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model

from tape_ds import results
from tape_ds.data.passkey import REPLY_TOKENS, PasskeyQuestion, draw
from tape_ds.scoring import tables
from tape_ds.scoring.passkey import PASSKEYS
from tape_ds.scoring.questions import answer, grouped
from tests.data.letters import Letters
from tests.models.helpers import tiny_model, tokens
from tests.scoring.readers import Reader
from tests.scoring.test_loss_by_position import tiny_llama


class Numbers(Letters):
    """Decodes any id to something that differs from any other's."""

    def decode(self, ids):
        return " ".join(map(str, ids))


def prompt(length=40, seed=0, short_by=0, new_tokens=REPLY_TOKENS):
    torch.manual_seed(seed)
    ids = tuple(tokens(1, length - short_by)[0].tolist())
    return PasskeyQuestion(length, seed, key=5, depth=0.5, text="", ids=ids, new_tokens=new_tokens)


def asked_in_a_run(model, tokenizer, question, **options):
    (row,) = answer(PASSKEYS, model, tokenizer, [question], stop=False, **options)
    return row


def replied(model, asked, **options):
    """The ids of the one reply."""
    return [
        int(part) for part in asked_in_a_run(model, Numbers(), asked, **options)["reply"].split()
    ]


def generated(model, asked):
    ids_1T = torch.tensor([asked.ids])
    new = model.generate(
        ids_1T, max_new_tokens=REPLY_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return new[0, ids_1T.shape[1] :].tolist()


@pytest.mark.parametrize("encoding", ["tape", "rope", "alibi", "rope dynamic"])
def test_replies_are_what_generate_gives(encoding):
    model = tiny_model(encoding=encoding)
    model.generation_config.eos_token_id = None
    assert replied(model, prompt(), chunk=16) == generated(model, prompt())


def test_a_plain_llama_is_asked_too_with_its_adapter():
    model = tiny_llama().eval()
    plain = replied(model, prompt(), chunk=16)
    assert plain == generated(model, prompt())
    adapted = get_peft_model(
        model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    assert replied(adapted, prompt()) == generated(adapted, prompt()) != plain


@pytest.fixture
def watched():
    """Registers hooks that note the calls of a model's modules and the logits of its head."""

    def watch(model):
        calls, logits = [], []
        for name, module in model.named_modules():
            module.register_forward_hook(lambda *_, name=name: calls.append(name))
        model.lm_head.register_forward_hook(lambda _, inputs, output: logits.append(output))
        return calls, logits

    return watch


@pytest.mark.parametrize("encoding", ["tape", "rope", "fire"])
def test_without_a_cache_the_replies_are_the_same(encoding, watched):
    model = tiny_model(encoding=encoding)
    calls, logits = watched(model)
    with_cache = [replied(model, prompt(seed=seed, new_tokens=5), chunk=16) for seed in range(3)]
    cached, calls[:], logits[:] = list(logits), [], []
    assert with_cache == [
        replied(model, prompt(seed=seed, new_tokens=5), use_cache=False) for seed in range(3)
    ]
    assert all(len(ids) == 5 for ids in with_cache)
    assert calls.count("model") == 3 * 5, "the whole text, for every new token"
    # 40 tokens are 3 pieces, of which the last one gives a token
    per_token = [each for start in (2, 9, 16) for each in cached[start : start + 5]]
    torch.testing.assert_close(logits, per_token, atol=2e-5, rtol=1e-4)


def test_what_is_not_exact_in_pieces_is_read_in_one(watched):
    """Dynamic scaling takes its base from the call that begins a text; a foreign model promises nothing."""
    for model in (tiny_model(encoding="rope dynamic"), tiny_llama()):
        calls, _ = watched(model)
        asked_in_a_run(model, Numbers(), prompt(), chunk=7)
        assert calls.count("model") == REPLY_TOKENS


def test_all_prompts_of_a_length_call_the_same_modules(watched):
    """Ranks that share weights wait for each other: neither an end of text, nor another reply, nor a prompt that is a
    token shorter (here across the border of a piece) may change which modules are called, or how often."""
    model = tiny_model()
    calls, _ = watched(model)
    found = []
    for asked in (prompt(), prompt(seed=1), prompt(seed=2, short_by=9)):
        calls.clear()
        ended = Numbers()
        ended.eos_token_id = replied(model, asked)[0]
        asked_in_a_run(model, ended, asked, chunk=32)
        found.append(list(calls[len(calls) // 2 :]))
    assert found[0] == found[1] == found[2] and found[0]


def test_an_oracle_finds_every_key_and_a_short_sight_none():
    """The whole way, from drawn prompts through pieces to counts. The question hides what a short sight could see."""
    prompts = draw(Letters(), [2000, 1000], 3, seed=4)
    of_length = grouped(prompts, lambda each: each.length)

    def found(model, asked):
        return [asked_in_a_run(model, Letters(), each, chunk=300) for each in asked]

    oracle = [found(Reader(10_000), asked) for asked in of_length]
    assert [PASSKEYS.counts(rows) for rows in oracle] == [
        {"trials": 3, "correct": 3, "accuracy": 1.0}
    ] * 2
    assert [rows[0]["tokens"] for rows in oracle] == [1990, 990]
    assert oracle[1][0]["reply"].startswith(f" {prompts[3].key}.")
    blind = [
        found(Reader(100), [each for each in asked if each.depth < 0.9]) for asked in of_length
    ]
    assert [PASSKEYS.counts(rows)["accuracy"] for rows in blind] == [0.0, 0.0]
    assert {row["reply"] for rows in blind for row in rows} == {""}, (
        "text after the end is no reply"
    )


def test_a_reply_that_stops_at_its_end_has_the_same_row():
    """A command's replies end there; a run's are read on, for ranks that share weights."""
    model, ended = tiny_model(), Numbers()
    ended.eos_token_id = replied(model, prompt())[4]
    row = asked_in_a_run(model, ended, prompt())
    assert len(row["reply"].split()) < REPLY_TOKENS
    assert answer(PASSKEYS, model, ended, [prompt()]) == [row]


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        (" 12345.\n", True),
        (" the number 12345, not 7", True),
        (" 123456", False),
        (" 7 or 12345", False),
        ("", False),
        (" ١٢٣٤٥", False),
    ],
)
def test_the_first_integer_decides(reply, right):
    question = replace(prompt(length=100), key=12345)
    assert PASSKEYS.row(question, [ord(letter) for letter in reply], Letters())["right"] is right


def row_of(reply, **fields):
    question = replace(prompt(length=64), key=7, **fields)
    return PASSKEYS.row(question, [ord(letter) for letter in reply], Letters())


def test_what_is_stored_of_a_reply():
    rows = [row_of(" 7.", trial=0, depth=0.25), row_of(" no", trial=1, depth=0.75)]
    assert rows == [
        {
            "trial": 0,
            "tokens": 64,
            "depth": 0.25,
            "key": 7,
            "reply": " 7.",
            "same_ids": True,
            "right": True,
        },
        {
            "trial": 1,
            "tokens": 64,
            "depth": 0.75,
            "key": 7,
            "reply": " no",
            "same_ids": False,
            "right": False,
        },
    ]
    assert PASSKEYS.counts(rows) == {"trials": 2, "correct": 1, "accuracy": 0.5}


def test_a_reply_that_reads_like_a_number_that_is_none(tmp_path, capsys):
    rows = [row_of(text) for text in ("nan", "-inf", "inf")]
    del rows[2]["same_ids"]  # as in older results
    found = {"length": 64, **PASSKEYS.counts(rows), "replies": rows}
    path = results.save(
        results.collect(command=["a"]).finish({"passkeys": [found]}), tmp_path / "a.json"
    )
    tables.print_passkeys({"one": results.load(path).figures["passkeys"]}, 64)
    shown = capsys.readouterr().out
    assert all(f"'{text}' for 7 at 50%" in shown for text in ("nan", "-inf", "inf"))
