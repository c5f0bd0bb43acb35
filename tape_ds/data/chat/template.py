"""A conversation as a model's chat template renders it, token by token, and which tokens are the assistant's.

A rendering depends on the conversation, its tools, the template, the tokenizer and one fixed date (with today's date a
resumed run would train on other tokens); a template that draws at random is refused.

What is trained and what is asked for must begin alike: before an answer, the rendering of the whole conversation has to
be what the template asks for it with, which is the conversation up to there and the template's beginning of an answer
(``add_generation_prompt``). Otherwise, or where the answers of the data do not begin as it asks (``<think>``, say), the
conversation is refused.

``{% generation %}`` marks in a template delimit the assistant's text. Without them, prefixes are rendered: ``before``
is the conversation up to an answer as it is asked for, ``after`` the conversation with the answer, and the assistant's
tokens are what ``after`` adds, its end of turn included. This is exact if rendering more turns does not change earlier
ones, which is checked for every answer; a template that does (by dropping the reasoning of former answers, as Qwen3's)
is refused.
"""

import re
from collections.abc import Callable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import meta, nodes
from transformers.utils.chat_template_utils import (
    _compile_jinja_template,
    _render_with_assistant_indices,
)

from tape_ds import paths
from tape_ds.data.chat.conversations import ASSISTANT, Conversation, without_template
from tape_ds.data.offsets import LocatedTokens
from tape_ds.errors import Problem, UserError
from tape_ds.models.files.library_errors import as_message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# (start, end) in characters of each of the assistant's turns
Spans = list[tuple[int, int]]
Renderer = Callable[..., tuple[str, Spans]]

SHOWN = 24
"""Characters of a rendering in a message, before and behind the place where two differ."""

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
# of Unicode's private use: in no text of a conversation
_PROBE = "\ue000"
# a function and a filter of jinja
_RANDOM = {"lipsum", "random"}


class UnfitTemplateError(ValueError):
    """A template that does not render all of a conversation, or whose answers cannot be located."""

    def __init__(self, wrong: str, remedy: str | None = None):
        super().__init__(wrong)
        self.remedy = (
            remedy or "correct the template, give another (--chat_template FILE), or other data"
        )


def give(tokenizer: "PreTrainedTokenizerBase", file: str | None, model: str) -> list[Problem]:
    """Set the tokenizer's template to that of ``file``, if given; return the problems of the template and of a slow
    tokenizer, which cannot locate an answer's tokens."""
    if file is not None:
        tokenizer.chat_template = paths.of(file).read_text(encoding="utf-8")
    try:
        tokenizer.get_chat_template()
    except ValueError:
        return [without_template(model)]
    if not tokenizer.is_fast:
        reason = "its tokenizer does not locate its tokens in a text"
        return [Problem("model", model, reason, "give one with tokenizer.json")]
    try:
        drawn = _RANDOM & names(tokenizer)[1]
    except Exception as error:
        # jinja's own, of many kinds
        return [
            Problem("chat_template", file, f"it is not a jinja template ({error})", "correct it")
        ]
    if drawn:
        reason = (
            f"it draws at random ({', '.join(sorted(drawn))}), so that no two runs read the same"
        )
        return [
            Problem("chat_template", file, reason, "give one that does not: --chat_template FILE")
        ]
    return []


def prompt_ids(prompt: str, tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """Return the token ids that ask for an answer to one message of a user. Raises UserError: no template, or one that
    does not render it."""
    field = "--chat"
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(Problem(field, True, "the tokenizer has no chat template", "leave it out"))
    turns = [{"role": "user", "content": prompt}]
    wrong = "the tokenizer's chat template does not render it"
    # a template may raise anything
    with as_message(wrong, field, True, "correct the template, or leave --chat out"):
        made: Any = tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=True, return_dict=True
        )
    return list(made["input_ids"])


def is_dated(tokenizer: "PreTrainedTokenizerBase") -> bool:
    return "strftime_now" in names(tokenizer)[1]


def names(tokenizer: "PreTrainedTokenizerBase") -> tuple[set[str], set[str]]:
    """Return the variables that a tokenizer's templates read from outside, and all names and filters in them."""
    templates = tokenizer.chat_template
    variables = set()
    used = set()
    # one for tools, perhaps
    for text in templates.values() if isinstance(templates, dict) else [templates]:
        tree = _compile_jinja_template(text).environment.parse(text)
        variables |= meta.find_undeclared_variables(tree)
        used |= {node.name for node in tree.find_all((nodes.Name, nodes.Filter))}
    return variables, used


