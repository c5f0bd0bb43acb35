"""Sequences of generated documents: whole documents, targets, and PoSE's skips between evidence and questions."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tape_ds.data.mix import MixedSequences, mix
from tape_ds.data.order import TrainingSequences
from tape_ds.errors import UserError
from tests.data.conftest import build_tokenizer, same
from tests.data.retrieval.conftest import build
from tests.models.helpers import norms_in_own_dtype, tiny_model

SHORT = "families=lookup,values&rivals=3&questions=1-2"


def jumps(positions):
    """Where positions skip, and by how many."""
    steps = np.diff(positions.numpy())
    places = np.flatnonzero(steps != 1) + 1
    return places.tolist(), (steps[places - 1] - 1).tolist()


def test_a_sequence_has_whole_documents_and_only_answers_are_targets(make):
    sequences = make(f"{SHORT}&tokens=500-900", window=2000)
    for index in range(12):
        documents, item = sequences.documents(index), sequences[index]
        assert (
            item["input_ids"].tolist()
            == np.concatenate([document.ids for document in documents]).tolist()
        )
        assert 2 <= len(documents) <= 4 and 2000 - sequences.least < len(item["input_ids"]) <= 2000
        assert all(len(document.ids) >= 500 for document in documents[:-1])
        owners = np.repeat(np.arange(len(documents)), [len(document.ids) for document in documents])
        assert item["document_ids"].tolist() == owners.tolist()
        assert item["position_ids"].tolist() == list(range(len(owners)))
        targets = item["input_ids"][item["labels"] != -100]
        expected = "".join(f" {answer}\n" for document in documents for answer in document.answers)
        assert build(True).decode(targets) == expected
        assert torch.equal(item["labels"][item["labels"] != -100], targets)


def test_all_tokens_as_targets_leave_out_the_first_of_a_document(make):
    item = make(f"{SHORT}&tokens=500-900&targets=all")[0]
    begins = np.flatnonzero(np.diff(item["document_ids"], prepend=-1))
    assert np.flatnonzero(item["labels"] == -100).tolist() == begins.tolist() and len(begins) >= 2
    across = make(f"{SHORT}&tokens=500-900&targets=all", attend_across=True)[0]
    assert torch.equal(across["input_ids"], item["input_ids"]) and not across["document_ids"].any()
    assert np.flatnonzero(across["labels"] == -100).tolist() == [0]


def test_single_packing_and_documents_of_a_window_have_one_each(make):
    assert len(make(f"{SHORT}&tokens=500-900", single=True).documents(0)) == 1
    sequences = make(SHORT)
    assert [len(each.ids) for each in sequences.documents(0)] == [
        2000
    ] and sequences.mean_tokens == 2000


@pytest.mark.parametrize("chunks", [2, 3, 5])
def test_pose_skips_between_what_is_asked_for_and_every_question(make, chunks):
    sequences = make("rivals=3&questions=1-3", target=50_000, chunks=chunks)
    farthest = []
    for index in range(25):
        (document,), item = sequences.documents(index), sequences[index]
        places, skipped = jumps(item["position_ids"])
        assert len(places) <= chunks - 1 and all(skip > 0 for skip in skipped)
        assert set(places) <= set(document.borders.tolist())
        between = [place for place in places if document.evidence <= place <= document.asked_at]
        if chunks == 2:
            assert between == places
        assert between or len(places) < chunks - 1, "a skip of 0 positions is no jump"
        assert item["position_ids"][0] == 0 and item["position_ids"][-1] < 50_000
        assert item["document_ids"].sum() == 0 and len(item["input_ids"]) == 2000
        farthest.append(sum(skipped))
    assert max(farthest) > 35_000 and (chunks > 2 or min(farthest) < 20_000)


@pytest.mark.parametrize("chunks", [2, 4])
def test_pose_computes_what_the_long_sequence_would_without_the_text_between(
    make, chunks, monkeypatch
):
    """In fp64: in the long sequence the skipped positions hold tokens of another document, which nothing attends to."""
    norms_in_own_dtype(monkeypatch)
    torch.manual_seed(0)
    model = tiny_model(encoding="rope", vocab_size=300, max_position_embeddings=4096).double()
    sequences = make("families=lookup&rivals=3&questions=2", window=900, target=1500, chunks=chunks)
    for index in range(2):
        item = sequences[index]
        places, labels = item["position_ids"], item["labels"]
        length = int(places[-1]) + 1
        assert length > 920
        ids = torch.full((1, length), 7)
        owners = torch.ones(1, length, dtype=torch.int32)
        ids[0, places], owners[0, places] = item["input_ids"], 0
        given = {name: values[None] for name, values in item.items() if name != "labels"}
        with torch.no_grad():
            long = model(ids, document_ids=owners).logits[0, places]
            short = model(**given).logits[0]
            unskipped = model(item["input_ids"][None]).logits[0]
        torch.testing.assert_close(short, long, rtol=0, atol=1e-12)
        losses = [cross_entropy(logits[:-1], labels[1:]) for logits in (short, long, unskipped)]
        torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=1e-12)
        assert abs(losses[2] - losses[0]) > 1e-6, "positions without an effect would pass"


def test_a_share_by_weight_is_of_the_tokens(make, tmp_path):
    """Half of the tokens: of sequences as long as the text's one in two, of longer ones fewer."""
    import datasets

    stored = datasets.Dataset.from_dict(
        {"input_ids": [[5] * 500] * 9, "document_ids": [[0] * 500] * 9}
    )
    entries = [{"source": "generated:retrieval", "weight": 1}, {"source": "text", "weight": 1}]

    def parts(specs, seed):
        if specs == ["text"]:
            return TrainingSequences(stored, samples=400, seed=seed)
        return make(SHORT, samples=400, seed=seed)

    mixed = mix(entries, parts, samples=400, seed=1)
    assert isinstance(mixed, MixedSequences) and mixed.probabilities == pytest.approx((0.2, 0.8))
    tokens = mixed.tokens(400)
    assert tokens["generated:retrieval"] / sum(tokens.values()) == pytest.approx(0.5, abs=0.07)
    drawn = [len(mixed[index]["input_ids"]) for index in range(60)]
    assert mixed.tokens(60) == {
        "generated:retrieval": 2000 * drawn.count(2000),
        "text": 500 * drawn.count(500),
    }
    first = drawn.index(2000)
    assert same(mixed[first], mixed.parts[0].sequences[0])
    line = mixed.origin.split("\n")[0]
    assert (
        line.startswith("50 % generated:retrieval: ")
        and "1 documents, " in line
        and "3 rivals a document" in line
    )


