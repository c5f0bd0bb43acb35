"""Serve one model by transformers' server, which has OpenAI's protocol.

    tape-ds serve MODEL [--host 127.0.0.1] [--port 8000] [--name NAME] [--max_length 32k]

MODEL is what ``tape-ds evaluate`` takes: a run, an adapter, an exported folder, any model that transformers loads.
It answers /v1/completions, /v1/chat/completions and /v1/responses, streaming or not, one request after another. A
prompt that leaves no room for an answer is refused with status 400; an answer ends where the model's length does.
"""

import importlib
import inspect
import socket
from typing import TYPE_CHECKING, Any

from tape_ds.arguments import Parser, add_model, length
from tape_ds.errors import Problem, collecting, command, raise_if_any

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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
    group.add_argument("--port", type=int, default=8000)
    group.add_argument("--name", help="name of the model for clients; default: MODEL as it was typed")
    group.add_argument("--max_length", type=length, help="tokens of prompt and answer; default: the model's length")
    options = parser.parse_args(argv)

    from transformers.utils.import_utils import is_serve_available

    from tape_ds.scoring import models

    problems = []
    if not is_serve_available():
        wrong = "fastapi, uvicorn and openai are needed, and not all are installed"
        problems.append(Problem("tape-ds serve", None, wrong, "pip install 'tape_ds[serve]'"))
    is_ipv6 = ":" in options.host
    place = f"[{options.host}]:{options.port}" if is_ipv6 else f"{options.host}:{options.port}"
    try:
        family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
        with socket.create_server((options.host, options.port), family=family):
            pass
    except (OSError, OverflowError) as error:
        problems.append(Problem("--port", place, f"cannot be listened at ({error})", "choose another --port or --host"))
    with collecting(problems):
        found = models.find(options)
        longest = options.max_length or found.native_length
        if found.position_limit is not None and longest > found.position_limit:
            wrong = f"the model has {found.position_limit:,} positions"
            problems.append(Problem("--max_length", longest, wrong, "give at most that many"))
        if not found.tokenizer().is_fast:
            wrong = "the server streams by tokenizers that have a tokenizer.json, and this one has none"
            problems.append(Problem("--tokenizer", found.tokenizer_name_or_path, wrong, "give the name or path of one"))
    raise_if_any(problems)

    import uvicorn

    name = options.name or found.name_or_path
    model = found.load()
    with models.used_at(model, longest):
        app = application(model, found.tokenizer(), name, longest)
        print(f"{name}, up to {longest:,} tokens: http://{place}/v1", flush=True)
        uvicorn.run(app, host=options.host, port=options.port, log_level="warning")
    return 0


def application(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", name: str, length: int) -> Any:
    """transformers' FastAPI application, with one model in it.

    Args:
        model: in evaluation mode, on its device.
        tokenizer: the model's; a fast one.
        name: what clients call the model; requests for another are refused with status 400.
        length: tokens of a prompt and its answer.
    """
    from fastapi import HTTPException
    from fastapi.responses import JSONResponse
    from transformers.cli.serving import chat_completion, completion, server
    from transformers.cli.serving.model_manager import ModelManager
    from transformers.cli.serving.utils import GenerateManager, GenerationState

    from tape_ds.data.prompting import prompt_part

    class OneModel(ModelManager):
        """Returns the model that is loaded already, for every request."""

        def load_model_and_processor(self, *_: Any, **__: Any) -> Any:
            return model, tokenizer

        def get_gen_models(self) -> list[dict[str, Any]]:
            return [{"id": name, "object": "model", "created": 0, "owned_by": "tape_ds"}]

    class WithinLength(GenerateManager):
        """Refuses prompts that leave no room, and ends answers where the room does."""

        def generate_streaming(self, model: Any, processor: Any, inputs: Any, gen_config: Any, **kw: Any) -> Any:
            fit(inputs["input_ids"].shape[-1], gen_config)
            return super().generate_streaming(model, processor, inputs, gen_config, **kw)

        async def generate_non_streaming(
            self, model: Any, processor: Any, inputs: Any, gen_config: Any, **kw: Any
        ) -> Any:
            fit(inputs["input_ids"].shape[-1], gen_config)
            return await super().generate_non_streaming(model, processor, inputs, gen_config, **kw)

    def fit(tokens: int, gen_config: Any) -> None:
        if not 0 < tokens < length:
            wrong = "no tokens" if tokens == 0 else f"{tokens:,} tokens, with no room for an answer"
            raise HTTPException(400, f"The prompt has {wrong}: this model reads and writes up to {length:,}.")
        asked = length if gen_config.max_new_tokens is None else gen_config.max_new_tokens
        if asked < 1:
            raise HTTPException(400, f"max_tokens = {asked}: ask for 1 token or more.")
        gen_config.max_new_tokens = min(asked, length - tokens)

    def prompt(inputs: Any) -> dict[str, Any]:
        """Return the part of a tokenized text that is a prompt."""
        part = prompt_part(inputs["input_ids"][0].tolist(), tokenizer)
        return {name: ids_1T[:, part] for name, ids_1T in inputs.items()}

    class Completions(completion.CompletionHandler):
        """Reads prompts as the rest of this project does; a chat template begins and ends its own."""

        def _streaming(self, request_id: Any, model: Any, processor: Any, name: Any, inputs: Any, *rest: Any) -> Any:
            return super()._streaming(request_id, model, processor, name, prompt(inputs), *rest)

        async def _non_streaming(
            self, request_id: Any, model: Any, processor: Any, name: Any, inputs: Any, *rest: Any
        ) -> Any:
            return await super()._non_streaming(request_id, model, processor, name, prompt(inputs), *rest)

    async def refuse(_: Any, error: Any) -> Any:
        """In the words that OpenAI's clients show. A ValueError is transformers' or the model's, of what was asked."""
        body = {"message": str(getattr(error, "detail", error)), "type": "invalid_request_error"}
        return JSONResponse({"error": body}, getattr(error, "status_code", 400))

    manager, state = OneModel(), GenerationState()
    manager.force_model = name
    state._generate_managers[manager.process_model_name(name)] = WithinLength()
    handlers = {
        "chat_handler": chat_completion.ChatCompletionHandler(manager, state),
        "completion_handler": Completions(manager, state),
    }
    # transformers' own for its other endpoints; which there are depends on its version
    for parameter in inspect.signature(server.build_server).parameters:
        if parameter.endswith("_handler") and parameter not in handlers:
            kind = parameter.removesuffix("_handler")
            names = vars(importlib.import_module(f"transformers.cli.serving.{kind}"))
            handler = next(value for name, value in names.items() if name.lower() == f"{kind}handler")
            handlers[parameter] = handler(manager, state)
    app = server.build_server(manager, generation_state=state, **handlers)
    app.add_exception_handler(HTTPException, refuse)
    app.add_exception_handler(ValueError, refuse)
    return app
