"""Passkey retrieval: greedy replies from the cache, right or wrong by their first integer, ranks kept in step."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model

from tape_ds import results
from tape_ds.data.passkey import REPLY_TOKENS, PasskeyPrompt, draw
from tape_ds.scoring.passkey import Passkey, Reply, score
from tests.data.letters import Letters
from tests.models.helpers import tiny_model, tokens
from tests.scoring.readers import Reader
from tests.scoring.test_loss_by_position import tiny_llama


class Numbers(Letters):
    """Decodes any id to something that can be told apart."""

    def decode(self, ids):
        return " ".join(map(str, ids))


def prompt(length=40, seed=0, short_by=0):
    torch.manual_seed(seed)
    ids = tuple(tokens(1, length - short_by)[0].tolist())
    return PasskeyPrompt(length, seed, key=5, depth=0.5, text="", ids=ids)


def replied(model, asked, **options):
    """The ids of the one reply."""
    (found,) = score(model, Numbers(), [asked], **options)
    return [int(part) for part in found.replies[0].reply.split()]


def generated(model, asked):
    ids_1T = torch.tensor([asked.ids])
    new = model.generate(ids_1T, max_new_tokens=REPLY_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
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
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
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
    with_cache = [replied(model, prompt(seed=seed), chunk=16, new_tokens=5) for seed in range(3)]
    cached, calls[:], logits[:] = list(logits), [], []
    assert with_cache == [replied(model, prompt(seed=seed), use_cache=False, new_tokens=5) for seed in range(3)]
    assert all(len(ids) == 5 for ids in with_cache)
    assert calls.count("model") == 3 * 5, "the whole text, for every new token"
    # 40 tokens are 3 pieces, of which the last one gives a token
    per_token = [each for start in (2, 9, 16) for each in cached[start : start + 5]]
    torch.testing.assert_close(logits, per_token, atol=2e-5, rtol=1e-4)


def test_what_is_not_exact_in_pieces_is_read_in_one(watched):
    """Dynamic scaling takes its base from the call that begins a text; a foreign model promises nothing."""
    for model in (tiny_model(encoding="rope dynamic"), tiny_llama()):
        calls, _ = watched(model)
        score(model, Numbers(), [prompt()], chunk=7)
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
        score(model, ended, [asked], chunk=32)
        found.append(list(calls[len(calls) // 2 :]))
    assert found[0] == found[1] == found[2] and found[0]


def test_an_oracle_finds_every_key_and_a_short_sight_none():
    """The whole way, from drawn prompts through pieces to counts. The question hides what a short sight could see."""
    prompts = draw(Letters(), [2000, 1000], 3, seed=4)
    oracle = score(Reader(10_000), Letters(), prompts, chunk=300)
    assert [(found.length, found.trials, found.correct) for found in oracle] == [(1000, 3, 3), (2000, 3, 3)]
    assert oracle[0].replies[0].reply.startswith(f" {prompts[3].key}.")
    blind = score(Reader(100), Letters(), [each for each in prompts if each.depth < 0.9], chunk=300)
    assert [found.accuracy for found in blind] == [0.0, 0.0]
    assert {reply.reply for found in blind for reply in found.replies} == {""}, "text after the end is no reply"


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
    assert Reply(0, 100, 0.5, 12345, reply).correct is right


def test_json_round_trip_and_sums():
    found = Passkey(4096, (Reply(0, 4096, 0.25, 7, " 7.", True), Reply(1, 4095, 0.75, 8, " no", False)))
    stored = json.loads(json.dumps(found.to_dict()))
    assert (stored["trials"], stored["correct"], stored["accuracy"]) == (2, 1, 0.5)
    assert Passkey.from_dict(stored) == found
    for each in stored["replies"]:
        del each["same_ids"]
    assert [each.same_ids for each in Passkey.from_dict(stored).replies] == [None, None], "of older results"


def test_a_reply_that_reads_like_a_number_that_is_none(tmp_path):
    found = Passkey(64, tuple(Reply(trial, 64, 0.5, 7, text) for trial, text in enumerate(("nan", "-inf", "inf"))))
    path = results.save(results.collect().finish({"passkeys": [found.to_dict()]}), tmp_path / "a.json")
    assert Passkey.from_dict(results.load(path).figures["passkeys"][0]) == found
