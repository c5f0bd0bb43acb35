"""A conversation as a model's chat template renders it, token by token, and which tokens are the assistant's.

A rendering is a function of the conversation, its tools, the template, the tokenizer and one date: a template that
writes today's would train on other tokens after a resume, and one that draws at random is refused.

A template with ``{% generation %}`` marks says itself what its assistant writes.
Of any other, prefixes are rendered and compared: with ``before`` the conversation up to an answer, ending in the
template's own beginning of an answer (``add_generation_prompt``), and ``after`` the conversation with the answer, the
assistant's tokens are what ``after`` adds, its end of turn included. Exact as long as rendering more turns changes
nothing of what stands before them, which is looked at for every answer; a template of which it is not true (one that
drops the reasoning of former answers, as Qwen3's does) is refused.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np

from tape_ds import paths
from tape_ds.data.chat.conversations import ASSISTANT, Conversation, without_template
from tape_ds.errors import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Spans = list[tuple[int, int]]
"""(first character, the one behind the last) of each of the assistant's turns."""

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")


_UNSTEADY = {"lipsum", "random"}
"""What draws at random in a template: a function and a filter of jinja."""


class UnfitTemplateError(ValueError):
    """A template that does not render all of a conversation, or not so that its answers can be told apart; says why."""

    def __init__(self, wrong: str, remedy: str | None = None):
        super().__init__(wrong)
        self.remedy = remedy or (
            "mend the template, give one with {% generation %} marks around what the assistant writes "
            "(--chat_template FILE), or other data"
        )


def give(tokenizer: "PreTrainedTokenizerBase", file: str | None, model: str) -> list[Problem]:
    """Make the template of ``file``, where one is given, the tokenizer's own, which is saved with it; return the
    problem of a tokenizer that has none, or is too slow a kind to tell an answer's tokens."""
    if file is not None:
        tokenizer.chat_template = paths.of(file).read_text(encoding="utf-8")
    try:
        tokenizer.get_chat_template()
    except ValueError:
        return [without_template(model)]
    if not tokenizer.is_fast:
        wrong = "its tokenizer does not tell where its tokens stand in a text"
        return [Problem("model", model, wrong, "give one with tokenizer.json")]
    try:
        drawn = _UNSTEADY & {name for tree in _trees(tokenizer) for name in _names(tree)}
    except Exception as error:  # jinja's own, of many kinds
        return [Problem("chat_template", file, f"it is not a jinja template ({error})", "mend it")]
    if drawn:
        wrong = f"it draws at random ({', '.join(sorted(drawn))}), so that no two runs read the same"
        return [Problem("chat_template", file, wrong, "give one that does not: --chat_template FILE")]
    return []


