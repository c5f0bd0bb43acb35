"""The endpoints, in process: what is asked is done, with the numbers of the model itself, or refused by name."""

import json
import math

import pytest
import torch

from tape_ds.serving.forms import _parts, written
from tape_ds.serving.settings import Defaults
from tests.serving.conftest import LENGTH, asking, new_served

ASKED = {"model": "tiny", "prompt": "Once", "max_tokens": 8}
MESSAGES = [{"role": "user", "content": "Once"}]
CHAT = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8}
RESPONSE = {"model": "tiny", "input": "Once", "max_output_tokens": 8}
COMPLETIONS = "/v1/completions"
CHATS = "/v1/chat/completions"
RESPONSES = "/v1/responses"
BASES = {COMPLETIONS: ASKED, CHATS: CHAT, RESPONSES: RESPONSE}


def post(client, path=COMPLETIONS, status=200, **changes):
    asked = BASES[path] | changes
    answer = client.post(
        path, json={name: value for name, value in asked.items() if value is not ...}
    )
    assert answer.status_code == status, answer.text
    return answer.json()


def events(client, path, **changes):
    """The objects of a stream, which must end as OpenAI's do."""
    answer = client.post(path, json=BASES[path] | {"stream": True} | changes)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith(
        "text/event-stream"
    )
    blocks = answer.text.removesuffix("\n\n").split("\n\n")
    assert blocks.pop() == "data: [DONE]"
    return [json.loads(block.split("data: ", 1)[1]) for block in blocks]


def text_of(client, **changes):
    return post(client, **changes)["choices"][0]["text"]


@torch.no_grad()
def logprobs_of(served, ids):
    """fp32 [T, V], by one pass over all tokens."""
    return torch.log_softmax(served.model(torch.tensor([ids])).logits[0].float(), dim=-1)


def ids_of(served, text):
    return [0, *served.tokenizer(text, add_special_tokens=False)["input_ids"]]


# drawing


def test_temperature_and_top_p_sample(client):
    """Both were ignored: temperature 1.5 gave one text with five seeds."""
    drawn = {text_of(client, temperature=1.5, seed=seed) for seed in range(5)}
    assert len(drawn) == 5
    assert len({text_of(client, seed=seed) for seed in range(5)}) == 5, (
        "OpenAI's default temperature is 1"
    )
    assert text_of(client, seed=7) == text_of(client, seed=7)
    greedy = text_of(client, temperature=0)
    assert {text_of(client, temperature=1.5, top_p=0.0, seed=seed) for seed in range(3)} == {greedy}


def test_samples_have_the_models_frequencies(client, served):
    temperature = 0.6
    answers = 64
    choices = post(client, n=answers, max_tokens=1, temperature=temperature, seed=0, logprobs=0)[
        "choices"
    ]
    likely = torch.softmax(logprobs_of(served, ids_of(served, "Once"))[-1] / temperature, dim=-1)
    name, best = served.texts.of(int(likely.argmax()))[0], float(likely.max())
    seen = sum(choice["logprobs"]["tokens"] == [name] for choice in choices) / answers
    assert 0.1 < best < 0.9 and abs(seen - best) < 4 * math.sqrt(best * (1 - best) / answers)


@torch.no_grad()
def by_hand(served, tokens, presence=0.0, frequency=0.0, repetition=1.0):
    """Greedy tokens after "Once", by OpenAI's and transformers' formulas of penalties."""
    ids = ids_of(served, "Once")
    answer = []
    for _ in range(tokens):
        logits = served.model(torch.tensor([ids + answer])).logits[0, -1].float()
        for token in {*ids, *answer}:
            logits[token] = (
                logits[token] / repetition if logits[token] > 0 else logits[token] * repetition
            )
        for token in set(answer):
            logits[token] -= frequency * answer.count(token) + presence
        answer.append(int(logits.argmax()))
        if answer[-1] == 1:
            break
    return served.texts.decode(answer)


