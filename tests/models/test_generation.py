"""Generation: whatever the cache, the chunking and the padding, a token is the one the full pass would give."""

import itertools

import pytest
import torch
from transformers import DynamicCache, StaticCache

from tests.models.helpers import (
    CACHE_EXACT,
    MODELS,
    WITH_EVERY_HEADS,
    needs_ids,
    rounding,
    tiny_model,
    tokens,
)

NEW = 12


def generate(model, ids, **arguments):
    """Greedy by default, always NEW tokens, so that outputs can be compared."""
    settings = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    return model.generate(ids, **(settings | arguments))


def greedy_by_full_passes(model, ids):
    """The definition: one full pass per token, no cache, no ``generate``."""
    for _ in range(NEW):
        logits = model(ids, use_cache=False).logits[:, -1]
        logits[:, 2] = -torch.inf  # min_new_tokens forbids the end token
        ids = torch.cat((ids, logits.argmax(-1, keepdim=True)), dim=1)
    return ids


@pytest.fixture(params=[pair for pair in MODELS if pair[1] in CACHE_EXACT], ids=" ".join)
def model(request):
    return tiny_model(*request.param)


@pytest.fixture(params=[*WITH_EVERY_HEADS, "t5", "xpos", "tape flattened"])
def kind(request):
    """A model for each thing that a cache may hold: for what transformers does with caches, whatever is in them."""
    return tiny_model(encoding=request.param)


CACHES = {
    "dynamic": lambda model: DynamicCache(config=model.config),
    "dynamic without a configuration": lambda model: DynamicCache(),
    "static": lambda model: StaticCache(config=model.config, max_cache_len=40),
}


@pytest.mark.parametrize(
    "cache, cuts",
    [
        ("dynamic", [0, 7, 9, 10, 24]),
        ("dynamic without a configuration", [0, 24]),
        ("static", [0, 7, 9, 10, 24]),
    ],
)
def test_cached_logits_are_the_full_pass_s(model, cache, cuts):
    """A cached position state must be the one the full pass has at that place: value columns ride in the cache."""
    ids = tokens(2, 24)
    past, parts = CACHES[cache](model), []
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        for start, stop in itertools.pairwise(cuts):
            out = model(ids[:, start:stop], past_key_values=past)
            assert out.past_key_values is past
            assert int(past.get_seq_length()) == stop
            parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=rounding(model, ids))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_cached_logits_of_a_padded_batch(model, cache, side):
    """Padding that holds NaN embeddings (other tokens, where those are read) and sits in the cache for ever reaches no
    later token."""
    ids, mask = tokens(2, 24), torch.ones(2, 24, dtype=torch.long)
    padding = slice(0, 5) if side == "left" else slice(8, 13)
    mask[0, padding] = 0
    places = (mask.cumsum(-1) - 1).clamp_min(0)
    if needs_ids(model):
        name, given = "input_ids", ids
    else:
        name = "inputs_embeds"
        given = model.get_input_embeddings()(ids).masked_fill(mask[..., None] == 0, float("nan"))
    past, parts = CACHES[cache](model), []
    with torch.no_grad():
        whole = model(**{name: given}, attention_mask=mask, position_ids=places).logits
        alone = model(ids[:1, mask[0] == 1]).logits
        for start, stop in itertools.pairwise([0, 13, 14, 15, 20, 24]):
            at = slice(start, stop)
            arguments = {
                name: given[:, at],
                "attention_mask": mask[:, :stop],
                "position_ids": places[:, at],
            }
            parts.append(model(**arguments, past_key_values=past).logits)
    cached = torch.cat(parts, dim=1)
    # twice the others' tolerance: FoX's sums of order 10 are rounded to fp32 when they go into a cache
    room = 2 * rounding(model, ids)
    torch.testing.assert_close(cached[mask == 1], whole[mask == 1], rtol=0, atol=room)
    torch.testing.assert_close(cached[:1, mask[0] == 1], alone, rtol=0, atol=room)


@pytest.mark.parametrize("encoding", CACHE_EXACT)
def test_decoding_in_bf16_is_as_close_as_the_full_pass(encoding):
    """One query's scores were formed in bf16, which rounds off what fox adds: 0.6 where the full pass has 0.015."""
    model, ids = tiny_model(encoding=encoding), tokens(1, 150)
    exact = model(ids).logits[:, -1]
    model, past = model.bfloat16(), DynamicCache(config=model.config)
    model(ids[:, :-1], past_key_values=past, use_cache=True)
    full, decoded = (
        model(ids).logits[:, -1],
        model(ids[:, -1:], past_key_values=past, use_cache=True).logits[:, -1],
    )
    far, farther = ((each.float() - exact).norm() / exact.norm() for each in (full, decoded))
    assert farther < 3 * far + 0.02


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_packed_documents_continue_in_a_cache(model, cache):
    ids = tokens(2, 24)
    documents = torch.tensor(
        [[0] * 5 + [1] * 9 + [0] * 4 + [-1] * 2 + [2] * 4, [0] * 24], dtype=torch.int32
    )
    past, parts = CACHES[cache](model), []
    for start, stop in itertools.pairwise([0, 10, 11, 12, 24]):
        part = model(ids[:, start:stop], document_ids=documents[:, :stop], past_key_values=past)
        parts.append(part.logits)
    cached, whole, real = (
        torch.cat(parts, 1),
        model(ids, document_ids=documents).logits,
        documents >= 0,
    )
    torch.testing.assert_close(cached[real], whole[real], rtol=0, atol=rounding(model, ids))