def encoded(
    conversation: Conversation,
    tokenizer: "PreTrainedTokenizerBase",
    tools: Sequence[dict[str, Any]] | None = None,
    day: date | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the token ids of a conversation, int32 [n], and whether each is the assistant's, bool [n].

    ``day`` is the date for a template that writes one.

    Raises:
        UnfitTemplateError: the template refuses the conversation, ignores a part of it, or changes earlier turns.
    """
    variables: dict[str, Any] = dict(tokenizer.special_tokens_map)
    if day is not None:
        variables["strftime_now"] = day.strftime

    def render(
        turns: Conversation, answer_next: bool = False, *, with_tools: bool = True
    ) -> tuple[str, Spans]:
        # not apply_chat_template: its mask ends with the first token of a last character
        given = tools if with_tools else None
        compiled = _compile_jinja_template(tokenizer.get_chat_template(tools=given))
        return _render_with_assistant_indices(
            compiled, turns, given, None, answer_next, **variables
        )

    try:
        is_marked = _MARKS.search(tokenizer.get_chat_template(tools=tools))
        text, spans = (_by_marks if is_marked else _by_prefixes)(conversation, render)
        without = render(conversation, with_tools=False)[0] if tools else None
    except UnfitTemplateError:
        raise
    except Exception as error:
        # a template may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnfitTemplateError(f"the chat template does not render it ({reason})") from error
    if text == without:
        remedy = "give a template that renders tools (--chat_template FILE), or remove the column"
        raise UnfitTemplateError("it has tools, and the chat template renders none", remedy)
    for turn, message in enumerate(conversation):
        role = message["role"]
        # every template renders these
        if role in ("user", ASSISTANT):
            continue
        other = [*conversation]
        other[turn] = message | {"content": message["content"] + " and more"}
        try:
            is_read = render(other)[0] != text
        except Exception:
            # a template that refuses the content has read it
            is_read = True
        if not is_read:
            remedy = f"give a template that renders the role {role} (--chat_template FILE), or take those turns out"
            raise UnfitTemplateError(
                f"turn {turn + 1}: the chat template leaves the role {role} out", remedy
            )

    tokens = LocatedTokens(text, tokenizer)
    targets = np.zeros(len(tokens.ids), bool)
    for start, end in spans:
        targets[tokens.of(start, end)] = True
    return tokens.ids.astype(np.int32), targets


def _by_marks(conversation: Conversation, render: Renderer) -> tuple[str, Spans]:
    whole, spans = render(conversation)
    for turn, message in enumerate(conversation):
        # no request ends before a first turn
        if message["role"] != ASSISTANT or turn == 0:
            continue
        asked, _ = render(conversation[:turn], answer_next=True)
        is_alike = whole.startswith(asked) and any(
            start <= len(asked) < max(end, start + 1) for start, end in spans
        )
        if is_alike or not _is_learnt(conversation, turn, render):
            continue
        begins = next((start for start, _ in spans if start > len(asked)), len(whole))
        raise _begun_otherwise(conversation, turn, asked, whole[:begins], render)
    return whole, spans


def _is_learnt(conversation: Conversation, turn: int, render: Renderer) -> bool:
    """Return whether a template marks the end of a turn's content, where it renders that."""
    other = [*conversation]
    other[turn] = conversation[turn] | {"content": conversation[turn]["content"] + _PROBE}
    text, spans = render(other)
    place = text.find(_PROBE)
    return place < 0 or any(start <= place < end for start, end in spans)


def _by_prefixes(conversation: Conversation, render: Renderer) -> tuple[str, Spans]:
    (whole, _), spans = render(conversation), []
    for turn, message in enumerate(conversation):
        if message["role"] != ASSISTANT:
            continue
        if turn == 0:
            remedy = "take that turn out, or put a user's before it"
            raise UnfitTemplateError(
                "it begins with an answer, before which nothing can be rendered", remedy
            )
        before, _ = render(conversation[:turn], answer_next=True)
        after, _ = render(conversation[: turn + 1])
        if not after.startswith(before):
            raise _begun_otherwise(conversation, turn, before, after, render)
        if not whole.startswith(after):
            wrong = "the chat template renders it otherwise once more turns follow"
            remedy = (
                "give a template that renders a turn alike whatever follows, or one with {% generation %} marks around "
                "what the assistant writes (--chat_template FILE)"
            )
            raise UnfitTemplateError(f"turn {turn + 1}: {wrong}", remedy)
        spans.append((len(before), len(after)))
    return whole, spans


def _begun_otherwise(
    conversation: Conversation, turn: int, asked: str, trained: str, render: Renderer
) -> UnfitTemplateError:
    """Return the error for an answer that is asked for by ``asked`` and trained behind (the beginning of) ``trained``,
    which differ."""
    alike = _length_alike(asked, trained)
    first = max(0, alike - SHOWN)
    shown = {
        name: text[first : alike + SHOWN] for name, text in (("data", trained), ("asked", asked))
    }
    reason = (
        f"turn {turn + 1}: the chat template begins an answer that is there otherwise than one that is asked for "
        f"(add_generation_prompt): {shown['data']!r} in the data, asked for by {shown['asked']!r}"
    )
    earlier, _ = render(conversation[:turn])
    missing = trained[alike:]
    extra = asked[alike:]
    if alike < _length_alike(asked, earlier):
        remedy = "give a template that renders earlier turns alike whatever follows "
        remedy += "(--chat_template FILE), or other data"
    elif not extra:
        remedy = (
            f"give a template (--chat_template FILE) that also writes {missing!r} where add_generation_prompt is set, "
            "or whose marks begin before it"
        )
    else:
        remedy = (
            f"give answers that begin with {extra!r}, or a template (--chat_template FILE) that writes that before an "
            "answer too, or leaves it out where add_generation_prompt is set"
        )
    return UnfitTemplateError(reason, remedy)


def _length_alike(first: str, second: str) -> int:
    """Return how many characters two texts begin with in common."""
    pairs = enumerate(zip(first, second, strict=False))
    return next(
        (place for place, (one, other) in pairs if one != other), min(len(first), len(second))
    )


def ends(ids: np.ndarray, targets: np.ndarray, tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """Return the last token of each answer of a conversation, white space ignored; -1 unless it is a special or added
    token."""
    markers = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    last_tokens = []
    borders = np.flatnonzero(np.diff(targets, prepend=False, append=False))
    for start, end in zip(borders[::2], borders[1::2], strict=True):
        last = next(
            (token for token in ids[start:end].tolist()[::-1] if tokenizer.decode([token]).strip()),
            -1,
        )
        last_tokens.append(last if last in markers else -1)
    return last_tokens