def test_penalties_are_openais(client, served):
    penalties = [
        {},
        {"presence_penalty": 2.0},
        {"frequency_penalty": 1.5, "presence_penalty": -0.5},
    ]
    found = []
    for penalty in penalties:
        found.append(text_of(client, temperature=0, max_tokens=24, **penalty))
        given = {name.removesuffix("_penalty"): value for name, value in penalty.items()}
        assert found[-1] == by_hand(served, 24, **given)
    assert len(set(found)) == 3


def test_biases(client, served):
    (wanted,) = served.tokenizer("X", add_special_tokens=False)["input_ids"]
    assert text_of(client, temperature=0, logit_bias={str(wanted): 100}) == "X" * 8
    (first, *_) = ids_of(served, text_of(client, temperature=0))[1:]
    choice = post(client, temperature=0, logit_bias={str(first): -100}, max_tokens=1, logprobs=1)[
        "choices"
    ][0]
    own, likeliest = choice["logprobs"]["token_logprobs"][0], choice["logprobs"]["top_logprobs"][0]
    assert own < max(likeliest.values()), "probabilities are the model's own, before biases"


def test_the_models_own_settings_are_the_defaults():
    served = new_served(defaults=Defaults(temperature=0.0, repetition_penalty=1.5))
    with asking(served) as client:
        assert (
            text_of(client, max_tokens=30)
            == by_hand(served, 30, repetition=1.5)
            != by_hand(served, 30)
        )
        assert len({text_of(client, temperature=1.5, seed=seed) for seed in range(3)}) == 3
        assert post(client, RESPONSES)["temperature"] == 0.0


def test_several_prompts_and_answers(client, served):
    ids = ids_of(served, "Twice")
    found = post(client, prompt=["Once", "Twice"], n=2, temperature=0)["choices"]
    assert [choice["index"] for choice in found] == [0, 1, 2, 3]
    assert [choice["text"] for choice in found] == [
        text_of(client, prompt=text, temperature=0) for text in ("Once", "Once", "Twice", "Twice")
    ]
    assert text_of(client, prompt=ids, temperature=0) == found[2]["text"]
    assert (
        post(client, prompt=[ids, ids[:3]], temperature=0)["choices"][0]["text"] == found[2]["text"]
    )
    assert len({choice["text"] for choice in post(client, n=3, best_of=3, seed=1)["choices"]}) == 3
    assert len(post(client, CHATS, n=2)["choices"]) == 2


def test_a_token_that_ends_texts_ends_an_answer(client):
    ended = post(client, logit_bias={"1": 100}, logprobs=1)
    choice = ended["choices"][0]
    assert (
        choice["text"] == ""
        and choice["finish_reason"] == "stop"
        and choice["logprobs"]["tokens"] == []
    )
    assert ended["usage"]["completion_tokens"] == 1


def test_stop_strings(client):
    whole = text_of(client, temperature=0, max_tokens=60)
    for stop in (whole[5:8], [whole[20:23], whole[5:8]], [whole[5:8]] * 16):
        found = post(client, temperature=0, max_tokens=60, stop=stop)["choices"][0]
        assert (
            found["text"] == whole[: whole.index(whole[5:8])] and found["finish_reason"] == "stop"
        )
    assert (
        text_of(client, temperature=0, stop=[])
        == text_of(client, temperature=0, stop=None)
        == whole[:8]
    )
    streamed = events(client, COMPLETIONS, temperature=0, max_tokens=60, stop=whole[5:8])
    assert (
        "".join(each["choices"][0]["text"] for each in streamed) == whole[: whole.index(whole[5:8])]
    )


# probabilities


def check_logprobs(served, found, ids, top):
    """A completion's ``logprobs`` against one pass over the same tokens."""
    expected = logprobs_of(served, ids)
    first = len(ids) - len(found["tokens"])
    assert found["tokens"] == [served.texts.of(token)[0] for token in ids[first:]]
    for place, (own, likeliest) in enumerate(
        zip(found["token_logprobs"], found["top_logprobs"], strict=True), first
    ):
        if place == 0:
            assert own is None and likeliest is None
            continue
        row = expected[place - 1]
        assert own == pytest.approx(float(row[ids[place]]), abs=2e-5)
        assert max(likeliest.values()) >= own and len(likeliest) in (top, top + 1)
        assert sorted(likeliest.values())[-top:] == pytest.approx(
            sorted(row.topk(top).values.tolist()), abs=2e-5
        )


