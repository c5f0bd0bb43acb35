"""A server that is ending says so to those who wait, before its process is gone."""

import asyncio
import threading

from tape_ds.serving import listening
from tape_ds.serving.app import application
from tests.serving.conftest import Held, new_served
from tests.serving.test_engine import sent, until


def test_answers_that_do_not_end_in_time_are_refused_and_streams_end_as_streams_do(monkeypatch):
    """Their connections were closed without a word."""
    monkeypatch.setattr(listening, "ENDING_SECONDS", 0.2)
    held = Held()
    served = new_served()
    served.model.register_forward_pre_hook(lambda *_: held.wait())
    app = application(served)
    server = listening.Listener(app.state.engine, app=app, port=0)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    connections = [sent(port), sent(port, stream=True), sent(port, stream=True)]
    assert held.entered.wait(30)
    until(lambda: app.state.engine.waiting == 2)
    server.should_exit = True
    thread.join(30)
    held.go.set()
    assert not thread.is_alive()
    said = [b"".join(iter(lambda each=each: each.recv(1 << 16), b"")) for each in connections]
    assert said[0].startswith(b"HTTP/1.1 503 ") and b'"code":"server_ending"' in said[0]
    for stream in said[1:]:
        assert stream.startswith(b"HTTP/1.1 200 ") and b'"code": "server_ending"' in stream
        assert stream.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    for connection in connections:
        connection.close()
