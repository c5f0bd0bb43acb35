"""What is trained and what is asked in evaluation share no form: no eight words, no template, no kind of key."""

import re

import numpy as np
import pytest

from tape_ds.data import passkey
from tape_ds.data.retrieval import documents, families
from tape_ds.data.retrieval.families import FAMILIES
from tape_ds.data.retrieval.names import draw_names, draw_values
from tape_ds.scoring import ruler_generators
from tape_ds.scoring.ruler_generators import QA_FILES, Generators, configuration
from tests.scoring.ruler_tokenizers import tokenizer

ESSAYS = [f"Essay {number} was written at dusk. It has sentences! " * 40 for number in range(40)]
TASKS = [task for task in ruler_generators.tasks() if task not in QA_FILES]
UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-")
LONG_NUMBER = re.compile(r"\d{4,}")


@pytest.fixture(scope="module")
def asked():
    """Every question of RULER that is generated, whole with its answer, and our passkeys in both forms."""
    generators = Generators(lambda: ESSAYS)
    found = []
    for task in TASKS:
        for document in generators.draw(task, tokenizer(), 1200, 1, room=20):
            found.append(
                " ".join([document["input"], document["gen_prefix"], *document["outputs"]])
            )
    units = {"longlora": 400, "pose": 4}
    for form in passkey.FORMS:
        found += [passkey.text(form, units[form], units[form], key) for key in (7, 1234, 50_000)]
    return found


@pytest.fixture(scope="module")
def trained():
    """Documents of every family in every form of records and questions, without a text around them."""
    found = []
    for family, draw in FAMILIES.items():
        for seed in range(60):
            puzzle = draw(np.random.default_rng(seed), 3, 5)
            records = "\n".join(
                [*(record for group in puzzle.asked for record in group), *puzzle.rivals]
            )
            for header, style in zip(documents.HEADERS, documents.STYLES, strict=True):
                found.append(documents._with_questions(records, puzzle.questions, header, style)[0])
        assert family
    return found


def sequences_of(texts, words, pattern):
    found = set()
    for text in texts:
        each = re.findall(pattern, text.lower())
        found |= {tuple(each[at : at + words]) for at in range(len(each) - words + 1)}
    return found


@pytest.mark.parametrize("pattern", [r"\S+", r"[a-z0-9]+"])
def test_no_eight_words_are_shared(trained, asked, pattern):
    """Nor four: with and without punctuation."""
    mine = sequences_of(trained, 4, pattern)
    theirs = sequences_of(asked, 4, pattern)
    assert len(mine) > 5000 and len(theirs) > 2000
    assert not mine & theirs
    assert not sequences_of(trained, 8, pattern) & sequences_of(asked, 8, pattern)


def test_no_template_is_shared(asked):
    """The words of every form of ours, without its places, stand in no question that is evaluated, in their order."""
    asks = [ask for form in families.ITEMS.values() for ask in form]
    forms = [
        *families.RECORDS,
        *families.LOOKUPS,
        *families.LISTINGS,
        *families.ENDINGS,
        *families.SIGHTINGS,
    ]
    forms += [*families.COUNTS, *asks, *(form for pair in families.LINKS for form in pair)]
    forms += [form for form, _ in families.LISTS]
    for form in forms:
        parts = [re.escape(part.strip()) for part in re.split(r"\{\w+\}", form) if part.strip()]
        pattern = re.compile(r"^\W*" + r"\s*\S{1,40}\s*".join(["", *parts]) + r"\s*$", re.MULTILINE)
        assert not any(pattern.search(text) for text in asked), form
    theirs = [str(configuration(task).get("doc_to_text", "")) for task in TASKS]
    assert all(form not in text for form in forms for text in theirs)


def test_kinds_of_keys_and_values_differ(trained, asked):
    """RULER's are dictionary words, numbers of seven (vt: five) digits and uuids; passkeys are numbers."""
    assert any(UUID.search(text) for text in asked) and any(
        LONG_NUMBER.search(text) for text in asked
    )
    assert not any(UUID.search(text) or LONG_NUMBER.search(text) for text in trained)
    words = ruler_generators._words_of_wonderwords().RandomWord()._categories
    pairs = {f"{one}-{other}" for one in words["adjectives"][:50] for other in words["nouns"][:50]}
    assert all("-" in pair for pair in pairs)
    for seed in range(50):
        rng = np.random.default_rng(seed)
        for text in [*draw_names(rng, 3, 20), *draw_values(rng, 20)]:
            assert "-" not in text and not text.isdigit()
