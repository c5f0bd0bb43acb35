"""Abacus embeddings beside every encoding: places within numbers, against a count in Python; drawn offsets; caches.

Three of the combinations are also in ``ENCODINGS``, and held to whatever is promised of a model.
"""

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import DynamicCache, PreTrainedTokenizerFast, StaticCache

from tape_ds import encodings
from tape_ds.encodings import base, registry
from tape_ds.encodings.abacus import places_in_numbers
from tape_ds.models.convert import to_plain
from tape_ds.models.llama import evaluated_at
from tests.models.helpers import CACHE_EXACT, ENCODINGS, rounding, tiny_config, tiny_model, tokens

DIGITS = list(range(20, 50))
ABACUS = {"abacus": True, "abacus_digits": DIGITS, "abacus_places": 30, "abacus_shift": 0}
WITHOUT = [name for name in ENCODINGS if not name.endswith(" abacus")]


def options(name, **changes):
    """Of an entry of ``ENCODINGS``, with digits' places beside it."""
    return {**(tiny_config(encoding=name).position_options or {}), **ABACUS, **changes}


def beside(name, **changes):
    """A tiny model of that."""
    return tiny_model(encoding=name, position_options=options(name, **changes))


def encoding(**changes):
    return registry.build(tiny_config(encoding="rope", position_options=options("rope", **changes)))


def located(text, documents=None, offset=0, past=None):
    """Places within numbers of a string's letters."""
    ids = torch.tensor([[20 + int(letter) if letter.isdigit() else 3 for letter in text]])
    where = base.TokenContext(ids, documents, offset, past)
    return encoding().positions_for(torch.arange(len(text))[None], where)


