"""Abacus embeddings of any encoding: places within numbers, against a count in Python; drawn offsets; caches.

Three of the combinations are also in ``ENCODINGS``, and held to whatever is promised of a model.
"""

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import DynamicCache, PreTrainedTokenizerFast, StaticCache

from tape_ds import encodings
from tape_ds.encodings import base, registry
from tape_ds.encodings.abacus import places_in_numbers
from tape_ds.errors import UserError
from tests.models.helpers import (
    ENCODINGS,
    WITH_EVERY_HEADS,
    rounding,
    tiny_config,
    tiny_model,
    tokens,
)

DIGITS = list(range(20, 50))
ABACUS = {"abacus": True, "abacus_digits": DIGITS, "abacus_places": 30, "abacus_shift": 0}


def options(name, **changes):
    """Of an entry of ``ENCODINGS``, with digits' places added."""
    return {**(tiny_config(encoding=name).position_options or {}), **ABACUS, **changes}


def combined(name, **changes):
    return tiny_model(encoding=name, position_options=options(name, **changes))


def encoding(**changes):
    return registry.build(tiny_config(encoding="rope", position_options=options("rope", **changes)))


def located(text, documents=None, offset=0, past=None):
    """Places within numbers of a string's letters."""
    ids = torch.tensor([[20 + int(letter) if letter.isdigit() else 3 for letter in text]])
    where = base.TokenContext(ids, documents, offset, past)
    return encoding().positions_for(torch.arange(len(text))[None], where)


EXAMPLES = {
    "21+43=64": [1, 2, 0, 1, 2, 0, 1, 2],
    "1  12": [1, 0, 0, 1, 2],
    "=012345678901": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
}


@pytest.mark.parametrize("text", EXAMPLES)
def test_places_within_numbers(text):
    found = located(text)[0]
    assert found[:, -1].tolist() == EXAMPLES[text]
    assert found[:, 0].tolist() == list(range(len(text))), (
        "positions of the inner encoding are unchanged"
    )


@pytest.mark.parametrize("documented", [False, True])
def test_counting_against_a_loop(documented):
    """Random digits in random, interleaved documents, token by token."""
    digits, documents = torch.rand(5, 60) < 0.7, torch.randint(-1, 4, (5, 60))
    found = places_in_numbers(digits, documents if documented else None)
    for row in range(5):
        places = {}
        for t in range(60):
            document = int(documents[row, t]) if documented else 0
            places[document] = places.get(document, 0) + 1 if digits[row, t] else 0
            assert int(found[row, t]) == places[document]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("cut", [2, 4])
def test_a_cache_continues_the_count(cut, static):
    """In the middle of a number too; in a compiled static cache the offset is a tensor, the buffer longer."""
    text, documents = "123+45=6", torch.tensor([[0, 0, 1, 0, 0, 1, -1, 1]])
    whole = located(text, documents)
    first, offset = located(text[:cut], documents[:, :cut]), cut
    if static:
        offset, documents = torch.tensor(cut), torch.nn.functional.pad(documents, (0, 4), value=-1)
        first = torch.nn.functional.pad(first, (0, 0, 0, 12 - cut))
    assert torch.equal(located(text[cut:], documents, offset, first)[..., -1], whole[:, cut:, -1])


@pytest.mark.parametrize("name", ["bipe_rope", "fox", "tape unit"])
@pytest.mark.parametrize("cache", [DynamicCache, StaticCache])
def test_cached_logits_are_the_full_pass_s_with_an_encoding_that_caches_more(name, cache):
    model, ids, mask = combined(name), tokens(2, 20), torch.ones(2, 20, dtype=torch.long)
    mask[0, :4] = 0
    places = (mask.cumsum(-1) - 1).clamp_min(0)
    past, parts = (
        cache(config=model.config, **({"max_cache_len": 24} if cache is StaticCache else {})),
        [],
    )
    with torch.no_grad():
        whole = model(ids, attention_mask=mask, position_ids=places).logits
        for at in range(0, 20, 5):
            given = {"attention_mask": mask[:, : at + 5], "position_ids": places[:, at : at + 5]}
            parts.append(model(ids[:, at : at + 5], past_key_values=past, **given).logits)
    torch.testing.assert_close(
        torch.cat(parts, 1)[mask == 1], whole[mask == 1], rtol=0, atol=rounding(model, ids)
    )