def test_logprobs_are_the_models(client, served):
    choice = post(client, temperature=0, logprobs=3)["choices"][0]
    ids = ids_of(served, "Once" + choice["text"])
    check_logprobs(served, choice["logprobs"], ids, 3)
    assert (
        choice["logprobs"]["text_offset"] == [*range(8)] and len(choice["logprobs"]["tokens"]) == 8
    )


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
@pytest.mark.parametrize("form", ["text", "ids"])
def test_echo_gives_the_prompt_and_its_probabilities(client, served, form, max_tokens):
    ids = ids_of(served, "Once upon")
    prompt = ids if form == "ids" else "Once upon"
    whole = post(client, prompt=prompt, max_tokens=max_tokens, echo=True, logprobs=2, temperature=0)
    choice = whole["choices"][0]
    shown = "<s>Once upon" if form == "ids" else "Once upon"
    assert choice["text"].startswith(shown) and len(choice["text"]) == len(shown) + max_tokens
    answer = choice["text"].removeprefix(shown)
    if max_tokens:
        assert answer == text_of(client, prompt="Once upon", max_tokens=max_tokens, temperature=0)
    read = ids + ids_of(served, answer)[1:]
    check_logprobs(served, choice["logprobs"], read, 2)
    for name, offset in zip(
        choice["logprobs"]["tokens"][1:], choice["logprobs"]["text_offset"][1:], strict=True
    ):
        assert choice["text"][offset:].startswith(name)
    assert whole["usage"] == {
        "prompt_tokens": len(ids),
        "completion_tokens": max_tokens,
        "total_tokens": len(ids) + max_tokens,
    }


def test_a_stream_has_the_same_probabilities(client):
    asked = {"echo": True, "logprobs": 2, "temperature": 0}
    whole = post(client, **asked)["choices"][0]
    parts = [each["choices"][0] for each in events(client, COMPLETIONS, **asked)]
    assert "".join(part["text"] for part in parts) == whole["text"] and len(parts) > 5
    for name, values in whole["logprobs"].items():
        assert [value for part in parts for value in part["logprobs"][name]] == values


def test_a_chats_probabilities(client, served):
    choice = post(client, CHATS, temperature=0, logprobs=True, top_logprobs=2)["choices"][0]
    prompt = ids_of(served, "[user] Once\n[assistant] ")[1:]  # the template writes no <s>
    ids = prompt + ids_of(served, choice["message"]["content"])[1:]
    expected = logprobs_of(served, ids)
    content = choice["logprobs"]["content"]
    assert (
        bytes(byte for each in content for byte in each["bytes"]).decode()
        == choice["message"]["content"]
    )
    for place, each in enumerate(content, len(prompt)):
        assert each["logprob"] == pytest.approx(float(expected[place - 1, ids[place]]), abs=2e-5)
        assert len(each["top_logprobs"]) == 2 and each["top_logprobs"][0]["token"] == each["token"]


# forms


def test_the_three_endpoints_write_the_same_answer_whole_and_as_a_stream(client):
    chat = post(client, CHATS, temperature=0)["choices"][0]["message"]["content"]
    chunks = events(client, CHATS, temperature=0, stream_options={"include_usage": True})
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]) == chat
    assert chunks[-2]["choices"][0]["finish_reason"] == "length" and chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 8

    response = post(client, RESPONSES, temperature=0)
    assert (
        response["output"][0]["content"][0]["text"] == chat and response["status"] == "incomplete"
    )
    streamed = events(client, RESPONSES, temperature=0)
    assert [each["sequence_number"] for each in streamed] == [*range(len(streamed))]
    deltas = [each["delta"] for each in streamed if each["type"] == "response.output_text.delta"]
    assert "".join(deltas) == chat and len(deltas) > 4
    assert (
        streamed[-1]["type"] == "response.incomplete"
        and streamed[-1]["response"]["output"][0]["content"][0]["text"] == chat
    )