# What each letter counts as.
EXAMPLES = {
    "a sum": ("21+43=64", [1, 2, 0, 1, 2, 0, 1, 2]),
    "one digit": ("7", [1]),
    "no number": ("+=", [0, 0]),
    "empty places between": ("1  12", [1, 0, 0, 1, 2]),
    "a long one": ("=012345678901", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_places_within_numbers(name):
    text, expected = EXAMPLES[name]
    found = located(text)[0]
    assert found[:, -1].tolist() == expected
    assert found[:, 0].tolist() == list(range(len(text))), "the encoding beside it counts as ever"


def test_numbers_do_not_run_on_into_another_document():
    """Nor does what lies between its parts end one: documents may be interleaved, padding with holes."""
    documents = torch.tensor([[4, 4, 0, 0, 4, -1, -1, 0, 1, 1]], dtype=torch.int32)
    assert located("1234567891", documents)[0, :, -1].tolist() == [1, 2, 1, 2, 3, 1, 2, 3, 1, 2]


@pytest.mark.parametrize("documented", [False, True])
def test_counting_against_a_loop(documented):
    """Random digits in random documents, token by token."""
    digits, documents = torch.rand(5, 60) < 0.7, torch.randint(-1, 4, (5, 60))
    found = places_in_numbers(digits, documents if documented else None)
    for row in range(5):
        places = {}
        for t in range(60):
            document = int(documents[row, t]) if documented else 0
            places[document] = places.get(document, 0) + 1 if digits[row, t] else 0
            assert int(found[row, t]) == places[document]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("cut", [1, 2, 4, 6])
def test_a_cache_continues_the_count(cut, static):
    """In the middle of a number too; in a compiled static cache the offset is a tensor, the buffer longer."""
    text, documents = "123+45=6", torch.tensor([[0, 0, 1, 0, 0, 1, -1, 1]])
    whole = located(text, documents)
    first, offset = located(text[:cut], documents[:, :cut]), cut
    if static:
        offset, documents = torch.tensor(cut), torch.nn.functional.pad(documents, (0, 4), value=-1)
        first = torch.nn.functional.pad(first, (0, 0, 0, 12 - cut))
    assert torch.equal(located(text[cut:], documents, offset, first)[..., -1], whole[:, cut:, -1])


@pytest.mark.parametrize("name", [name for name in CACHE_EXACT if name in WITHOUT])
@pytest.mark.parametrize("cache", [DynamicCache, StaticCache])
def test_cached_logits_are_the_full_pass_s_beside_every_encoding(name, cache):
    """Left padding included: what an encoding keeps in a cache, and what a number does, are kept apart."""
    model, ids, mask = beside(name), tokens(2, 20), torch.ones(2, 20, dtype=torch.long)
    mask[0, :4] = 0
    places = (mask.cumsum(-1) - 1).clamp_min(0)
    past = cache(config=model.config, **({"max_cache_len": 24} if cache is StaticCache else {}))
    with torch.no_grad():
        whole = model(ids, attention_mask=mask, position_ids=places).logits
        alone = model(ids[:1, 4:]).logits
        parts = [
            model(
                ids[:, at : at + 5],
                attention_mask=mask[:, : at + 5],
                position_ids=places[:, at : at + 5],
                past_key_values=past,
            ).logits
            for at in range(0, 20, 5)
        ]
    torch.testing.assert_close(torch.cat(parts, 1)[mask == 1], whole[mask == 1], rtol=0, atol=rounding(model, ids))
    torch.testing.assert_close(whole[:1, 4:], alone, rtol=0, atol=rounding(model, ids))


@pytest.mark.parametrize("name", WITHOUT)
def test_the_encoding_beside_it_does_what_it_did(name):
    """Without digits nothing is changed, to the last bit, with them something is; rows of the batch differ, which must
    not have angles and biases computed for each."""
    model, plain = beside(name), tiny_model(encoding=name)
    shared = {key.replace(".encoding.inner.", ".encoding."): value for key, value in model.state_dict().items()}
    plain.load_state_dict({key: value for key, value in shared.items() if ".encoding.digits." not in key})
    ids = torch.cat((tokens(2, 14), torch.tensor([[20, 21] * 7])))
    letters = ids % 17 + 3
    assert torch.equal(model(letters).logits, plain(letters).logits)
    assert not torch.equal(model(ids).logits, plain(ids).logits)
    found = model.model.encoding
    located = found.positions_for(torch.arange(14)[None], base.TokenContext(ids, None, 0, None))
    start, read = found.start(located), found.for_layers(located)
    if not found.reads_tokens:
        assert start is None or len(start) == 1
        assert read is None or len(read) == 1
    promised = ("translation_invariant", "cache_exact", "reads_tokens")
    assert all(getattr(found, each) == getattr(plain.model.encoding, each) for each in promised)


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_encoding_counts_by_what_it_remembers(name):
    """``remembers`` says how many integers place a token, and one where nothing is remembered: it is relied on here."""
    places = tiny_model(encoding=name).model.encoding.positions_for(
        torch.arange(5)[None], base.TokenContext(tokens(2, 5), None, 0, None)
    )
    assert places.shape[-1] == max(registry.build(tiny_config(encoding=name)).remembers, 1)


def test_digits_get_their_place_s_row_and_other_tokens_nothing():
    abacus = encoding(abacus_places=3).eval()
    torch.nn.init.normal_(abacus.digits.weight)
    places = torch.tensor([[[0, 0], [1, 1], [2, 2], [3, 3], [4, 4], [5, 90]]])
    added = abacus.embed(torch.zeros(1, 6, 32), places)[0]
    rows = abacus.digits.weight
    assert not added[0].any()
    assert torch.equal(added[1:4], rows)
    assert torch.equal(added[4], rows[2]) and torch.equal(added[5], rows[2]), "what lies beyond shares the last row"


def test_an_offset_is_drawn_in_training_for_all_digits_together():
    """Evenly from 0 .. shift, both ends included; decided by torch's seed, the same on any default device."""
    abacus = encoding(abacus_shift=3).train()
    with torch.no_grad():
        abacus.digits.weight.copy_(torch.arange(30)[:, None].expand(-1, 32))
    places = torch.tensor([[[0, 1], [1, 2], [2, 0]], [[0, 4], [1, 0], [2, 1]]])
    offsets = []
    for seed in range(200):
        torch.manual_seed(seed)
        with torch.device("meta"):
            added = abacus.embed(torch.zeros(2, 3, 32, device="cpu"), places)[..., 0]
        offset = int(added[0, 0])
        assert added.tolist() == [[offset, offset + 1, 0], [offset + 3, 0, offset]]
        offsets.append(offset)
    assert {offset: offsets.count(offset) > 25 for offset in offsets} == dict.fromkeys(range(4), True)
    added = abacus.eval().embed(torch.zeros(2, 3, 32), places)[..., 0]
    assert added.tolist() == [[0, 1, 0], [3, 0, 0]]


def test_only_what_draws_says_so():
    assert encoding(abacus_shift=3).draws and not encoding().draws
    assert registry.build(tiny_config(encoding="randpe", position_options=ABACUS)).draws
    abacus, before = encoding().train(), torch.get_rng_state()
    abacus.embed(torch.zeros(1, 1, 32), torch.tensor([[[0, 1]]]))
    assert torch.equal(torch.get_rng_state(), before)


def test_gradients_reach_the_rows_that_digits_read():
    model = beside("rope", abacus_places=9).train()
    ids = torch.tensor([[3, 20, 21, 4, 22, 5]])
    model(ids, labels=ids).loss.backward()
    moved = model.model.encoding.digits.weight.grad.abs().sum(-1) > 0
    assert moved.tolist() == [True, True] + [False] * 7


def test_a_number_that_is_generated_is_counted_on():
    """Greedy decoding of nothing but digits, through the cache and by full passes."""
    model, ids = beside("alibi"), torch.tensor([[3, 20, 4, 25, 26]])
    others = [token for token in range(61) if token not in DIGITS]
    made = model.generate(ids, max_new_tokens=12, do_sample=False, suppress_tokens=others, pad_token_id=0)
    full = ids
    for _ in range(12):
        logits = model(full, use_cache=False).logits[:, -1].index_fill(1, torch.tensor(others), -torch.inf)
        full = torch.cat((full, logits.argmax(-1, keepdim=True)), dim=1)
    assert torch.equal(made, full)


def test_embeddings_are_refused():
    with pytest.raises(ValueError, match="give input_ids, not inputs_embeds"):
        beside("rope")(inputs_embeds=torch.randn(1, 4, 32))


def test_skipped_positions_still_count_for_the_encoding_beside_it():
    """PoSE: a number goes on over a skip, and its distance grows."""
    model, ids = beside("rope"), tokens(1, 9)
    skipped = torch.arange(9)[None] + torch.tensor([0] * 4 + [50] * 5)
    assert not torch.equal(model(ids).logits, model(ids, position_ids=skipped).logits)
    assert not model.model.encoding.reads_tokens


def tokenizer(*words):
    vocabulary = {word: index for index, word in enumerate(words)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocabulary, [])))


