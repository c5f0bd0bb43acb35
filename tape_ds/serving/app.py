"""The endpoints, as a FastAPI application."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from tape_ds.serving import requests
from tape_ds.serving.answers import gather, write_answers
from tape_ds.serving.chat_form import ChatForm
from tape_ds.serving.completion_form import CompletionForm
from tape_ds.serving.engine import AnswerEngine, AnswerJob
from tape_ds.serving.forms import Form, written
from tape_ds.serving.guard import Guard
from tape_ds.serving.prompts import Prompts, PromptTokens
from tape_ds.serving.refusal import RefusalError, of_validation
from tape_ds.serving.response_form import ResponseForm
from tape_ds.serving.served import Served
from tape_ds.serving.settings import AnswerSettings

COMPLETION_TOKENS = 16
"""Of an answer of /v1/completions whose request names no max_tokens; OpenAI's."""
CLOSING_SECONDS = 2.0
MANY_TOKENS = 64
"""Of a piece whose probabilities are written in a thread."""
T = TypeVar("T")


class Error(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: Error


class Server:
    """Answers requests about one model."""

    def __init__(self, served: Served):
        self.served = served
        self.engine = AnswerEngine()
        self.prompts = Prompts(served)
        # one thread each: tokenizers are not made for two, and answers are written in turn
        self._reading = ThreadPoolExecutor(1, "tape-ds prompts")
        self._writing = ThreadPoolExecutor(1, "tape-ds answers")

    async def write(self, work: Callable[..., T], *arguments: Any) -> T:
        """Write much of an answer in a thread: one, since threads take turns, and the event loop's comes after all."""
        return await asyncio.get_running_loop().run_in_executor(self._writing, work, *arguments)

    async def read(self, work: Callable[..., T], *arguments: Any) -> T:
        """Tokenise in a thread, so that the event loop keeps answering."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, work, *arguments)

    def close(self) -> None:
        self._reading.shutdown(wait=False, cancel_futures=True)
        self._writing.shutdown(wait=False, cancel_futures=True)
        self.engine.close(CLOSING_SECONDS)

    def check_model(self, name: str) -> None:
        if name != self.served.name:
            wrong = f"model = {name[:200]!r}: this server has {self.served.name!r}."
            raise RefusalError(wrong, "model", status=404, code="model_not_found")

    async def complete(self, asked: requests.CompletionRequest, request: Request) -> Any:
        self.check_model(asked.model)
        echo = bool(asked.echo)
        most = COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens
        # offsets are of the echoed text
        read = await self.read(self.prompts.of_completion, asked.prompts, min(most, 1), echo)
        answers = asked.n or 1
        settings = self.settings(asked, most, asked.logprobs)

        def work(job: AnswerJob) -> None:
            for number, prompt in enumerate(read):
                choices = self.choices(settings, prompt, answers, number * answers)
                write_answers(self.served, job, prompt, choices, echo=echo)

        tokens = sum(len(prompt.ids) for prompt in read)
        with_logprobs = asked.logprobs is not None
        form = CompletionForm(
            self.served, tokens, with_logprobs=with_logprobs, wants_usage=asked.wants_usage
        )
        return await self.answer(work, form, request, len(read) * answers, asked.stream)

    async def chat(self, asked: requests.ChatRequest, request: Request) -> Any:
        self.check_model(asked.model)
        prompt = await self.read(self.prompts.of_chat, asked)
        answers = asked.n or 1
        # 0: the probability of the answer's own tokens, and of no others
        likeliest = None
        if asked.logprobs:
            likeliest = asked.top_logprobs or 0
        settings = self.settings(asked, asked.max_completion_tokens or asked.max_tokens, likeliest)
        form = ChatForm(
            self.served,
            len(prompt.ids),
            answers,
            with_logprobs=bool(asked.logprobs),
            wants_usage=asked.wants_usage,
        )

        def work(job: AnswerJob) -> None:
            write_answers(self.served, job, prompt, self.choices(settings, prompt, answers))

        return await self.answer(work, form, request, answers, asked.stream)

    async def respond(self, asked: requests.ResponseRequest, request: Request) -> Any:
        self.check_model(asked.model)
        prompt = await self.read(self.prompts.of_response, asked)
        settings = self.settings(asked, asked.max_output_tokens, None)
        form = ResponseForm(self.served, len(prompt.ids), asked, settings)

        def work(job: AnswerJob) -> None:
            write_answers(self.served, job, prompt, self.choices(settings, prompt, 1))

        return await self.answer(work, form, request, 1, asked.stream)

    def settings(
        self, asked: requests.Request, most: int | None, likeliest: int | None
    ) -> AnswerSettings:
        """Return what a request says about its answers, else the defaults; ``most`` tokens, None: as there is room."""
        usual = self.served.defaults
        sampled: dict[str, Any] = {}
        if isinstance(asked, requests.Sampled):
            # JSON has numbers as names in quotes
            biases = {int(token): bias for token, bias in (asked.logit_bias or {}).items()}
            outside = [token for token in biases if token >= self.served.rows]
            if outside:
                wrong = f"logit_bias: token {outside[0]} is outside of the model's vocabulary of {self.served.rows:,}."
                raise RefusalError(wrong, "logit_bias")
            sampled = {
                "presence_penalty": asked.presence_penalty or 0.0,
                "frequency_penalty": asked.frequency_penalty or 0.0,
                "logit_bias": biases,
                "seed": asked.seed,
                "stops": asked.stops,
            }
        if most is None:
            most = usual.max_new_tokens or self.served.length
        return AnswerSettings(
            temperature=usual.temperature if asked.temperature is None else asked.temperature,
            top_p=usual.top_p if asked.top_p is None else asked.top_p,
            max_tokens=most,
            top_k=usual.top_k,
            min_p=usual.min_p,
            repetition_penalty=usual.repetition_penalty,
            likeliest=likeliest,
            **sampled,
        )

    def choices(
        self, settings: AnswerSettings, prompt: PromptTokens, answers: int, first: int = 0
    ) -> dict[int, AnswerSettings]:
        """Return the settings of a prompt's choices by their numbers, from ``first`` on: within the model's length, and
        each with a seed of its own."""
        room = self.served.length - len(prompt.ids)
        fitted = replace(settings, max_tokens=min(settings.max_tokens, room))
        if settings.seed is None:
            return dict.fromkeys(range(first, first + answers), fitted)
        numbered = {}
        for choice in range(first, first + answers):
            # as torch takes them
            numbered[choice] = replace(fitted, seed=(settings.seed + choice) % 2**63)
        return numbered

    async def answer(
        self,
        work: Callable[[AnswerJob], None],
        form: Form,
        request: Request,
        choices: int,
        stream: bool | None,
    ) -> Any:
        job = self.engine.submit(work)
        if stream:
            return StreamingResponse(self.events(job, form), media_type="text/event-stream")
        # a client that leaves frees the model for the next one, although nothing is sent until the end
        gathering = asyncio.create_task(gather(job, choices))
        leaving = asyncio.create_task(left(request))
        try:
            await asyncio.wait({gathering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not gathering.done():
                # the client has left
                return JSONResponse({}, 499)
            whole = gathering.result()
            content = await self.write(lambda: written(form.whole(whole)).encode())
            return Response(content, media_type="application/json")
        finally:
            job.leave()
            # waited for: a task that is dropped with an error is logged as a traceback
            for task in (gathering, leaving):
                task.cancel()
                with suppress(asyncio.CancelledError, RefusalError):
                    await task

    async def events(self, job: AnswerJob, form: Form) -> AsyncIterator[str]:
        """Stream a job's pieces; it is dropped if the client leaves."""
        try:
            for each in form.begin():
                yield each
            while True:
                piece = await job.next()
                if piece is None:
                    break
                if len(piece.tokens) > MANY_TOKENS:
                    written = await self.write(form.piece, piece)
                else:
                    written = form.piece(piece)
                for each in written:
                    yield each
            for each in form.end():
                yield each
        except RefusalError as refusal:
            # the status was sent with the first piece: what is wrong is an event
            for each in form.failed(refusal):
                yield each
        finally:
            job.leave()


async def left(request: Request) -> None:
    """Return when a request's client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def application(served: Served, *, loopback_only: bool = True) -> FastAPI:
    """Return the application.

    Args:
        served: the model.
        loopback_only: see :class:`tape_ds.serving.guard.Guard`.
    """
    server = Server(served)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # a full collection of what the model and its libraries hold would stop every thread for a second
        gc.collect()
        gc.freeze()
        server.engine.start()
        yield
        server.close()

    kinds: dict[int | str, dict[str, Any]] = {
        "4XX": {"model": ErrorBody},
        "5XX": {"model": ErrorBody},
    }
    app = FastAPI(
        title="tape-ds serve", lifespan=lifespan, docs_url=None, redoc_url=None, responses=kinds
    )
    app.state.engine = server.engine
    app.add_middleware(Guard, most_bytes=served.most_bytes, loopback_only=loopback_only)

    def refused(refusal: RefusalError) -> JSONResponse:
        return JSONResponse({"error": refusal.error}, refusal.status)

    @app.exception_handler(RefusalError)
    async def of_refusal(_: Request, error: Any) -> JSONResponse:
        return refused(error)

    @app.exception_handler(RequestValidationError)
    async def of_body(_: Request, error: Any) -> JSONResponse:
        return refused(of_validation(error.errors(), error.body))

    @app.exception_handler(HTTPException)
    async def of_path(request: Request, error: Any) -> JSONResponse:
        wrong = f"{request.method} {request.url.path[:200]}: {error.detail}."
        response = refused(RefusalError(wrong, status=error.status_code))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def of_fault(_: Request, error: Any) -> JSONResponse:
        return refused(
            RefusalError(
                f"The server failed: {type(error).__name__}.", status=500, code="server_failed"
            )
        )

    @app.post("/v1/completions")
    async def completions(asked: requests.CompletionRequest, request: Request) -> Any:
        return await server.complete(asked, request)

    @app.post("/v1/chat/completions")
    async def chat_completions(asked: requests.ChatRequest, request: Request) -> Any:
        return await server.chat(asked, request)

    @app.post("/v1/responses")
    async def responses(asked: requests.ResponseRequest, request: Request) -> Any:
        return await server.respond(asked, request)

    model = {"id": served.name, "object": "model", "created": 0, "owned_by": "tape_ds"}

    @app.get("/v1/models")
    @app.get("/v1/models/", include_in_schema=False)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        server.check_model(name)
        return model

    @app.get("/health")
    async def health() -> JSONResponse:
        if not server.engine.is_alive:
            return refused(RefusalError("The thread that answers has ended.", status=503))
        return JSONResponse({"status": "ok", "waiting": server.engine.waiting})

    return app
