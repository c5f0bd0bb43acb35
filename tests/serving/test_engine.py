"""One thread answers: clients that left cost nothing, others are answered meanwhile, and an end is an end."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from tape_ds.serving import engine
from tape_ds.serving.app import application
from tests.serving.conftest import Held, asking, holding, new_served
from tests.serving.running import listening
from tests.serving.test_app import ASKED, post


def sent(port, **changes):
    """A connection on which a request was sent."""
    body = json.dumps(ASKED | changes).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def ask(port, **changes):
    headers = {"Content-Type": "application/json"}
    address = f"http://127.0.0.1:{port}/v1/completions"
    request = urllib.request.Request(address, json.dumps(ASKED | changes).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return json.load(answer)


def until(condition):
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_whose_client_left_ends(held, stream):
    """It was computed to its end, so that a short request after six such waited for all of them."""
    first = sent(held.port, max_tokens=100, stream=stream)
    assert held.entered.wait(30)
    others = [sent(held.port, max_tokens=100, stream=stream) for _ in range(3)]
    until(lambda: get(held.port, "/health")["waiting"] == 3)
    for connection in [first, *others]:
        connection.close()
    time.sleep(0.3)  # the server notices while the first forward pass runs
    held.go.set()
    with sent(held.port, max_tokens=2) as last:
        assert b"200 OK" in last.recv(1 << 16)
    assert held.passes <= 4, "one of the first answer, two of the last"


def test_others_are_answered_while_the_model_runs(held):
    with sent(held.port):
        assert held.entered.wait(30)
        assert get(held.port, "/health") == {"status": "ok", "waiting": 0}
        assert get(held.port, "/v1/models")["data"][0]["id"] == "tiny"
        with sent(held.port, temperature=5) as refused:
            assert b"400 Bad Request" in refused.recv(1 << 16)


def test_others_are_answered_while_a_prompt_is_tokenised(monkeypatch):
    served = new_served()
    app = application(served)
    go, entered = threading.Event(), threading.Event()
    real = type(served.tokenizer).__call__

    def slow(self, *given, **named):
        entered.set()
        assert go.wait(60)
        return real(self, *given, **named)

    monkeypatch.setattr(type(served.tokenizer), "__call__", slow)
    with listening(app) as port, sent(port) as connection:
        assert entered.wait(30)
        assert get(port, "/health")["status"] == "ok"
        go.set()
        assert b"200 OK" in connection.recv(1 << 16)


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_ends_although_a_forward_pass_does_not(stream):
    """SIGTERM waited for running answers without limit."""
    held = Held()
    served = new_served()
    served.model.register_forward_pre_hook(lambda *_: held.wait())
    with listening(application(served), timeout_graceful_shutdown=1) as port:
        connection = sent(port, max_tokens=100, stream=stream)
        assert held.entered.wait(30)
    assert not held.go.is_set()
    held.go.set()
    connection.close()


def test_too_many_waiting_requests_are_refused(monkeypatch):
    monkeypatch.setattr(engine, "MOST_WAITING", 2)
    with holding() as held:
        connections = [sent(held.port, max_tokens=1)]
        assert held.entered.wait(30)
        connections += [sent(held.port, max_tokens=1) for _ in range(2)]
        until(lambda: get(held.port, "/health")["waiting"] == 2)
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(held.port)
        assert refused.value.code == 503 and b"server_overloaded" in refused.value.read()
        held.go.set()
        for connection in connections:
            assert b"200 OK" in connection.recv(1 << 16)
            connection.close()


def test_requests_whose_clients_left_do_not_fill_the_queue(monkeypatch):
    """A client that gave up behind a long answer and asked again, often enough, shut everybody out."""
    monkeypatch.setattr(engine, "MOST_WAITING", 2)
    with holding() as held:
        connections = [sent(held.port, max_tokens=1)]
        assert held.entered.wait(30)
        for _ in range(3):
            left = [sent(held.port, max_tokens=1) for _ in range(2)]
            until(lambda: get(held.port, "/health")["waiting"] == 2)
            for connection in left:
                connection.close()
            until(lambda: get(held.port, "/health")["waiting"] == 0)
        connections += [sent(held.port, max_tokens=1)]
        until(lambda: get(held.port, "/health")["waiting"] == 1)
        held.go.set()
        for connection in connections:
            assert b"200 OK" in connection.recv(1 << 16)
            connection.close()


def test_a_request_that_fails_does_not_end_the_thread(monkeypatch):
    served = new_served()
    with asking(served) as client:
        monkeypatch.setattr(served.model, "generate", lambda *_, **__: 1 / 0)
        assert (
            post(client, status=500)["error"]["message"]
            == "The model failed: ZeroDivisionError: division by zero"
        )
        monkeypatch.undo()
        assert post(client)["usage"]["completion_tokens"] == 8


def test_a_panic_of_a_library_in_rust_does_not_end_the_thread(monkeypatch):
    """It is no ``Exception``: the thread ended, and no request was ever answered again."""
    served = new_served()

    class Panic(BaseException):
        pass

    def panic(*_, **__):
        raise Panic("index out of bounds")

    with asking(served) as client:
        monkeypatch.setattr(served.model, "generate", panic)
        assert (
            post(client, status=500)["error"]["message"]
            == "The model failed: Panic: index out of bounds"
        )
        monkeypatch.undo()
        assert post(client)["usage"]["completion_tokens"] == 8


@pytest.mark.slow
def test_memory_stays_flat():
    import psutil

    own = psutil.Process()
    with asking(new_served()) as client:
        sizes = []
        for _ in range(4):
            for seed in range(100):
                post(client, seed=seed, logprobs=5, echo=True, n=2, stop=[f"stop {seed}"])
            sizes.append(own.memory_info().rss / 2**20)
    assert sizes[-1] - sizes[0] < 16, f"MiB after each 100 requests: {sizes}"