@pytest.mark.parametrize(
    "words, expected",
    [
        (["[PAD]", *"0123456789", "+", "="], list(range(1, 11))),
        (["x", "1", "a", "0", "²"], [1, 3]),
        (["a", "b"], None),
        (["0", "1", "10"], None),
    ],
)
def test_digits_are_what_the_tokenizer_spells_so(words, expected):
    """A tokenizer that joins digits would hide places within its tokens, and does not decide."""
    for name in ("rope", "bipe_rope"):
        given = {**(tiny_config(encoding=name).position_options or {}), "abacus": True}
        found = encodings.options_for(name, given, tokenizer(*words))
        assert found == ({**given, "abacus_digits": expected} if expected else given)


def test_ids_that_are_given_stay_and_nobody_else_asks_the_tokenizer():
    given = {"abacus": True, "abacus_digits": [5]}
    assert encodings.options_for("rope", given, tokenizer=None) == given
    assert encodings.options_for("rope", {}, tokenizer=None) == {}


@pytest.mark.parametrize(
    "changes, field, words",
    [
        ({"abacus_digits": []}, "abacus_digits", "not known"),
        ({"abacus_digits": [-1, 3]}, "abacus_digits", "beyond the vocabulary of 61"),
        ({"abacus_digits": [3, 61]}, "abacus_digits", "beyond the vocabulary of 61"),
        ({"abacus_digits": None}, "abacus_digits", "not known"),
        ({"abacus_places": 0}, "abacus_places", "give 1 or more"),
        ({"abacus_shift": -1}, "abacus_shift", "0 or more"),
        ({"abacus_shift": 30}, "abacus_shift", "leave no place of the 30"),
        ({"abacus": False, "abacus_shift": 100, "abacus_places": 512}, "abacus_digits", "abacus: true, or remove it"),
        ({"abacus": 1}, "abacus", "give true or false"),
    ],
)
@pytest.mark.parametrize("name", ["rope", "bipe_alibi", "tape"])
def test_what_cannot_be(name, changes, field, words):
    with pytest.raises(ValueError, match=rf"(?s)position_options\.{field} = .*{words}"):
        tiny_config(encoding=name, position_options=options(name, **changes))


def test_no_llama_computes_it():
    """Neither is it measured as the Llama it stands beside, nor saved as one."""
    model = beside("rope")
    assert not encodings.is_plain(model.config) and encodings.llama_rope_parameters(model.config) is None
    with pytest.raises(ValueError, match="'abacus': True"):
        to_plain(model)
    ids = tokens(1, 9)
    plain = tiny_model(encoding="rope")
    plain.load_state_dict({key: value for key, value in model.state_dict().items() if ".encoding." not in key})
    with model.with_rope_parameters(model.config.rope_parameters):
        assert torch.equal(model(ids).logits, plain(ids).logits)


def test_scaled_to_a_length_it_keeps_its_table():
    """``yarn`` is measured at other angles with the embeddings that were trained; from within a plain block, which has
    none of them, that is refused."""
    model, ids = beside("yarn"), tokens(1, 30)
    before, table = model(ids).logits, model.model.encoding.digits
    config = encodings.config_at(model.config, 500)
    other = tiny_model(encoding="yarn", position_options=options("yarn"), rope_parameters=config.rope_parameters)
    other.load_state_dict(model.state_dict())
    with evaluated_at(model, 500):
        assert model.model.encoding.digits is table
        assert torch.equal(model(ids).logits, other(ids).logits)
    assert torch.equal(model(ids).logits, before) and not torch.equal(other(ids).logits, before)
    with (
        model.with_rope_parameters({"rope_type": "default", "rope_theta": 1e4}),
        pytest.raises(ValueError, match="has parameters of its own"),
        evaluated_at(model, 500),
    ):
        raise AssertionError("never reached")
