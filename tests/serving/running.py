"""A server in a thread of the test's own process, at a port of loopback."""

import threading
import time
from contextlib import contextmanager

import uvicorn


@contextmanager
def listening(app, **settings):
    """The port of an application; afterwards it must end."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", **settings))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        assert not thread.is_alive()
