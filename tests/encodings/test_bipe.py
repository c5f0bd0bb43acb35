"""``bipe_rope`` and ``bipe_alibi``: segments by hand-written examples, through documents, padding and a cache."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from tape_ds import encodings
from tape_ds.encodings import base, registry
from tape_ds.encodings.bipe import count_segments
from tape_ds.errors import UserError
from tests.models.helpers import tiny_config, tiny_model, tokens

# A letter for each token; '.' and ';' end a segment (and belong to it).
EXAMPLES = {
    "abcd": ([0, 0, 0, 0], [0, 1, 2, 3]),
    ".ab;c.": ([0, 1, 1, 1, 2, 2], [0, 0, 1, 2, 0, 1]),
    "a..b": ([0, 0, 1, 2], [0, 1, 0, 0]),
}


def ids_of(text):
    return torch.tensor(
        [[{".": 7, ";": 11}.get(letter, ord(letter) - ord("a") + 20) for letter in text]]
    )


def encoding(name="bipe_rope"):
    return registry.build(tiny_config(encoding=name))


def located(ids, documents=None, offset=0, past=None):
    """(segment, place within it, whether it ends it) of each token."""
    text = base.TokenContext(ids, documents, offset, past)
    return encoding().positions_for(torch.zeros(1, ids.shape[1], dtype=torch.long), text)


@pytest.mark.parametrize("text", EXAMPLES)
def test_segments(text):
    segments, places = EXAMPLES[text]
    found = located(ids_of(text))[0]
    assert found[:, 0].tolist() == segments
    assert found[:, 1].tolist() == places
    assert found[:, 2].tolist() == [letter in ".;" for letter in text]


def test_counting_against_a_loop():
    """Random separators in random, interleaved documents, token by token."""
    ends, documents = torch.randint(2, (5, 40)), torch.randint(-1, 4, (5, 40))
    segments, places = count_segments(ends, documents)
    for row in range(5):
        seen = {}
        for t in range(40):
            document = int(documents[row, t])
            segment, place = seen.get(document, (0, 0))
            assert (int(segments[row, t]), int(places[row, t])) == (segment, place)
            seen[document] = (segment + 1, 0) if ends[row, t] else (segment, place + 1)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("cut", [4, 5])
def test_a_cache_continues_the_count(cut, static):
    """Wherever the text is cut; in a compiled static cache the offset is a tensor, the buffer longer than the text."""
    ids = ids_of("ab.c.de.f")
    documents = torch.tensor([[0, 1, 1, 0, 0, -1, 1, 1, 0]])
    whole = located(ids, documents)
    first = located(ids[:, :cut], documents[:, :cut])
    offset = cut
    if static:
        offset, documents = torch.tensor(cut), torch.nn.functional.pad(documents, (0, 4), value=-1)
        first = torch.nn.functional.pad(first, (0, 0, 0, 13 - cut))
    assert torch.equal(located(ids[:, cut:], documents, offset, first), whole[:, cut:])


def test_position_ids_are_not_read():
    """Skipped positions (PoSE) mean nothing where segments are counted."""
    model, ids = tiny_model(encoding="bipe_rope"), tokens(1, 9)
    skipped = torch.arange(9)[None] * 100
    assert torch.equal(model(ids).logits, model(ids, position_ids=skipped).logits)


@pytest.mark.parametrize("name", ["bipe_rope", "rope abacus"])
def test_embeddings_without_ids_are_refused(name):
    model = tiny_model(encoding=name)
    with pytest.raises(ValueError, match="give input_ids, not inputs_embeds"):
        model(inputs_embeds=torch.randn(1, 4, 32))


def test_places_beyond_the_table_share_its_last_row():
    bipe = encoding()
    places = torch.tensor([[[0, 0, 0], [0, 4, 0], [0, 5, 0], [0, 6, 0], [0, 900, 0]]])
    torch.nn.init.normal_(bipe.intra.weight)
    added = bipe.embed(torch.zeros(1, 5, 32), places)[0]
    assert torch.equal(added[0], bipe.intra.weight[0])
    assert torch.equal(added[1], bipe.intra.weight[4])
    assert all(torch.equal(added[row], bipe.intra.weight[5]) for row in (2, 3, 4))


def byte_level():
    """Spells a line end as GPT-2 and Llama 3 do; its vocabulary has holes."""
    vocabulary = {"a": 0, ".": 1, "Ġ.": 2, "Ċ": 3, "..": 4, "Ġ": 5, "ĊĊ": 6, ".Ċ": 9, "Ġ.Ġ": 17}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def sentence_piece():
    """Spells a line end as Llama 2 does, as a byte."""
    vocabulary = {"<unk>": 0, "▁.": 1, ".": 2, "<0x0A>": 3, "▁": 4, "a": 5, "<0x2E>": 6}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    tokenizer.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize(
    "make, expected", [(byte_level, [1, 2, 3, 17]), (sentence_piece, [1, 2, 3, 6])]
)
def test_separators_are_what_the_tokenizer_spells_so(make, expected):
    """A full stop or line end, with or without the mark of a word's beginning, and nothing longer."""
    assert encodings.options_for("bipe_rope", {}, make()) == {"separators": expected}
    assert encodings.options_for("bipe_alibi", {"separators": [0]}, make()) == {"separators": [0]}


@pytest.mark.parametrize("separators", [None, [-1, 3], [3, 61]])
def test_separators_are_ids_of_the_vocabulary(separators):
    with pytest.raises(UserError, match=r"position_options\.separators"):
        tiny_config(encoding="bipe_rope", position_options={"separators": separators})
    assert tiny_config(encoding="bipe_rope", position_options={"separators": [0, 60]})
