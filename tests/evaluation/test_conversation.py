"""A conversation: what the cache spares is not read again, and nothing it says depends on that."""

import signal

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig

from evaluation.conversation import Conversation, Drawing
from tests.model.helpers import tiny_model
from tests.model.test_gptj import ANGLES, ours, theirs
from tests.scoring.test_loss_by_position import tiny_llama

CHAT = "{% for m in messages %}{{ 'w3 ' + m.content + ' w4 ' }}{% endfor %}w5"
FORGETFUL = "{{ 'w3 ' + messages[-1].content + ' w4 w5' }}"


@pytest.fixture
def tokenizer(base):
    return AutoTokenizer.from_pretrained(base)


def begin(model, tokenizer, chat=None, new_tokens=6, **drawing):
    tokenizer.chat_template = chat
    return Conversation(model, tokenizer, drawing=Drawing(**drawing), new_tokens=new_tokens, chat=chat is not None)


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


@pytest.mark.parametrize("encoding", ["tape", "rope", "alibi", "bipe_rope"])
def test_turns_go_on_from_one_cache(encoding, tokenizer):
    """Each reply is that of whole passes over all that was said; only what is new is read."""
    model = tiny_model(encoding=encoding)
    talk = begin(model, tokenizer)
    said = [7, 8, 9]
    first = talk.say(words(*said))
    reply = greedy(model, said, 6)
    assert (first.text, first.read_tokens, first.prompt_tokens) == (shown(tokenizer, reply), 3, 3)
    said += [*reply, 31, 32]
    second = talk.say(words(31, 32))
    assert second.text == shown(tokenizer, greedy(model, said, 6))
    assert talk.text.ids[: len(said)] == said
    assert second.prompt_tokens == len(said)
    # the last token was chosen but not read; where it was the end of text, it was chosen and put aside
    assert second.read_tokens == (3 if first.new_tokens == len(reply) else 2)


def test_gptj_with_scaled_angles(tokenizer):
    """The one family here whose configuration is not the project's own."""
    model = ours(theirs(), rope_parameters=ANGLES["linear"])
    talk = begin(model, tokenizer)
    assert talk.say(words(7, 8, 9)).text == shown(tokenizer, greedy(model, [7, 8, 9], 6))
    said = [*talk.text.ids, 31]
    assert talk.say(words(31)).text == shown(tokenizer, greedy(model, said, 6))


def test_a_long_prompt_is_read_in_pieces(tokenizer, monkeypatch):
    from evaluation import conversation

    monkeypatch.setattr(conversation, "CHUNK", 16)
    model, read = tiny_model(), []
    model.model.register_forward_pre_hook(
        lambda _, args, given: read.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    said = list(range(30, 60)) + list(range(30, 40))
    talk = begin(model, tokenizer, new_tokens=3)
    found = talk.say(words(*said))
    assert read[:3] == [16, 16, 8] and set(read[3:]) == {1}
    assert found.text == shown(tokenizer, greedy(model, said, 3))


def test_what_promises_nothing_is_read_again(tokenizer):
    """transformers' own models, and scaling that takes its base from the call that begins a text."""
    for model in (tiny_llama().eval(), tiny_model(encoding="rope dynamic")):
        talk = begin(model, tokenizer)
        talk.say(words(7, 8, 9))
        found = talk.say(words(31, 32))
        assert found.read_tokens == found.prompt_tokens > 5 and talk.cache is None


def test_other_angles_are_another_cache(tokenizer):
    """yarn is scaled to the text at hand: the keys of a shorter one were turned by other angles."""
    model = tiny_model(encoding="yarn")
    talk = begin(model, tokenizer, new_tokens=4)
    talk.say(words(7, 8, 9))
    inside = talk.say(words(31, 32))
    beyond = talk.say(words(*range(30, 60), *range(30, 60)))
    assert inside.read_tokens < inside.prompt_tokens and beyond.read_tokens == beyond.prompt_tokens


def test_a_chat_is_one_growing_text(tokenizer):
    model = tiny_model()
    talk = begin(model, tokenizer, chat=CHAT)
    first = talk.say(words(9))
    assert first.text == shown(tokenizer, greedy(model, [3, 9, 4, 5], 6)) and talk.text.messages[1] == {
        "role": "assistant",
        "content": first.text,
    }
    whole = tokenizer(f"{words(3, 9, 4, 3)} {first.text} {words(4, 3, 30, 4, 5)}")["input_ids"]
    second = talk.say(words(30))
    assert (second.prompt_tokens, second.text) == (len(whole), shown(tokenizer, greedy(model, whole, 6)))


def test_a_template_that_rewrites_what_was_said_is_read_anew(tokenizer):
    model = tiny_model()
    talk = begin(model, tokenizer, chat=FORGETFUL)
    talk.say(words(9))
    second = talk.say(words(30))
    assert second.read_tokens == second.prompt_tokens == 4
    assert second.text == shown(tokenizer, greedy(model, [3, 30, 4, 5], 6))


def test_the_models_own_settings_do_not_count(tokenizer):
    model = tiny_model()
    expected = shown(tokenizer, greedy(model, [7, 8], 6))
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=9.0, repetition_penalty=5.0, max_new_tokens=1, eos_token_id=2
    )
    assert begin(model, tokenizer).say(words(7, 8)).text == expected


