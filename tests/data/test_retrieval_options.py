"""The options of ``generated:retrieval``: what they mean, and all that is wrong at once."""

import pytest

from tape_ds.data.retrieval.families import FAMILIES
from tape_ds.data.retrieval_options import FAMILY_NAMES, RetrievalOptions, read


def test_without_options_every_family_has_the_same_share():
    found, wrong = read("")
    assert wrong == [] and found == RetrievalOptions()
    assert (
        found.shares() == [0.2] * 5
        and tuple(name for name, _ in found.families) == tuple(FAMILIES) == FAMILY_NAMES
    )


def test_everything_that_can_be_said():
    given = "families=list:1,lookup:3&tokens=512-2k&rivals=8-64&questions=3&place=0-0.25&targets=all&documents=9"
    found, wrong = read(f"{given}&text=jsonl:/data/a&b.jsonl#meta.text")
    assert wrong == []
    assert found == RetrievalOptions(
        families=(("lookup", 3.0), ("list", 1.0)),
        tokens=(512, 2048),
        rivals=(8, 64),
        questions=(3, 3),
        place=(0.0, 0.25),
        targets="all",
        documents=9,
        text="jsonl:/data/a&b.jsonl#meta.text",
    )
    assert found.shares() == [0.75, 0.25]


@pytest.mark.parametrize(
    "part",
    [
        *(
            "families=lookup,lookup",
            "families=needle",
            "families=lookup:0",
            "families=",
            "families",
        ),
        *("tokens=0", "tokens=4k-1k", "tokens=1k-", "tokens=many", "tokens=1k-2k-3k"),
        *("rivals=-1", "rivals=5-4", "rivals=1e3", "rivals=1000000"),
        *(
            "questions=0",
            "questions=0-3",
            "place=0.5",
            "place=0.7-0.2",
            "place=0-1.5",
            "place=nan-1",
        ),
        *("targets=answer", "documents=0", "documents=1-2"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_form(part):
    _, wrong = read(f"{part}&text=stdlib")
    assert [each for each, _ in wrong] == [f"{part!r} cannot be read"]
    assert part.partition("=")[0] + "=" in wrong[0][1]


def test_all_mistakes_at_once():
    _, wrong = read("token=5&tokens=x&tokens=5&questions=0&text=")
    assert [each for each, _ in wrong] == [
        "text= names no data",
        "'token=5' is no option of it",
        "'tokens=x' cannot be read",
        "tokens is given more than once",
        "'questions=0' cannot be read",
    ]
    assert "did you mean 'tokens'?" in wrong[1][1]


def test_rivals_without_a_text_are_refused():
    """They would be silently ignored: rivals fill the document there."""
    _, wrong = read("rivals=5")
    assert len(wrong) == 1 and "there is no text" in wrong[0][0]
