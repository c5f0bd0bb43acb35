"""``stdlib``: conversations about the running Python's own sources, for machines where nothing can be downloaded.

Two of the questions that fine-tuning on ``stdlib`` asks (:mod:`tape_ds.data.scrolls.made`: which arguments does a
function take?) one after the other, so that a conversation has two answers. It shows that chat tuning works; it
measures nothing about chat.
"""

from collections.abc import Iterator

from tape_ds.data.scrolls import made as questions

_SPLITS = {"train": "train", "heldout": "validation"}


def fingerprint(split: str) -> str:
    """Of the sources that the conversations are made of."""
    return f"chat:{split}:{questions.fingerprint(_SPLITS[split])}"


def conversations(split: str) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """(name, conversation) of each pair of questions; a last one alone is left out."""
    asked = list(questions.rows(_SPLITS[split]))
    for first, second in zip(asked[::2], asked[1::2], strict=False):
        turns = [
            {"role": role, "content": text or ""}
            for _, question, answer in (first, second)
            for role, text in (("user", question), ("assistant", answer))
        ]
        yield first[0], turns