def is_dated(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Return whether the template may write the date."""
    return any("strftime_now" in _names(tree) for tree in _trees(tokenizer))


def variables(tokenizer: "PreTrainedTokenizerBase") -> set[str]:
    """Return the variables that the template takes from outside."""
    from jinja2 import meta

    return {name for tree in _trees(tokenizer) for name in meta.find_undeclared_variables(tree)}


def _trees(tokenizer: "PreTrainedTokenizerBase") -> Iterator[Any]:
    """Syntax trees of the template, or of each where a tokenizer has one for tools as well."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    given = tokenizer.chat_template
    for text in given.values() if isinstance(given, dict) else [given]:
        yield _compile_jinja_template(text).environment.parse(text)


def _names(tree: Any) -> set[str]:
    """Variables, functions and filters of a syntax tree."""
    from jinja2 import nodes

    return {each.name for each in tree.find_all((nodes.Name, nodes.Filter))}


def encoded(
    conversation: Conversation,
    tokenizer: "PreTrainedTokenizerBase",
    tools: Sequence[dict[str, Any]] | None = None,
    day: date | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return token ids int32 [n] of a conversation and whether each is the assistant's, bool [n].

    Args:
        conversation: one turn or more.
        tokenizer: with a template (:func:`give`), and one that tells where its tokens stand in a text. What it puts
            around a text by itself (BOS) is left to the template, as transformers does.
        tools: JSON schemas of what the assistant may call.
        day: the date for a template that writes one; None: today.

    Raises:
        UnfitTemplateError: the template refuses the conversation, leaves its tools out, or is not prefix-stable.
    """
    rendering = _Rendering(tokenizer, tools, day)
    try:
        text, spans = rendering(conversation) if rendering.has_marks else rendering.by_prefixes(conversation)
        without = _Rendering(tokenizer, None, day)(conversation)[0] if tools else None
        unread = next((turn for turn in range(len(conversation)) if not rendering.reads(conversation, turn)), None)
    except UnfitTemplateError:
        raise
    except Exception as error:  # a template is a program of its own, and may fail in any way
        raise UnfitTemplateError(f"the chat template does not render it ({error})") from error
    if text == without:
        remedy = "give a template that renders tools (--chat_template FILE), or remove the column"
        raise UnfitTemplateError("it has tools, and the chat template renders none", remedy)
    if unread is not None:
        role = conversation[unread]["role"]
        remedy = f"give a template that renders the role {role} (--chat_template FILE), or take those turns out"
        raise UnfitTemplateError(f"turn {unread + 1}: the chat template leaves the role {role} out", remedy)
    # verbose=False: no advice about the native length, which a conversation may exceed
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    starts, ends = np.array(found["offset_mapping"], np.int64).reshape(-1, 2).T
    targets = np.zeros(len(starts), bool)
    for start, end in spans:  # whoever has a character of an answer, as each part of one that is several tokens
        first, behind = np.searchsorted(ends, start, "right"), np.searchsorted(starts, end)
        targets[first:behind] = True
    return np.asarray(found["input_ids"], np.int32), targets


class _Rendering:
    """A tokenizer's template, with what it reads besides the turns."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", tools: Sequence[dict[str, Any]] | None, day: date | None):
        self.text, self.tools = tokenizer.get_chat_template(tools=tools), tools
        self.variables: dict[str, Any] = dict(tokenizer.special_tokens_map)
        if day is not None:
            self.variables["strftime_now"] = day.strftime

    @property
    def has_marks(self) -> bool:
        """Whether the template marks what its assistant writes."""
        return _MARKS.search(self.text) is not None

    def __call__(self, conversation: Conversation, answer_next: bool = False) -> tuple[str, Spans]:
        """Return the text, and what is marked in it.

        Not by ``apply_chat_template``: its variables are data, and the date comes from a function. Its own mask ends
        with the first token of a last character.
        """
        from transformers.utils.chat_template_utils import _compile_jinja_template, _render_with_assistant_indices

        compiled = _compile_jinja_template(self.text)
        return _render_with_assistant_indices(compiled, conversation, self.tools, None, answer_next, **self.variables)

    def reads(self, conversation: Conversation, turn: int) -> bool:
        """Return whether another content of a turn would change the text, as of users and assistants it does."""
        if conversation[turn]["role"] in ("user", ASSISTANT):
            return True
        other = [*conversation]
        other[turn] = other[turn] | {"content": other[turn]["content"] + " and more"}
        try:
            return self(other)[0] != self(conversation)[0]
        except Exception:  # a template that objects to the content has read it
            return True

    def by_prefixes(self, conversation: Conversation) -> tuple[str, Spans]:
        """Return the text, and what each answer adds to it."""
        (whole, _), spans = self(conversation), []
        for turn, message in enumerate(conversation):
            if message["role"] != ASSISTANT:
                continue
            if turn == 0:
                raise UnfitTemplateError("it begins with an answer, before which nothing can be rendered")
            before, _ = self(conversation[:turn], answer_next=True)
            after, _ = self(conversation[: turn + 1])
            if not after.startswith(before):
                wrong = "the chat template begins an answer that is there otherwise than one that is asked for"
                raise UnfitTemplateError(f"turn {turn + 1}: {wrong} (add_generation_prompt)")
            if not whole.startswith(after):
                wrong = "the chat template renders it otherwise once more turns follow"
                raise UnfitTemplateError(f"turn {turn + 1}: {wrong}")
            spans.append((len(before), len(after)))
        return whole, spans


def ends(ids: np.ndarray, targets: np.ndarray, tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """Return the token that ends each answer of a conversation, white space after it left out; -1 where that is none
    of those that stand for themselves in the tokenizer (special or added)."""
    own = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    found = []
    borders = np.flatnonzero(np.diff(targets, prepend=False, append=False))
    for begin, behind in zip(borders[::2], borders[1::2], strict=True):
        answer = ids[begin:behind].tolist()
        last = next((each for each in reversed(answer) if tokenizer.decode([each]).strip()), -1)
        found.append(last if last in own else -1)
    return found
