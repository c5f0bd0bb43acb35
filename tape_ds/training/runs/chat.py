"""A run on conversations: rendered by the model's own chat template, packed, the assistant's tokens as targets."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from tape_ds import paths
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.chat import conversations, sequences, template
from tape_ds.data.chat.sequences import Chosen
from tape_ds.data.tokenized import FIELD_OF
from tape_ds.errors import Problem, UserError
from tape_ds.config.finetuning import ChatRecipe
from tape_ds.scoring.answers import Prompt
from tape_ds.training import identity
from tape_ds.training.runs.answering import Finetuning, Tokenized


@dataclass(frozen=True, kw_only=True)
class ChatTuning(Finetuning):
    """A run that learns the assistant's turns of conversations."""

    SERVING = sequences.ChatSequences
    TEXTS = "conversations"

    recipe: ChatRecipe

    @staticmethod
    def fingerprints_of(recipe: ChatRecipe, *, held_out: bool) -> dict[str, str]:
        """Of each source, by its spec."""
        data, found = recipe.data, {}
        lists = {"train": data.train_data} | ({"heldout": data.eval_data} if held_out else {})
        for split, specs in lists.items():
            for spec in specs:
                source = conversations.parse(spec, FIELD_OF[split])
                found[f"chat:{spec}/{split}"] = conversations.fingerprint(source, split)
        return found

    @staticmethod
    def fit(recipe: ChatRecipe, tokenizer: PreTrainedTokenizerBase) -> list[Problem]:
        """It needs a chat template, the recipe's or its own."""
        return template.give(tokenizer, recipe.data.chat_template, recipe.model.model)

    @staticmethod
    def decides(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """The chat template, wherever it comes from."""
        return {"chat_template": hashlib.sha256(tokenizer.get_chat_template().encode()).hexdigest()}

    @staticmethod
    def tokenized(recipe: ChatRecipe, tokenizer: PreTrainedTokenizerBase, day: date, bad_rows: BadRows) -> Tokenized:
        """Packed sequences, and every answer of the conversations that are held out."""
        data, cache = recipe.data, paths.data_cache(recipe.data.data_cache)
        stored = sequences.rendered(data.train_data, tokenizer, "train", cache, day, bad_rows)
        aside = sequences.held_out(len(stored), data.eval_share)
        learnt = np.setdiff1d(np.arange(len(stored)), aside)
        train = sequences.choose(stored, learnt, data.max_tokens, data.too_long)
        if len(train.numbers) == 0:
            remedy = "raise it, or give other data"
            raise UserError(Problem("max_tokens", data.max_tokens, f"no conversation is left: {train.cut}", remedy))
        chosen = None
        if data.eval_examples and data.eval_data:
            other = sequences.rendered(data.eval_data, tokenizer, "heldout", cache, day, bad_rows)
            chosen = sequences.choose(other, np.arange(len(other)), data.max_tokens, data.too_long)
        elif data.eval_examples and data.eval_share:
            chosen = sequences.choose(stored, aside, data.max_tokens, data.too_long)
        if chosen is not None and len(chosen.numbers) == 0:
            field = "eval_data" if data.eval_data else "eval_share"
            wrong = f"no held-out conversation is left to be scored: {chosen.cut}"
            raise UserError(Problem(field, getattr(data, field), wrong, "hold out more, or eval_examples: 0"))
        ends = _ends(stored, tokenizer)
        notes = {"end of an answer": _end(ends, stored, tokenizer)}
        dated = template.is_dated(tokenizer)
        if dated:
            notes["date"] = f"{day:%d %B %Y} wherever the chat template asks for today's, also after a resume"
        if unread := sequences.unread(stored):
            notes["not read"] = f"the columns {', '.join(unread)}"
        return Tokenized(
            sequences=sequences.packed(train, cache),
            lengths=train.lengths,
            asked=[] if chosen is None else list(_asked(chosen, data.eval_examples)),
            cut={"train": train.cut} | ({} if chosen is None else {"held out": chosen.cut}),
            ends=tuple(sorted(ends.keys() - {-1})),
            notes=notes,
            decides={identity.DATE: day.isoformat()} if dated else {},
        )

    def describe_data(self) -> dict[str, str]:
        """Conversations, sequences and answers."""
        data, cut = self.recipe.data, self.cut["train"]
        assert isinstance(cut, sequences.CutConversations)
        packed = f"{cut.taken:,} conversations in {len(self.sequences.lengths):,} sequences"
        origin = ", ".join(data.eval_data) or f"{data.eval_share:.1%} of the conversations"
        return {
            "data": f"{', '.join(data.train_data)}: {packed}",
            "held out": f"{len(self.asked):,} answers of {origin}" if self.asked else "nothing",
        }


def _ends(stored: Dataset, tokenizer: PreTrainedTokenizerBase) -> Counter[int]:
    """Return how many answers end with which token, -1 for none that ends an answer."""
    found, added = sequences.ends(stored), tokenizer.added_tokens_decoder
    if found[-1]:  # the template puts no end: a token that was added as a word is one of these answers' words
        for each in [each for each in found if each in added and not added[each].special]:
            found[-1] += found.pop(each)
    return found


def _end(ends: Counter[int], stored: Dataset, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return in words what ends an answer, and how many answers end with nothing at which a generation could stop."""
    endless, answers = ends[-1], ends.total()
    named = ", ".join(f"{tokenizer.convert_ids_to_tokens(each)} (id {each})" for each in sorted(ends.keys() - {-1}))
    if not endless:
        return f"{named}; the trained model stops there"
    first = next(row for row in stored if -1 in row["ends"])
    learnt = tokenizer.decode([first["input_ids"][place] for place in np.flatnonzero(first["targets"])[-8:]])
    wrong = f"{endless:,} of {answers:,} answers have no special token at the end of what is learnt (as {learnt!r})"
    return f"{named}; but {wrong}" if named else f"{wrong}: a generation will not stop there by itself"


def _asked(chosen: Chosen, count: int) -> Iterator[Prompt]:
    """Every answer of ``count`` conversations at most, evenly spread over the chosen."""
    for conversation in chosen.spread(count):
        for ids, targets in sequences.answers(conversation):
            yield Prompt(torch.tensor(ids[None]), targets)
