"""Requests to the endpoints: every field of OpenAI's that is done here, and of all others the values that ask nothing.

The types are strict: "5" is no number, true is no 1, and a field that is not listed is refused by its name unless it is
null or empty: clients send all the fields that they know. The types are also what ``/openapi.json`` shows.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

MOST_ANSWERS = 128
"""Of one request: prompts times ``n``; OpenAI's own limit of ``n``."""
MOST_STOPS = 16
# characters
LONGEST_STOP = 256
MOST_MESSAGES = 4096
MOST_ENTRIES = 1024
"""Of an object; OpenAI's own limit of logit_bias."""

Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Ids = Annotated[list[TokenId], Field(fail_fast=True, min_length=1)]
Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Name = Annotated[str, Field(max_length=512)]


def _only_nothing(given: Any) -> Any:
    if given is None or given in ("", [], {}):
        return given
    raise PydanticCustomError("extra_forbidden", "not a field that this server does here")


Nothing = Annotated[
    Any, AfterValidator(_only_nothing), WithJsonSchema({"enum": [None, "", [], {}]})
]
"""Of a field that is not done."""


def _few(given: Any) -> Any:
    """Refuse what has too many entries before each of them is looked at, and each named in the refusal."""
    if isinstance(given, dict) and len(given) > MOST_ENTRIES:
        raise ValueError(f"{len(given):,} entries, and {MOST_ENTRIES:,} at most")
    return given


def _only_ids(biases: dict[str, float]) -> dict[str, float]:
    for key in biases:
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise ValueError(f"{key[:40]!r} is no token id")
    return biases


Biases = Annotated[dict[str, Bias], BeforeValidator(_few), AfterValidator(_only_ids)]


class StrictModel(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, Nothing] = Field(init=False)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, given: Any) -> Any:
        return _few(given)


class StreamOptions(StrictModel):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class TextFormat(StrictModel):
    type: Literal["text"]


class Request(StrictModel):
    """Fields that the three endpoints have in common."""

    model: str
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    # for the books of OpenAI; it asks for nothing
    user: Name | None = None


class Sampled(Request):
    """Fields that the two kinds of completions have in common."""

    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] | None = None
    stop: Stop | Annotated[list[Stop], Field(fail_fast=True, max_length=MOST_STOPS)] | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Biases | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _stream_options_of_streams(self) -> "Sampled":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only with stream = true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        if isinstance(self.stop, str):
            return (self.stop,)
        return tuple(self.stop)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the number of tokens."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def _kind_of_prompt(prompt: Any) -> str:
    if not isinstance(prompt, list):
        return "text"
    first = prompt[0] if prompt else ""
    if isinstance(first, list):
        return "lists of ids"
    if isinstance(first, int):
        return "ids"
    return "texts"


Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[
        list[str], Field(fail_fast=True, min_length=1, max_length=MOST_ANSWERS), Tag("texts")
    ]
    | Annotated[Ids, Tag("ids")]
    | Annotated[
        list[Ids], Field(fail_fast=True, min_length=1, max_length=MOST_ANSWERS), Tag("lists of ids")
    ],
    Discriminator(_kind_of_prompt),
]


class CompletionRequest(Sampled):
    """Of ``/v1/completions``."""

    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] | None = None

    @model_validator(mode="after")
    def _what_fits_together(self) -> "CompletionRequest":
        answers = self.n or 1
        if self.best_of not in (None, answers):
            raise ValueError(
                f"best_of: {self.best_of} is not n = {answers}, and this server gives all answers it writes"
            )
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: ask for 1 token or more, or for echo")
        if len(self.prompts) * answers > MOST_ANSWERS:
            raise ValueError(
                f"n: {answers} for each of {len(self.prompts)} prompts are more than {MOST_ANSWERS} answers"
            )
        return self

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        # one prompt of ids, not one for each id
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt


class TextPart(StrictModel):
    type: Literal["text"]
    text: str


class Message(StrictModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True, min_length=1)]


class ChatRequest(Sampled):
    """Of ``/v1/chat/completions``."""

    messages: Annotated[
        list[Message], Field(fail_fast=True, min_length=1, max_length=MOST_MESSAGES)
    ]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: TextFormat | None = None
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True, max_length=1)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    # of no tools
    parallel_tool_calls: bool | None = None
    function_call: Literal["none", "auto"] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    # as user
    safety_identifier: Name | None = None
    # as user
    prompt_cache_key: Name | None = None

    @model_validator(mode="after")
    def _what_fits_together(self) -> "ChatRequest":
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens: the same as max_completion_tokens, so give one of them")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: only with logprobs = true")
        return self


class ResponseTextPart(StrictModel):
    type: Literal["input_text", "output_text"]
    text: str


class ResponseMessage(StrictModel):
    """A message; earlier answers come as ``/v1/responses`` gave them."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[ResponseTextPart], Field(fail_fast=True, min_length=1)]
    type: Literal["message"] | None = None
    id: Name | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Name], Field(max_length=16), BeforeValidator(_few)
]


class ResponseText(StrictModel):
    format: TextFormat | None = None


class ResponseRequest(Request):
    """Of ``/v1/responses``."""

    input: (
        str
        | Annotated[
            list[ResponseMessage], Field(fail_fast=True, min_length=1, max_length=MOST_MESSAGES)
        ]
    )
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    metadata: Metadata | None = None
    text: ResponseText | None = None
    truncation: Literal["disabled"] | None = None
    store: Literal[False] | None = None
    background: Literal[False] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    # of no tools
    parallel_tool_calls: bool | None = None
    top_logprobs: Literal[0] | None = None
    stream_options: StreamOptions | None = None
    service_tier: Literal["auto", "default"] | None = None
    # as user
    safety_identifier: Name | None = None
    # as user
    prompt_cache_key: Name | None = None
