"""Passkey retrieval: whether a model finds the number in a long prompt (see :mod:`tape_ds.data.passkey`).

A reply is correct when its first integer is the key (PoSE's rule). LongLoRA's rule, the reply begins with the key's
token ids, is stored too: it accepts 123456 for 12345, and rejects a key after other words.
"""

import re
from collections.abc import Sequence
from typing import Any

from tape_ds.data.passkey import PasskeyQuestion, answer_ids
from tape_ds.scoring.questions import Kind, Row


def row(question: PasskeyQuestion, ids: Sequence[int], tokenizer: Any) -> Row:
    key_ids = answer_ids(tokenizer, question.key)
    reply = tokenizer.decode(ids)
    return {
        "trial": question.trial,
        "tokens": len(question.ids),
        "depth": question.depth,
        "key": question.key,
        "reply": reply,
        # None: the tokenizer joins the key and other text
        "same_ids": None if key_ids is None else tuple(ids[: len(key_ids)]) == key_ids,
        "right": first_integer(reply) == question.key,
    }


def counts(rows: Sequence[Row]) -> Row:
    correct = sum(each["right"] for each in rows)
    return {"trials": len(rows), "correct": correct, "accuracy": correct / len(rows)}


def first_integer(reply: str) -> int | None:
    """Return the first run of digits 0 to 9 in a reply."""
    found = re.search(r"\d+", reply, re.ASCII)
    if found is not None:
        return int(found.group())
    return None


PASSKEYS = Kind(
    announced="for {} passkeys",
    cell=("length",),
    # not those of the checkpoint's generation settings
    ends=lambda _, tokenizer: [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id],
    row=row,
    counts=counts,
    asked=("trial", "key", "depth"),
)
