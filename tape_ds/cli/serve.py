"""Serve one model with OpenAI's protocol.

    tape-ds serve MODEL [--host 127.0.0.1] [--port 8000] [--name NAME] [--max_length 32k] [--defaults openai]

MODEL is what ``tape-ds evaluate`` takes: a run, an adapter, an exported folder, any model that transformers loads.
It answers /v1/completions, /v1/chat/completions and /v1/responses, streaming or not, one request after another. What a
request asks is done, or refused by its field's name. SIGTERM lets running answers end for 4 seconds.
"""

import importlib.util
import os
import socket
import sys
from contextlib import suppress

from tape_ds.arguments import Parser, add_model, length
from tape_ds.errors import Problem, collecting, command, raise_if_any

NEEDED = ("fastapi", "uvicorn")


@command
def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="tape-ds serve", description=__doc__)
    add_model(parser)
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen at, IPv4 or 6; 0.0.0.0 or :: is every network (no password!)",
    )
    group.add_argument(
        "--port", type=int, default=8000, help="0: one that is free (default: %(default)s)"
    )
    group.add_argument(
        "--name", help="name of the model for clients; default: MODEL as it was typed"
    )
    group.add_argument(
        "--max_length", type=length, help="tokens of prompt and answer; default: the model's length"
    )
    group.add_argument(
        "--defaults",
        choices=("model", "openai"),
        default="model",
        help="what a request that does not say is answered with: the model's generation_config.json, or OpenAI's "
        "temperature 1 and nothing else (default: %(default)s)",
    )
    options = parser.parse_args(argv)

    from transformers import GenerationConfig
    from transformers.utils import GENERATION_CONFIG_NAME

    from tape_ds.scoring import models
    from tape_ds.serving import settings

    # of the package's extra: everything else works without them
    problems = []
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        wrong = f"{' and '.join(missing)} is not installed"
        problems.append(Problem("tape-ds serve", None, wrong, "pip install 'tape_ds[serve]'"))
    is_ipv6 = ":" in options.host
    host = f"[{options.host}]" if is_ipv6 else options.host
    port = options.port
    # taken and given back, so that a port in use is known before minutes of loading
    try:
        family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
        with socket.create_server((options.host, port), family=family) as free:
            # of --port 0
            port = free.getsockname()[1]
    except (OSError, OverflowError) as error:
        place = f"{host}:{port}"
        problems.append(
            Problem(
                "--port",
                place,
                f"cannot be listened at ({error})",
                "choose another --port or --host",
            )
        )
    with collecting(problems):
        found_model = models.find(options)
        longest = options.max_length or found_model.native_length
        if found_model.position_limit is not None and longest > found_model.position_limit:
            wrong = f"the model has {found_model.position_limit:,} positions"
            problems.append(Problem("--max_length", longest, wrong, "give at most that many"))
        if options.defaults == "model" and (found_model.folder / GENERATION_CONFIG_NAME).is_file():
            _, unknown = settings.of_model(GenerationConfig.from_pretrained(found_model.folder))
            problems += unknown
    raise_if_any(problems)

    from tape_ds.serving.app import application
    from tape_ds.serving.guard import is_loopback
    from tape_ds.serving.listening import Listener
    from tape_ds.serving.served import Served

    name = options.name or found_model.name_or_path
    model = found_model.load()
    defaults = settings.Defaults()
    if options.defaults == "model":
        # its base's, if the folder has none
        defaults, unknown = settings.of_model(model.generation_config)
        raise_if_any(unknown)
    with models.used_at(model, longest):
        served = Served(model, found_model.tokenizer(), name, longest, defaults)
        app = application(served, loopback_only=is_loopback(options.host))
        print(f"{name}, up to {longest:,} tokens: http://{host}:{port}/v1", flush=True)
        if defaults.changed:
            named = ", ".join(f"{name} {value}" for name, value in defaults.changed.items())
            print(f"From generation_config.json, where a request does not say: {named}", flush=True)
        # uvicorn raises it after it has ended
        with suppress(KeyboardInterrupt):
            Listener(app.state.engine, app=app, host=options.host, port=port).run()
    if app.state.engine.has_started:
        # Ctrl-C (SIGTERM has ended the process by now). A forward pass may still run: nothing can interrupt it, and
        # Python's own end would take its modules away under it. That end also takes seconds, and nothing is unwritten
        sys.stdout.flush()
        os._exit(0)
    return 0
