"""Requests drawn from the server's OpenAPI: none ends in an error of the server, and nothing asked is ignored."""

import json
import random

import pytest

from tests.serving.conftest import LENGTH
from tests.serving.drawn import Drawn

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses")


def check(client, path, body):
    """Ask, and compare the answer with every field of the request; return the status."""
    answer = client.post(
        path, content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code in (200, 400, 404), (body, answer.text)
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert error["param"] is None or error["param"].split(".")[0] in {
            *body,
            "prompt",
            "messages",
            "input",
            "model",
        }
        return answer.status_code
    given = {name: value for name, value in body.items() if value is not None}
    if given.get("stream"):
        assert answer.text.endswith("data: [DONE]\n\n")
        last = answer.text.split("\n\n")[-3]
        if path == PATHS[2]:
            whole = json.loads(last.split("data: ", 1)[1])["response"]
            check_response(given, whole)
        elif given.get("stream_options", {}).get("include_usage"):
            assert json.loads(last.removeprefix("data: "))["usage"]["total_tokens"] <= LENGTH * 128
        return 200
    if path == PATHS[2]:
        check_response(given, answer.json())
    else:
        check_choices(client, path, given, answer.json())
    return 200


def check_response(given, whole):
    assert whole["usage"]["output_tokens"] <= given.get("max_output_tokens", LENGTH)
    for name in ("temperature", "top_p", "metadata", "instructions", "max_output_tokens"):
        assert name not in given or whole[name] == given[name]


def check_choices(client, path, given, whole):
    is_chat = path == PATHS[1]
    prompts = 1
    if (
        not is_chat
        and isinstance(given["prompt"], list)
        and not isinstance(given["prompt"][0], int)
    ):
        prompts = len(given["prompt"])
    choices = whole["choices"]
    assert len(choices) == prompts * given.get("n", 1)
    # not both
    most = given.get("max_completion_tokens", given.get("max_tokens", LENGTH if is_chat else 16))
    assert whole["usage"]["completion_tokens"] <= most * len(choices)
    stops = given.get("stop", [])
    for choice in choices:
        text = choice["message"]["content"] if is_chat else choice["text"]
        if given.get("echo") and isinstance(given["prompt"], str):
            assert text.startswith(given["prompt"])
            text = text.removeprefix(given["prompt"])
        if not given.get("echo"):
            assert not any(stop in text for stop in ([stops] if isinstance(stops, str) else stops))
        if is_chat:
            assert (choice["logprobs"] is not None) == bool(given.get("logprobs"))
            for token in (choice["logprobs"] or {"content": []})["content"]:
                assert len(token["top_logprobs"]) == given.get("top_logprobs", 0)
        else:
            assert (choice["logprobs"] is not None) == ("logprobs" in given)
    if "seed" in given or given.get("temperature") == 0:
        again = client.post(path, json=given).json()["choices"]
        assert again == choices


@pytest.mark.parametrize("requests", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_no_drawn_request_is_ignored_or_fails(client, requests):
    openapi = client.get("/openapi.json").json()
    statuses = []
    for number in range(requests):
        draw = random.Random(number)
        path = PATHS[number % 3]
        body = Drawn(openapi, path, draw).body(junk=draw.choice([0, 0, 0.15]))
        if draw.random() < 0.9:
            body["model"] = "tiny"
        if draw.random() < 0.9:  # else answers are as long as there is room
            body.setdefault(
                {PATHS[0]: "max_tokens", PATHS[1]: "max_tokens", PATHS[2]: "max_output_tokens"}[
                    path
                ],
                4,
            )
        statuses.append(check(client, path, body))
    assert statuses.count(200) >= requests / 4 and statuses.count(400) >= requests / 10