def drawn(tokenizer, seed=0, **drawing):
    torch.manual_seed(seed)
    model = tiny_model()
    torch.manual_seed(seed)
    return begin(model, tokenizer, new_tokens=12, **drawing).say(words(7, 8)).text


def test_drawing_is_what_was_asked_for(tokenizer):
    plain = drawn(tokenizer)
    assert drawn(tokenizer, temperature=0.0, top_p=0.5) == drawn(tokenizer, temperature=3.0, top_k=1) == plain
    torch.manual_seed(0)
    model = tiny_model()
    texts = set()
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        texts.add(begin(model, tokenizer, new_tokens=12, temperature=3.0).say(words(7, 8)).text)
    assert len(texts) == 2, "the same seed, the same text"
    assert Drawing(top_p=0.9).settings() == {"do_sample": True, "temperature": 1.0, "top_p": 0.9, "top_k": 0}


def test_an_end_of_text_ends_a_reply_and_is_no_part_of_it(tokenizer):
    model = tiny_model()
    written = greedy(model, [7, 8], 20, end=None)
    place = next(at for at, each in enumerate(written) if at > 1 and each > 2 and each not in written[:at])
    tokenizer.eos_token = f"w{written[place]}"
    found = begin(model, tokenizer, new_tokens=20).say(words(7, 8))
    assert (found.text, found.new_tokens) == (shown(tokenizer, written[:place]), place + 1)


def test_an_interrupt_ends_the_reply_and_the_conversation_goes_on(tokenizer):
    """The token at hand is finished: no layer of the cache is a token ahead of another."""
    model = tiny_model()
    calls = []

    def second_token(*_):
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)

    model.model.layers[1].register_forward_hook(second_token)
    talk = begin(model, tokenizer, new_tokens=20)
    before = signal.getsignal(signal.SIGINT)
    first = talk.say(words(7, 8, 9))
    assert first.new_tokens == 2 and signal.getsignal(signal.SIGINT) is before
    said = [*talk.text.ids, 31]
    second = talk.say(words(31))
    assert second.read_tokens == 2
    assert second.text == shown(tokenizer, greedy(model, said, 20))


def test_a_second_interrupt_interrupts(tokenizer):
    model = tiny_model()
    model.model.layers[0].register_forward_hook(lambda *_: signal.raise_signal(signal.SIGINT))
    model.model.layers[1].register_forward_hook(lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        begin(model, tokenizer).say(words(7))


def test_the_reply_streams_to_standard_output_and_the_sums_are_told(tokenizer, capsys):
    found = begin(tiny_model(), tokenizer).say(words(7, 8))
    assert capsys.readouterr().out == f"{found.text}\n"
    assert str(found).startswith("prompt 2 tokens, read in ") and f"reply {found.new_tokens} tokens, " in str(found)
    assert str(found).endswith(" tokens/s")
