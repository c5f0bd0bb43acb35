"""OpenAI's own client reads every kind of answer as the type that its package declares."""

from contextlib import contextmanager

import pytest

from tape_ds.serving.app import application
from tests.serving.conftest import new_served
from tests.serving.running import listening

openai = pytest.importorskip("openai")

ASKED = {"model": "tiny", "prompt": "Once", "max_tokens": 6, "temperature": 0}
CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Once"}],
    "max_tokens": 6,
    "temperature": 0,
}
RESPONSE = {"model": "tiny", "input": "Once", "max_output_tokens": 6, "temperature": 0}


@contextmanager
def asked_by_openai(served):
    with listening(application(served)) as port:
        client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0
        )
        with client:
            yield client


@pytest.fixture(scope="module")
def client():
    with asked_by_openai(new_served()) as client:
        yield client


def typed(answer, kind):
    """Check an answer, which the client builds without looking, against its type."""
    assert type(answer) is kind
    kind.model_validate(answer.model_dump())
    return answer


def test_a_completion(client):
    from openai.types import Completion

    whole = typed(client.completions.create(**ASKED, logprobs=2, n=2), Completion)
    assert len(whole.choices) == 2 and len(whole.choices[0].logprobs.tokens) == 6
    chunks = [
        *client.completions.create(**ASKED, stream=True, stream_options={"include_usage": True})
    ]
    assert all(type(chunk) is Completion for chunk in chunks)
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert chunks[-1].usage.completion_tokens == 6


def test_a_chat(client):
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    whole = typed(
        client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2), ChatCompletion
    )
    chunks = [
        typed(chunk, ChatCompletionChunk)
        for chunk in client.chat.completions.create(**CHAT, stream=True)
    ]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert (
        text == whole.choices[0].message.content and chunks[-1].choices[0].finish_reason == "length"
    )
    turns = [
        *CHAT["messages"],
        whole.choices[0].message.model_dump(),
        {"role": "user", "content": "more"},
    ]
    assert client.chat.completions.create(**CHAT | {"messages": turns}).choices[0].message.content


def test_a_response(client):
    """Without ``stream`` it was a text of events, which has no ``output_text``."""
    from openai.types.responses import Response

    whole = typed(client.responses.create(**RESPONSE), Response)
    assert len(whole.output_text) == 6 and whole.incomplete_details.reason == "max_output_tokens"
    again = client.responses.create(
        model="tiny",
        input=[
            {"role": "user", "content": "Once"},
            *whole.output,
            *[{"role": "user", "content": "more"}],
        ],
        max_output_tokens=2,
    )
    assert len(again.output_text) == 2
    events = [
        typed(event, type(event)) for event in client.responses.create(**RESPONSE, stream=True)
    ]
    assert [event.type for event in events if "delta" not in event.type] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert "".join(event.delta for event in events if "delta" in event.type) == whole.output_text
    assert typed(events[-1].response, Response).output_text == whole.output_text


def test_a_response_that_the_model_ends():
    served = new_served()
    served.model.lm_head.bias.data[1] = 2  # </s>
    with asked_by_openai(served) as client:
        whole = client.responses.create(model="tiny", input="Once", temperature=0)
        with client.responses.stream(model="tiny", input="Once", temperature=0) as stream:
            stream.until_done()
            assert stream.get_final_response().output_text == whole.output_text
    assert whole.status == "completed" and whole.incomplete_details is None


def test_models_and_errors(client):
    assert client.models.retrieve("tiny").id == "tiny" == client.models.list().data[0].id
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**CHAT, response_format={"type": "json_object"})
    assert (
        refused.value.param == "response_format.type"
        and refused.value.type == "invalid_request_error"
    )
    with pytest.raises(openai.NotFoundError):
        client.completions.create(**ASKED | {"model": "another"})


def test_an_error_within_a_stream(client, monkeypatch):
    def fail(*_, **__):
        raise ValueError('it said "no"')

    monkeypatch.setattr("transformers.LlamaForCausalLM.generate", fail)
    for create, asked in (
        (client.completions.create, ASKED),
        (client.chat.completions.create, CHAT),
    ):
        with pytest.raises(openai.APIError, match='it said "no"'):
            [*create(**asked, stream=True)]
    *_, error, failed = client.responses.create(**RESPONSE, stream=True)
    assert typed(error, openai.types.responses.ResponseErrorEvent).message.endswith('it said "no"')
    assert (
        typed(failed, openai.types.responses.ResponseFailedEvent).response.error.code
        == "server_error"
    )