@pytest.mark.filterwarnings("ignore:Dynamo detected a call")
@pytest.mark.parametrize(
    "encoding", ["tape", "cope", "fox", "bipe_alibi", "rope abacus", "rope log scale"]
)
def test_a_compiled_model_counts_a_static_cache_in_a_tensor(encoding):
    """Inside a graph the cache's length is a tensor and no shape may follow it, so ``generate`` pads the mask to the
    cache's length; the logits stay those of the full pass. (BiPE and Abacus read the places of their cache there, and
    ALiBi's bias blocks.)"""
    model, ids = tiny_model(encoding=encoding, num_hidden_layers=2), tokens(1, 12)
    mask = torch.ones_like(ids)
    mask[:, :3] = 0
    past, parts = StaticCache(config=model.config, max_cache_len=16), []
    compiled = torch.compile(model.forward, backend="eager")
    with torch.no_grad():
        for start, stop in itertools.pairwise([0, 9, 10, 11, 12]):
            padded = model.create_masks_for_generate(model.config, None, mask[:, :stop], past)
            assert padded.shape == (1, 16)
            parts.append(
                compiled(ids[:, start:stop], attention_mask=padded, past_key_values=past).logits
            )
        whole = model(ids[:, 3:]).logits
    torch.testing.assert_close(torch.cat(parts, 1)[:, 3:], whole, rtol=0, atol=rounding(model, ids))


@pytest.mark.parametrize("arguments", [{"use_cache": False}, {"prefill_chunk_size": 4}], ids=str)
def test_greedy(kind, arguments):
    ids = tokens(2, 11)
    assert torch.equal(generate(kind, ids, **arguments), greedy_by_full_passes(kind, ids))


@pytest.mark.parametrize("cache, chunk", [(None, None), ("static", 3)])
def test_a_left_padded_batch_gives_each_its_own(model, cache, chunk):
    ids = tokens(3, 10)
    mask = torch.ones_like(ids)
    mask[1, :4], mask[2, :9] = 0, 0
    ids = ids.masked_fill(mask == 0, 0)
    out = generate(
        model, ids, attention_mask=mask, cache_implementation=cache, prefill_chunk_size=chunk
    )
    for row in range(3):
        alone = greedy_by_full_passes(model, ids[row : row + 1, mask[row] == 1])
        assert torch.equal(out[row, 10:], alone[0, -NEW:])


def test_beams_reorder_the_cache(kind):
    """Beams swap rows of the cache: the state in the value's columns must go with its row."""
    model, ids = kind, tokens(2, 9)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    settings = {
        "num_beams": 3,
        "attention_mask": mask,
        "output_scores": True,
        "return_dict_in_generate": True,
    }
    with_cache, without = (generate(model, ids, use_cache=use, **settings) for use in (True, False))
    assert torch.equal(with_cache.sequences, without.sequences)
    torch.testing.assert_close(
        with_cache.sequences_scores, without.sequences_scores, rtol=0, atol=1e-5
    )


def test_assisted_decoding_is_greedy(kind):
    """Rejected drafts are cut off the cache again."""
    ids, assistant = tokens(1, 9), tiny_model("mha", "rope", num_hidden_layers=1)
    assert torch.equal(
        generate(kind, ids, assistant_model=assistant), greedy_by_full_passes(kind, ids)
    )


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation_continues_from_a_cache(kind, cache):
    """A chat: the next turn passes the cache of the last one and only adds to it."""
    past = CACHES[cache](kind)
    first = generate(kind, tokens(1, 6), past_key_values=past, max_new_tokens=5, min_new_tokens=5)
    turn = torch.cat((first, tokens(1, 3)), dim=1)
    assert torch.equal(
        generate(kind, turn, past_key_values=past), greedy_by_full_passes(kind, turn)
    )


def test_a_static_cache_can_be_used_again_after_a_reset(kind):
    """The rest of an earlier, longer text is after the last query and never seen."""
    past, ids = StaticCache(config=kind.config, max_cache_len=30), tokens(1, 9)
    kind(tokens(1, 28), past_key_values=past)
    past.reset()
    found = kind(ids, past_key_values=past).logits
    torch.testing.assert_close(found, kind(ids).logits, rtol=0, atol=rounding(kind, ids))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_dynamic_scaling_is_exact_within_its_window(cache):
    """Beyond it the base that the prompt fixed stays, which the full pass would not use: see positions/test_rope.py."""
    rope_parameters = {
        "rope_type": "dynamic",
        "rope_theta": 1e4,
        "factor": 2.0,
        "original_max_position_embeddings": 24,
    }
    model = tiny_model(encoding="rope", rope_parameters=rope_parameters)
    ids = tokens(2, 11)
    out = generate(model, ids, cache_implementation=cache)
    assert out.shape[1] == 23 and torch.equal(out, greedy_by_full_passes(model, ids))