def test_what_a_run_says_of_them(make):
    described = make("families=lookup&rivals=3&questions=2&tokens=500").origin
    assert described.startswith(
        "drawn for each sequence: 4 documents, 8 questions, 3 rivals a document, "
    )
    assert described.endswith(" of 2,000 tokens are answers")
    assert make(f"{SHORT}&targets=all").origin.endswith(
        " of 2,000 tokens are answers, all are targets"
    )


def test_no_room_is_said_before_anything_is_drawn(make):
    with pytest.raises(UserError, match="more than a sequence of 300") as caught:
        make(window=300)
    assert caught.value.problems[0].field == "train_data"
    with pytest.raises(UserError, match="and a document may have 100") as caught:
        make("rivals=2&questions=1&tokens=100-1500")
    least = caught.value.problems[0].remedy.split("write tokens=")[1].split("-")[0]
    assert make(f"rivals=2&questions=1&tokens={least}-1500").least == int(least)


def test_a_slow_tokenizer_is_refused(make):
    class Slow:
        is_fast = False

    with pytest.raises(UserError, match="does not locate its tokens"):
        make(tokenizer=Slow())


def test_other_seeds_and_texts_give_other_documents(make, folder):
    one = make(SHORT)
    assert same(one[3], make(SHORT)[3]) and not same(one[3], make(SHORT, seed=1)[3])
    assert not same(one[3], make(SHORT, tokenizer=build_tokenizer(bos=False))[3])
