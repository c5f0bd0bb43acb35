"""What is refused before a body is parsed: foreign hosts, bodies that are too large or no JSON."""

import codecs
import gzip
import http.client
import json

import pytest

from tape_ds.serving.app import application
from tape_ds.serving.guard import is_loopback
from tests.serving.conftest import new_served
from tests.serving.running import listening

ASKED = {"model": "tiny", "prompt": "a", "max_tokens": 1}


@pytest.fixture(scope="module")
def port():
    with listening(application(new_served())) as port:
        yield port


def ask(port, method="POST", path="/v1/completions", body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    named = {"Host": f"127.0.0.1:{port}", "Content-Type": "application/json"}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    sent = json.dumps(ASKED).encode() if body is None else body
    if method == "POST" and "Content-Length" not in named and "Transfer-Encoding" not in named:
        named["Content-Length"] = str(len(sent))
    for name, value in named.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders()
    if method == "POST":
        connection.send(sent)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:99", "[::1]", "[::1]:8000"]
)
def test_this_machine_is_answered(port, host):
    assert ask(port, Host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "elsewhere.example",
        "elsewhere.example:8000",
        "127.0.0.1.example",
        "localhost.example",
        "10.0.0.1",
        "[::2]",
        "",
    ],
)
def test_other_hosts_are_refused(port, host):
    """A page whose name was bound to 127.0.0.1 could read answers."""
    for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/health")):
        status, said = ask(port, method, path, Host=host)
        assert status == 421
        if host:
            assert "this server answers to localhost" in said["error"]["message"]


def test_a_server_of_a_network_is_asked_by_any_name():
    with listening(application(new_served(), loopback_only=False)) as port:
        assert ask(port, Host="elsewhere.example")[0] == 200


def test_which_addresses_are_loopback():
    assert [is_loopback(host) for host in ("127.0.0.1", "127.0.0.5", "::1", "localhost")] == [
        True
    ] * 4
    assert [
        is_loopback(host) for host in ("0.0.0.0", "::", "192.168.0.1", "localhost.example", "")
    ] == [False] * 5


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None, ""])
def test_bodies_of_another_kind_are_refused(port, kind):
    """A page may send these without asking."""
    status, said = ask(port, Content_Type=kind)
    assert status == 415 and "send application/json" in said["error"]["message"]


HALF = {
    "escaped": rb'{"model": "tiny", "prompt": "\ud800"}',
    "in bytes that are no UTF-8": b'{"model": "tiny", "prompt": "\xed\xa0\x80"}',
    "in UTF-16": r'{"model": "tiny", "prompt": "\ud800"}'.encode("utf-16-le"),
}


@pytest.mark.parametrize("body", HALF.values(), ids=HALF)
def test_half_of_a_surrogate_pair_is_refused(port, body):
    """Python's JSON reads all three, no tokenizer takes the text, and the answer was status 500."""
    status, said = ask(port, body=body)
    assert status == 400 and said["error"]["message"].startswith("The body is no JSON in UTF-8: ")


def test_a_mark_of_utf_8_before_a_body_is_taken(port):
    assert (
        ask(port, body=codecs.BOM_UTF8 + json.dumps(ASKED | {"prompt": "\U0001f600"}).encode())[0]
        == 200
    )


def test_a_compressed_body_is_refused_by_its_header(port):
    status, said = ask(
        port, body=gzip.compress(json.dumps(ASKED).encode()), Content_Encoding="gzip"
    )
    assert (
        status == 415
        and said["error"]["message"] == "Content-Encoding = 'gzip': send the body as it is."
    )


def test_a_body_is_refused_by_its_length_before_it_is_read(port):
    status, said = ask(port, body=b"", Content_Length=str(1 << 40))
    assert status == 413 and "larger than" in said["error"]["message"]


def test_a_body_without_a_length_is_counted(port):
    part = b"a" * (1 << 20)
    chunk = b"%x\r\n%s\r\n" % (len(part), part)
    status, said = ask(port, body=chunk * 3 + b"0\r\n\r\n", Transfer_Encoding="chunked")
    assert status == 413 and said["error"]["code"] == "request_too_large"


def test_a_prompt_is_refused_by_its_characters_before_it_is_tokenised(monkeypatch):
    """A prompt of 3 MB that could not fit was tokenised on the event loop: nobody was answered for 26 s."""
    served = new_served()
    app = application(served)
    monkeypatch.setattr(
        type(served.tokenizer), "__call__", lambda *_, **__: pytest.fail("it was tokenised")
    )
    with listening(app) as port:
        status, said = ask(port, body=json.dumps(ASKED | {"prompt": "word " * 20_000}).encode())
        assert status == 400 and "100,000 characters, with no room" in said["error"]["message"]
        many = [{"role": "user", "content": "word " * 1_000} for _ in range(20)]
        status, said = ask(
            port,
            path="/v1/chat/completions",
            body=json.dumps({"model": "tiny", "messages": many}).encode(),
        )
        assert status == 400 and "characters" in said["error"]["message"]