def test_a_stream_is_read_by_clients_that_end_lines_at_more_signs_than_its_own(client):
    """U+2028 and its like were written as they are: httpx's ``iter_lines`` and requests' cut the JSON in two there."""
    prompt = "Once\u2028upon\u2029a\x85time\x0b"
    asked = ASKED | {"prompt": prompt, "echo": True, "stream": True}
    with client.stream("POST", COMPLETIONS, json=asked) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data: {")]
    text = "".join(json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in lines)
    assert text.startswith(prompt) and len(text) == len(prompt) + 8


def test_messages_and_instructions_reach_the_template(client):
    parts = [{"type": "text", "text": "On"}, {"type": "text", "text": "ce"}]
    turns = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": parts},
        {
            "role": "assistant",
            "content": "a",
            "refusal": None,
            "tool_calls": None,
            "annotations": [],
        },
        {"role": "user", "content": "more"},
    ]
    text = "[system] Be short.\n[user] On\nce\n[assistant] a\n[user] more\n[assistant] "
    found = post(client, CHATS, messages=turns, temperature=0)
    assert found["usage"]["prompt_tokens"] == len(text)
    said = [
        {"role": "user", "content": [{"type": "input_text", "text": "On\nce"}]},
        {"role": "assistant", "content": "a"},
    ]
    again = post(
        client, RESPONSES, instructions="Be short.", input=[*said, turns[3]], temperature=0
    )
    assert again["output"][0]["content"][0]["text"] == found["choices"][0]["message"]["content"]
    assert again["instructions"] == "Be short."


def test_an_earlier_response_can_be_sent_back(client):
    first = post(client, RESPONSES, metadata={"a": "b"})
    assert first["metadata"] == {"a": "b"}
    given = [
        {"role": "user", "content": "Once"},
        *first["output"],
        {"role": "user", "content": "more"},
    ]
    assert post(client, RESPONSES, input=given)["status"] in ("completed", "incomplete")


def test_answers_without_max_tokens(client):
    assert post(client, max_tokens=..., temperature=0)["usage"]["completion_tokens"] == 16
    chat = post(client, CHATS, max_tokens=..., temperature=0)
    assert (
        chat["usage"]["total_tokens"] == LENGTH and chat["choices"][0]["finish_reason"] == "length"
    )


# refusals

