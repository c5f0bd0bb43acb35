"""Documents: of the length that is asked for, with the records in the text and the questions at the end."""

import numpy as np
import pytest

from tape_ds.data.retrieval import documents
from tape_ds.data.retrieval.documents import DocumentWriter, NoRoomError
from tape_ds.data.retrieval.haystack import LONGEST_UNIT, units
from tape_ds.errors import UserError
from tests.data.retrieval.conftest import PARAGRAPH, TEXT, build

FAMILIES = ["lookup", "values", "chain", "count", "list"]


def written(sequences, count=8, length=None):
    length = length or sequences.form.window
    return [sequences.writer.write(np.random.default_rng(seed), length) for seed in range(count)]


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_with_a_text_a_document_has_its_length_exactly(make, family, bos):
    """Its tokens are those of its text, read again as a whole, behind the tokenizer's beginning."""
    sequences, tokenizer = make(f"families={family}&rivals=5", bos=bos), build(bos)
    for document in written(sequences):
        assert len(document.ids) == 2000 and document.rivals == 5 and document.family == family
        text = tokenizer.decode(document.ids[int(bos) :])
        again = tokenizer(text)["input_ids"]
        assert again[8:] == document.ids[8 - len(again) + 2000 :].tolist(), (
            "only where the first line is cut"
        )
        assert (document.ids[0] == 0) == bos and 0 not in document.ids[1:]


@pytest.mark.parametrize("text", [True, False])
def test_answers_are_marked_with_the_end_of_their_line(make, text):
    tokenizer = build(True)
    for document in written(make("questions=3" + "&rivals=4" * text, text=text)):
        assert tokenizer.decode(document.ids[document.is_answer]) == "".join(
            f" {each}\n" for each in document.answers
        )
        assert document.is_answer.nonzero()[0][0] > document.asked_at and document.is_answer[-1]


def test_records_alone_fill_a_document_but_for_less_than_two_records(make):
    for document in written(make(text=False)):
        assert 1700 < len(document.ids) <= 2000 and document.rivals > 5


def test_evidence_is_before_the_questions_and_within_its_place(make):
    tokenizer = build(True)
    for low, high in ((0.0, 0.2), (0.4, 0.6), (0.9, 1.0)):
        sequences = make(f"families=lookup&rivals=5&questions=1&place={low}-{high}", window=3000)
        shares = []
        for document in written(sequences):
            body = tokenizer.decode(document.ids[1 : document.asked_at])
            (answer,) = document.answers
            assert body.count(answer) == 1, "in its record, and in no other"
            assert answer in tokenizer.decode(document.ids[1 : document.evidence])
            shares.append(body.index(answer) / len(body))
        # a record is read into the text between two lines, and the other records move it
        assert low - 0.1 < min(shares) and max(shares) < high + 0.1


def test_rivals_are_spread_over_the_text(make):
    tokenizer = build(True)
    (document,) = written(make("families=lookup&rivals=20&questions=1", window=6000), 1)
    lines = tokenizer.decode(document.ids[1 : document.asked_at]).split("\n")
    places = [place for place, line in enumerate(lines) if line and line not in TEXT]
    records = [place for place in places if place > 0]  # the first line may be cut
    assert (
        20 <= len(records) <= 22
        and max(np.diff(records)) > 3
        and records[-1] - records[0] > len(lines) / 2
    )


def test_chunks_may_begin_at_lines_records_and_questions(make):
    tokenizer = build(True)
    for text in (True, False):
        for document in written(make("questions=3" + "&rivals=4" * text, text=text)):
            assert {document.evidence, document.asked_at} <= set(document.borders.tolist())
            assert (np.diff(document.borders) > 0).all() and document.borders[0] > 1
            assert not document.is_answer[document.borders].any()
            for border in document.borders:
                assert tokenizer.decode(document.ids[:border])[-1] == "\n", "no line is cut"


def test_an_end_follows_the_last_answer(make):
    for document in written(make("rivals=4", end=1), 5):
        assert document.ids[-1] == 1 and len(document.ids) == 2000 and not document.is_answer[-1]


def test_too_many_questions_are_drawn_again_and_the_least_is_refused(make):
    """A document never has fewer than the least questions, and never more tokens than it should."""
    sequences = make("questions=1-60&rivals=3&families=lookup", window=1500)
    counts = {len(document.answers) for document in written(sequences)}
    assert max(counts) > 5 and all(len(document.ids) <= 1500 for document in written(sequences))
    with pytest.raises(NoRoomError):
        sequences.writer.write(np.random.default_rng(0), 30)


def test_a_text_without_lines_is_read_in_pieces():
    assert "".join(units(PARAGRAPH)) == PARAGRAPH
    assert all(len(unit) <= LONGEST_UNIT for unit in units(PARAGRAPH + "x" * 1000))
    assert "".join(units(TEXT)) == TEXT and len(list(units(TEXT))) == 400


def test_a_tokenizer_that_joins_parts_gets_a_shorter_text(make, monkeypatch):
    """Where the whole has more tokens than its parts, the text is cut until it fits."""
    sequences = make("rivals=4")
    counts = DocumentWriter._counts
    monkeypatch.setattr(
        DocumentWriter, "_counts", lambda self, texts: [count // 2 for count in counts(self, texts)]
    )
    monkeypatch.setattr(documents, "SLACK", 0)
    assert all(1500 < len(document.ids) <= 2000 for document in written(sequences))


def test_a_text_that_is_stored_in_more_tokens_is_read_on(make, folder):
    """Ids of another origin, each a part of a character or of a word, gave a document of half its length."""
    ids = np.random.default_rng(0).integers(2, 258, 4000).astype(np.uint16)
    np.save(folder / "ids.npy", ids)
    sequences = make(f"rivals=2&families=lookup&text=tokens:{folder}/ids.npy#end=file", text=False)
    assert min(len(document.ids) for document in written(sequences)) > 2000 - 3 * documents.SLACK


def test_a_text_that_the_tokenizer_does_not_know_is_refused(make, folder):
    """It was left out silently, and documents were records alone."""
    (folder / "unknown.txt").write_text("unknown words " * 300)
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0, "known": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    with pytest.raises(UserError, match="gives back less than half"):
        make(f"rivals=2&text=text:{folder}/unknown.txt", text=False, tokenizer=tokenizer)