@pytest.mark.parametrize("name", [*WITH_EVERY_HEADS, "sincos", "rope dynamic", "randpe"])
def test_without_digits_logits_are_those_of_the_inner_encoding(name):
    """To the last bit; with digits they differ."""
    model, plain = combined(name), tiny_model(encoding=name)
    shared = {
        key.replace(".encoding.inner.", ".encoding."): value
        for key, value in model.state_dict().items()
    }
    plain.load_state_dict(
        {key: value for key, value in shared.items() if ".encoding.digits." not in key}
    )
    ids = torch.cat((tokens(2, 14), torch.tensor([[20, 21] * 7])))
    letters = ids % 17 + 3
    assert torch.equal(model(letters).logits, plain(letters).logits)
    assert not torch.equal(model(ids).logits, plain(ids).logits)
    promised = ("translation_invariant", "cache_exact", "reads_tokens", "draws")
    assert all(
        getattr(model.model.encoding, each) == getattr(plain.model.encoding, each)
        for each in promised
    )


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_encoding_counts_by_what_it_remembers(name):
    """The cache relies on ``remembers`` for the number of integers that place a token (one if nothing is kept)."""
    places = tiny_model(encoding=name).model.encoding.positions_for(
        torch.arange(5)[None], base.TokenContext(tokens(2, 5), None, 0, None)
    )
    assert places.shape[-1] == max(registry.build(tiny_config(encoding=name)).remembers, 1)


def test_digits_get_their_place_s_row_and_other_tokens_nothing():
    abacus = encoding(abacus_places=3).eval()
    torch.nn.init.normal_(abacus.digits.weight)
    places = torch.tensor([[[0, 0], [1, 1], [2, 2], [3, 3], [4, 4], [5, 90]]])
    added, rows = abacus.embed(torch.zeros(1, 6, 32), places)[0], abacus.digits.weight
    assert not added[0].any()
    assert torch.equal(added[1:4], rows)
    assert torch.equal(added[4], rows[2]) and torch.equal(added[5], rows[2]), (
        "places beyond share the last row"
    )


def test_an_offset_is_drawn_in_training_for_all_digits_together():
    """Evenly from 0 .. shift, both ends included; decided by torch's seed, the same on any default device."""
    abacus = encoding(abacus_shift=3).train()
    with torch.no_grad():
        abacus.digits.weight.copy_(torch.arange(30)[:, None].expand(-1, 32))
    places = torch.tensor([[[0, 1], [1, 2], [2, 0]], [[0, 4], [1, 0], [2, 1]]])
    offsets = []
    for seed in range(60):
        torch.manual_seed(seed)
        with torch.device("meta"):
            added = abacus.embed(torch.zeros(2, 3, 32, device="cpu"), places)[..., 0]
        offset = int(added[0, 0])
        assert added.tolist() == [[offset, offset + 1, 0], [offset + 3, 0, offset]]
        offsets.append(offset)
    assert {offset: offsets.count(offset) > 5 for offset in offsets} == dict.fromkeys(
        range(4), True
    )
    added = abacus.eval().embed(torch.zeros(2, 3, 32), places)[..., 0]
    assert added.tolist() == [[0, 1, 0], [3, 0, 0]]


def tokenizer(*words):
    vocabulary = {word: index for index, word in enumerate(words)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocabulary, [])))


@pytest.mark.parametrize(
    "words, expected",
    [
        (["[PAD]", *"0123456789", "+", "="], list(range(1, 11))),
        (["x", "1", "²"], [1]),
        (["0", "1", "10"], None),
    ],
)
def test_digits_are_taken_from_the_tokenizer(words, expected):
    """Not from one that joins digits: places within its tokens would be hidden. Given ids stay."""
    found = encodings.options_for("rope", {"abacus": True}, tokenizer(*words))
    assert found == {"abacus": True, **({"abacus_digits": expected} if expected else {})}
    given = {"abacus": True, "abacus_digits": [5]}
    assert encodings.options_for("rope", given, tokenizer(*words)) == given


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"abacus_digits": None}, "abacus_digits"),
        ({"abacus_digits": [-1, 3]}, "abacus_digits"),
        ({"abacus_digits": [3, 61]}, "abacus_digits"),
        ({"abacus_shift": 30}, "abacus_shift"),
        ({"abacus": False, "abacus_shift": 100, "abacus_places": 512}, "abacus_digits"),
    ],
)
def test_options_that_fit_no_model_are_refused(changes, field):
    with pytest.raises(UserError) as refused:
        tiny_config(encoding="rope", position_options=options("rope", **changes))
    assert [problem.field for problem in refused.value.problems] == [f"position_options.{field}"]
    assert tiny_config(
        encoding="rope", position_options=options("rope", abacus_digits=[0, 60], abacus_shift=29)
    )