REFUSED = [
    # as OpenAI's field goes out of its range, or asks for what is not done
    (COMPLETIONS, {"temperature": -1}, "temperature"),
    (COMPLETIONS, {"temperature": 2.1}, "temperature"),
    (COMPLETIONS, {"temperature": "1"}, "temperature"),
    (COMPLETIONS, {"temperature": []}, "temperature"),
    (COMPLETIONS, {"top_p": 2}, "top_p"),
    (COMPLETIONS, {"n": 0}, "n"),
    (COMPLETIONS, {"n": 129}, "n"),
    (COMPLETIONS, {"n": True}, "n"),
    (COMPLETIONS, {"best_of": 4}, "best_of"),
    (COMPLETIONS, {"logprobs": 6}, "logprobs"),
    (COMPLETIONS, {"logprobs": True}, "logprobs"),
    (COMPLETIONS, {"max_tokens": []}, "max_tokens"),
    (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
    (COMPLETIONS, {"max_tokens": -3}, "max_tokens"),
    (COMPLETIONS, {"suffix": 5}, "suffix"),
    (COMPLETIONS, {"suffix": "end"}, "suffix"),
    (COMPLETIONS, {"presence_penalty": 3}, "presence_penalty"),
    (COMPLETIONS, {"logit_bias": {"x": 1}}, "logit_bias"),
    (COMPLETIONS, {"logit_bias": {"98": 1}}, "logit_bias"),
    (COMPLETIONS, {"logit_bias": {"5": 101}}, "logit_bias.5"),
    (COMPLETIONS, {"stop": ["a"] * 17}, "stop"),
    (COMPLETIONS, {"stop": "a" * 257}, "stop"),
    (COMPLETIONS, {"stop": ""}, "stop"),
    (COMPLETIONS, {"stop": [5]}, "stop.0"),
    (COMPLETIONS, {"stop": {}}, "stop"),
    (COMPLETIONS, {"seed": 2**63}, "seed"),
    (COMPLETIONS, {"stream_options": {"include_usage": True}}, "stream_options"),
    (COMPLETIONS, {"prompt": ...}, "prompt"),
    (COMPLETIONS, {"prompt": []}, "prompt"),
    (COMPLETIONS, {"prompt": {}}, "prompt"),
    (COMPLETIONS, {"prompt": [[]]}, "prompt.0"),
    (COMPLETIONS, {"prompt": [5, "a"]}, "prompt.1"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt.0"),
    (COMPLETIONS, {"prompt": [98]}, "prompt"),
    (COMPLETIONS, {"prompt": ["a"] * 65, "n": 2}, "n"),
    (COMPLETIONS, {"prompt": "a" * 128}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", "a" * 128]}, "prompt.1"),
    # what is no field of OpenAI's there
    (COMPLETIONS, {"generation_config": {"num_beams": 200}}, "generation_config"),
    (COMPLETIONS, {"top_k": 5}, "top_k"),
    (COMPLETIONS, {"response_format": {"type": "text"}}, "response_format"),
    (CHATS, {"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
    (CHATS, {"messages": ...}, "messages"),
    (CHATS, {"messages": []}, "messages"),
    (CHATS, {"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
    (CHATS, {"messages": [{"role": "user"}]}, "messages.0.content"),
    (CHATS, {"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    (CHATS, {"messages": [{"role": "user", "content": "x", "name": "me"}]}, "messages.0.name"),
    (
        CHATS,
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
            ]
        },
        "messages.0.content.0.type",
    ),
    (CHATS, {"response_format": {"type": "json_object"}}, "response_format.type"),
    (CHATS, {"tools": [{"type": "function"}]}, "tools"),
    (CHATS, {"tool_choice": "required"}, "tool_choice"),
    (CHATS, {"top_logprobs": 2}, "top_logprobs"),
    (CHATS, {"logprobs": 2}, "logprobs"),
    (CHATS, {"max_completion_tokens": 5}, "max_tokens"),
    (CHATS, {"modalities": ["audio"]}, "modalities.0"),
    (CHATS, {"store": True}, "store"),
    (CHATS, {"reasoning_effort": "high"}, "reasoning_effort"),
    (CHATS, {"service_tier": "flex"}, "service_tier"),
    (CHATS, {"best_of": 1}, "best_of"),
    (RESPONSES, {"input": ...}, "input"),
    (
        RESPONSES,
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input.0.content.0.type",
    ),
    (RESPONSES, {"previous_response_id": "x"}, "previous_response_id"),
    (RESPONSES, {"truncation": "auto"}, "truncation"),
    (RESPONSES, {"text": {"format": {"type": "json_object"}}}, "text.format.type"),
    (RESPONSES, {"background": True}, "background"),
    (RESPONSES, {"max_output_tokens": 0}, "max_output_tokens"),
    (RESPONSES, {"seed": 5}, "seed"),
    (RESPONSES, {"input": "a" * 120}, "input"),
]


@pytest.mark.parametrize(("path", "changes", "field"), REFUSED)
def test_what_is_not_done_is_refused_by_name(client, path, changes, field):
    """All of these were answered with status 200, or with 500."""
    error = post(client, path, 400, **changes)["error"]
    assert error["param"] == field and error["message"].startswith(f"{field}:")
    assert error["type"] == "invalid_request_error" and set(error) == {
        "message",
        "type",
        "param",
        "code",
    }


def test_all_that_is_wrong_is_in_one_message(client):
    said = post(client, status=400, top_p=2, n=0, guided_json="x")["error"]["message"]
    assert "top_p: " in said and "n: " in said and "guided_json: not a field" in said


def test_values_that_ask_for_nothing_are_taken(client):
    post(
        client,
        suffix=None,
        best_of=1,
        n=1,
        user="me",
        logprobs=None,
        logit_bias={},
        stream_options=None,
    )
    nothing = {
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
    }
    post(
        client,
        CHATS,
        **nothing,
        store=False,
        service_tier="auto",
        parallel_tool_calls=True,
        user="me",
    )
    post(
        client,
        RESPONSES,
        tools=[],
        include=[],
        truncation="disabled",
        text={"format": {"type": "text"}},
    )


@pytest.mark.parametrize("empty", [None, "", [], {}])
def test_a_field_that_is_null_or_empty_asks_for_nothing_wherever_it_is(client, empty):
    """Clients send all the fields that they know: a message with ``name: null`` was refused."""
    for path in BASES:
        post(client, path, guided_json=empty, metadata=None, tools=[], chat_template_kwargs=empty)
    turns = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Once", "cache_control": empty}],
            "name": empty,
        },
        {
            "role": "assistant",
            "content": "a",
            "reasoning_content": empty,
            "tool_calls": [],
            "function_call": None,
        },
        {"role": "user", "content": "more", "tool_call_id": empty},
    ]
    given = [{"role": "user", "content": "Once", "type": "message", "status": None, "name": empty}]
    assert post(client, CHATS, messages=turns)["usage"]["prompt_tokens"] == len(
        "[user] Once\n[assistant] a\n[user] more\n[assistant] "
    )
    assert post(client, RESPONSES, input=given, reasoning=empty)["usage"]["output_tokens"] == 8
    options = {"include_usage": True, "continuous_usage_stats": empty}
    assert events(client, CHATS, stream_options=options)[-1]["usage"]["completion_tokens"] == 8


def test_only_documented_endpoints_answer(client):
    routes = {
        (path, method.upper())
        for path, each in client.get("/openapi.json").json()["paths"].items()
        for method in each
    }
    posted = {(path, "POST") for path in BASES}
    assert routes == posted | {
        ("/v1/models", "GET"),
        ("/v1/models/{name}", "GET"),
        ("/health", "GET"),
    }
    for path in ("/load_model", "/reset", "/v1/audio/transcriptions", "/docs", "/redoc"):
        for answer in (client.get(path), client.post(path, json={"model": "tiny"})):
            assert (
                answer.status_code == 404
                and answer.json()["error"]["type"] == "invalid_request_error"
            )
    assert client.get(COMPLETIONS).status_code == 405


def test_another_model_is_not_found(client):
    for path in BASES:
        assert post(client, path, 404, model="another")["error"]["code"] == "model_not_found"
    assert (
        client.get("/v1/models/tiny").json()["id"]
        == "tiny"
        == client.get("/v1/models").json()["data"][0]["id"]
    )
    assert client.get("/v1/models/").json() == client.get("/v1/models").json(), (
        "it was a model without a name"
    )
    assert client.get("/v1/models/a/b").status_code == 404


@pytest.mark.parametrize("name", ["lab:tiny.gguf", "runs/demo", "a b", "x@y"])
def test_the_length_holds_whatever_the_models_name_is(name):
    """A name with a colon that ends in .gguf lost the guard: 401 tokens and 302 were read and written at 256."""
    served = new_served()
    served.name = name
    with asking(served) as client:
        assert (
            "no room" in post(client, status=400, model=name, prompt="a" * 128)["error"]["message"]
        )
        found = post(client, model=name, prompt="a" * 100, max_tokens=500)
        assert found["usage"]["total_tokens"] == LENGTH
        assert client.get(f"/v1/models/{name}").json()["id"] == name


def test_bodies_that_are_no_json_object(client):
    for body in (
        b"",
        b"{",
        b"[1]",
        b"5",
        b'"a"',
        b"\xff\xfe",
        b'{"model": "tiny", "prompt": "\\ud800"}',
        b"null",
    ):
        answer = client.post(
            COMPLETIONS, content=body, headers={"Content-Type": "application/json"}
        )
        assert (
            answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"
        ), body
    text = json.dumps(ASKED | {"prompt": "a\U0001f600"})
    assert "\\ud83d" in text
    assert (
        client.post(
            COMPLETIONS, content=text, headers={"Content-Type": "application/json"}
        ).status_code
        == 200
    )


def test_numbers_that_are_not_finite(client):
    for value in ("NaN", "Infinity", "1e999"):
        body = f'{{"model": "tiny", "prompt": "a", "temperature": {value}}}'
        answer = client.post(
            COMPLETIONS, content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "temperature"


def test_a_template_that_refuses_its_messages():
    served = new_served()
    served.tokenizer.chat_template = "{{ raise_exception('roles must \"alternate\"') }}"
    with asking(served) as client:
        said = post(client, CHATS, 400)["error"]
    assert 'must "alternate"' in said["message"] and said["param"] == "messages"


def test_a_model_without_a_template():
    served = new_served()
    served.tokenizer.chat_template = None
    with asking(served) as client:
        assert "no chat template" in post(client, CHATS, 400)["error"]["message"]
        assert "no chat template" in post(client, RESPONSES, 400)["error"]["message"]


def test_logits_that_are_not_finite_are_an_error():
    """A model with NaN among its weights answered with a text of any tokens, status 200."""
    served = new_served()
    served.model.lm_head.weight.data[5] = math.nan
    with asking(served) as client:
        for changes in ({}, {"temperature": 0}, {"echo": True, "logprobs": 1, "max_tokens": 0}):
            error = post(client, status=500, **changes)["error"]
            assert error["code"] == "logits_not_finite" and error["type"] == "server_error"
        *_, last = events(client, COMPLETIONS)
        assert last["error"]["code"] == "logits_not_finite"
        kinds = [each["type"] for each in events(client, RESPONSES)]
        assert kinds[-2:] == ["error", "response.failed"]


def test_an_error_in_a_stream_is_json_whatever_its_words(monkeypatch):
    """The words were put between quotes as they were."""
    served = new_served()
    with asking(served) as client:

        def fail(*_, **__):
            raise ValueError('it said "no"\nand\\ended')

        monkeypatch.setattr(served.model, "generate", fail)
        (error,) = events(client, COMPLETIONS)
        assert error["error"]["message"] == 'The model failed: ValueError: it said "no" and\\ended'
        assert post(client, status=500)["error"]["code"] == "model_failed"
        monkeypatch.undo()
        assert post(client)["choices"], "the next request is answered"


def test_an_answer_written_in_parts_is_its_json():
    """Its writer held up every other request, for 7 seconds where 84 MB of probabilities were asked for."""
    answer = {
        "id": 'a"b',
        "empty": [],
        "choices": [{"text": "é\u2028", "logprob": -0.5}, {"text": None}],
        "usage": {"a": 1},
    }
    assert json.loads(written(answer)) == answer
    entries = [{"token": str(number), "bytes": [number], "top": []} for number in range(200)]
    for count in (0, 1, 63, 64, 65, 200):  # as a list, and one after another
        for content in (entries[:count], iter(entries[:count])):
            text = written({"choices": [{"logprobs": {"content": content}}, {}], "none": {}})
            expected = [{"logprobs": {"content": entries[:count]}}, {}]
            assert json.loads(text) == {"choices": expected, "none": {}}
    longest = max(map(len, _parts({"choices": [{"logprobs": {"content": entries}}]}, 0)))
    assert longest <= len(json.dumps(entries[-64:])), "no part is a whole text's"
    with pytest.raises(ValueError, match="not JSON compliant"):
        written({"choices": [{"logprob": math.nan}]})
