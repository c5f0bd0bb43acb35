"""A compiled block computes what it computed, in two graphs that serve every length, whatever else is asked of it."""

import copy

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import LlamaConfig, LlamaForCausalLM

from tape_ds.methods.compiled_blocks import compile_model
from tape_ds.methods.recompute import use_recompute
from tests.models.helpers import ENCODINGS, gradients, tiny_model, tokens

DAILY = ("rope",)
SHAPES = [(2, 33), (2, 48), (2, 17), (2, 64)]


def some(names):
    return [pytest.param(name, marks=[] if name in DAILY else [pytest.mark.slow]) for name in names]


def outcome(model, ids, **inputs):
    """Loss and gradients of one step; what is drawn is drawn alike."""
    model.zero_grad()
    torch.manual_seed(1)
    loss = model(ids, labels=ids, use_cache=False, **inputs).loss
    loss.backward()
    return {"loss": loss.detach(), **gradients(model)}


def pair(encoding="tape", **changes):
    """A model, the same compiled, and what counts its graphs."""
    plain = tiny_model(encoding=encoding, **changes).train()
    mine = copy.deepcopy(plain)
    counter = CompileCounterWithBackend("aot_eager")
    said = compile_model(mine, backend=counter, mode=None)
    assert said == f"compiled: {plain.config.num_hidden_layers} blocks"
    return plain, mine, counter


@pytest.mark.filterwarnings("ignore:Dynamo detected a call")
@pytest.mark.parametrize("encoding", some(ENCODINGS))
def test_a_step_of_any_length_is_the_plain_one_and_graphs_are_shared(encoding):
    """Kinds of blocks: the first has no position state before it, the last updates none, and some encodings have layers
    of their own."""
    plain, mine, counter = pair(encoding, num_hidden_layers=4)
    graphs = []
    for batch, length in SHAPES:
        ids = tokens(batch, length)
        torch.testing.assert_close(outcome(mine, ids), outcome(plain, ids), rtol=0, atol=1e-6)
        graphs.append(counter.frame_count)
    kinds = 3 if encoding.startswith("tape") else 2
    if mine.model.layers[0].position.biases_scores:
        kinds *= 2  # two graphs a block, around attention
    assert graphs[0] <= kinds
    assert graphs[1:] == [2 * graphs[0]] * (len(SHAPES) - 1), (
        "one for the first length, and one for all others"
    )


@pytest.mark.parametrize("encoding", some(["rope", "tape"]))
@pytest.mark.parametrize("layers", [1, "selective"])
def test_blocks_that_are_computed_again(layers, encoding):
    plain, mine, _ = pair(encoding)
    for model in (plain, mine):
        use_recompute(model, layers)
    ids = tokens(2, 24)
    torch.testing.assert_close(outcome(mine, ids), outcome(plain, ids), rtol=0, atol=1e-6)


@pytest.mark.parametrize("encoding", some(["rope", "tape"]))
def test_packed_rows(encoding):
    """Their documents are attention's, so rows that are packed otherwise need no other graph."""
    plain, mine, counter = pair(encoding)
    ids = tokens(2, 24)
    graphs = []
    for lengths in ([7, 17], [3, 8, 13]):
        documents = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).int()
        places = torch.cat([torch.arange(length) for length in lengths])
        packed = {"document_ids": documents.expand(2, -1), "position_ids": places.expand(2, -1)}
        found = [outcome(model, ids, **packed) for model in (mine, plain)]
        torch.testing.assert_close(*found, rtol=0, atol=1e-6)
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[1]


def test_scoring_and_generation_are_the_plain_ones():
    plain, mine, counter = pair()
    plain.eval()
    mine.eval()
    ids = tokens(1, 9)
    assert torch.equal(mine(ids).logits, plain(ids).logits)
    assert torch.equal(mine.generate(ids, max_new_tokens=4), plain.generate(ids, max_new_tokens=4))
    assert counter.frame_count == 0


def test_a_model_of_transformers_is_compiled_as_a_whole():
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 97}
    plain = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2)).train()
    mine = copy.deepcopy(plain)
    counter = CompileCounterWithBackend("aot_eager")
    assert compile_model(mine, backend=counter, mode=None) == "compiled: the model as a whole"
    ids = tokens(2, 9)
    torch.testing.assert_close(outcome(mine, ids), outcome(plain, ids), rtol=0, atol=1e-6)
    graphs = counter.frame_count
    assert graphs > 0
    assert torch.equal(mine.eval()(ids).logits, plain.eval()(ids).logits)
    assert counter.frame_count == graphs
