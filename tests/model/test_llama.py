"""The model as a whole: equal to Llama, blind to offsets and padding, honest about what it returns."""

import pytest
import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tape_ds import TapeForCausalLM
from tape_ds.model import attention, convert
from tape_ds.model.llama import plain_rope
from tests.model.helpers import (
    ENCODINGS,
    HEADS,
    SIZES,
    gradients,
    largest_difference,
    randomised,
    tiny_config,
    tiny_model,
    tokens,
)

# fp32 logits of order 1 from two programs that sum in different orders; the error grows slowly with the keys per row.
LLAMA_TOLERANCE = {17: 3e-6, 64: 5e-6, 1000: 1e-5}


@pytest.fixture(params=["reference", "sdpa", "sdpa by document"])
def backend(request, monkeypatch):
    """Every way to attend with a mask, at tiny sizes."""
    if request.param == "sdpa by document":
        monkeypatch.setattr(attention, "MASK_ENTRIES", 0)
    return request.param.split(" ")[0]


def llama_like(model: TapeForCausalLM) -> LlamaForCausalLM:
    """transformers' Llama with the model's Llama parameters."""
    names = set(LlamaConfig.__dataclass_fields__)
    llama = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in model.config.to_dict().items() if k in names})).eval()
    llama.load_state_dict({name: x for name, x in model.state_dict().items() if ".position." not in name})
    return llama


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("encoding", ["rope", "mix", "scale"])
def test_a_fresh_model_is_a_llama(encoding, heads, tied):
    """Position updates start at zero effect: before training, extending costs nothing."""
    model = TapeForCausalLM(tiny_config(heads, encoding, tie_word_embeddings=tied)).eval()
    llama = llama_like(model)
    with torch.no_grad():
        for length, tolerance in LLAMA_TOLERANCE.items():
            ids = tokens(1, length)
            torch.testing.assert_close(model(ids).logits, llama(ids).logits, rtol=0, atol=tolerance)


def test_random_updates_do_change_the_logits():
    """The tests around this one would all pass if the updates were never read."""
    model, ids = tiny_model(), tokens(1, 17)
    assert (model(ids).logits - llama_like(model)(ids).logits).abs().max() > 0.05


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_later_tokens_change_nothing_earlier(encoding, backend):
    model = tiny_model(encoding=encoding, attention_backend=backend)
    ids = tokens(2, 20)
    other = ids.clone()
    other[:, 12:] = tokens(2, 8)
    documents = torch.tensor([[0] * 20, [0] * 7 + [1] * 13])
    for arguments in ({}, {"document_ids": documents}):
        first, second = (model(x, **arguments).logits for x in (ids, other))
        assert torch.equal(first[:, :12], second[:, :12])
        assert not torch.equal(first[:, 12:], second[:, 12:])


@pytest.mark.parametrize("shift", [1, 1000, 130_000])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_shift_of_all_positions_changes_nothing(encoding, shift):
    """Only distances count. (Angles are rounded to fp32 after the shift, hence not to the last bit.)"""
    model, ids = tiny_model(encoding=encoding), tokens(2, 33)
    places = torch.arange(33)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, model(ids, position_ids=places + shift).logits, rtol=0, atol=2e-5)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("side", ["left", "right", "holes"])
def test_padding_changes_no_real_token(side, encoding, backend):
    model = tiny_model(encoding=encoding, attention_backend=backend)
    ids = tokens(1, 12)
    real = {"left": list(range(5, 17)), "right": list(range(12)), "holes": [0, 1, 2, 5, 6, 8, 9, 10, 11, 13, 14, 16]}
    mask, padded, places = torch.zeros(1, 17, dtype=torch.long), tokens(1, 17), torch.zeros(1, 17, dtype=torch.long)
    mask[:, real[side]], padded[:, real[side]], places[:, real[side]] = 1, ids, torch.arange(12)
    alone = model(ids).logits
    together = model(torch.cat((padded, tokens(1, 17))), torch.cat((mask, torch.ones_like(mask))), places).logits
    torch.testing.assert_close(together[:1, real[side]], alone, rtol=0, atol=5e-6)
    assert together.isfinite().all()


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_packed_documents_are_separate_runs(encoding, checkpointing, backend):
    """Documents may be interleaved, and position ids go straight through a border: it comes from document ids alone."""
    model = tiny_model(encoding=encoding, attention_backend=backend).train(checkpointing)
    if checkpointing:
        model.gradient_checkpointing_enable()
    ids = tokens(1, 20)
    documents = torch.tensor([[0] * 6 + [1] * 5 + [0] * 2 + [-1] * 2 + [2] * 5], dtype=torch.int32)
    packed = model(ids, document_ids=documents).logits
    for document in range(3):
        places = (documents[0] == document).nonzero()[:, 0]
        alone = model(ids[:, places], position_ids=places[None]).logits
        torch.testing.assert_close(packed[:, places], alone, rtol=0, atol=5e-6)


def test_mask_and_documents_together():
    """Padding may come from either: the model sees the same."""
    model, ids = tiny_model(), tokens(2, 10)
    mask = torch.ones(2, 10)
    mask[0, :2], mask[1, 8:] = 0, 0
    documents = torch.tensor([[0] * 4 + [1] * 6, [0] * 7 + [1] * 3])
    whole = model(ids, document_ids=documents.masked_fill(mask == 0, -1)).logits
    for kind in (torch.float32, torch.bool, torch.int64):
        assert torch.equal(model(ids, mask.to(kind), document_ids=documents).logits, whole)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("encoding", ["rope", "mix"])
def test_a_jump_in_position_ids_cuts_nothing(encoding, checkpointing):
    """transformers' own mask code takes a jump (PoSE) for a new document when there is no mask and no cache."""
    model = tiny_model(encoding=encoding).train(checkpointing)
    if checkpointing:
        model.gradient_checkpointing_enable()
    ids = tokens(1, 16)
    places = torch.cat((torch.arange(8), torch.arange(8) + 40))[None]
    plain = model(ids, position_ids=places).logits
    torch.testing.assert_close(plain, model(ids, torch.ones_like(ids), places).logits, rtol=0, atol=0)
    changed = ids.clone()
    changed[:, 0] = (ids[:, 0] + 1) % 50
    assert (model(changed, position_ids=places).logits[:, 8:] - plain[:, 8:]).abs().max() > 1e-4
    if encoding == "rope":
        llama = llama_like(model)(ids, attention_mask=torch.ones_like(ids), position_ids=places).logits
        torch.testing.assert_close(plain, llama, rtol=0, atol=5e-6)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nothing_leaves_padding(side, value, backend):
    """Real logits, the loss and every gradient are those of padding that holds zeros."""
    model = tiny_model(attention_backend=backend)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, slice(0, 4) if side == "left" else slice(8, 12)] = 0
    labels = tokens(2, 12).masked_fill(mask == 0, -100)
    embeddings = torch.randn(2, 12, 32)
    outcomes = []
    for filler in (0.0, value):
        model.zero_grad()
        x = embeddings.masked_fill(mask[..., None] == 0, filler)
        out = model(inputs_embeds=x, attention_mask=mask, labels=labels)
        out.loss.backward()
        outcomes.append((out.logits[mask == 1], out.loss, gradients(model)))
    assert torch.equal(outcomes[0][0], outcomes[1][0])
    assert torch.equal(outcomes[0][1], outcomes[1][1])
    assert largest_difference(outcomes[1][2], outcomes[0][2]) == 0


def test_labels_and_items_in_batch():
    """-100 predicts nothing; with ``num_items_in_batch`` the sum is divided by it, so that accumulation is exact."""
    model, ids = tiny_model(), tokens(2, 10)
    labels = ids.clone()
    labels[:, :4] = -100
    out = model(ids, labels=labels)
    each = F.cross_entropy(out.logits[:, 3:-1].flatten(0, 1), ids[:, 4:].flatten(), reduction="none")
    torch.testing.assert_close(out.loss, each.mean())
    torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=7).loss, each.sum() / 7)
    torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=torch.tensor(7)).loss, each.sum() / 7)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("heads", HEADS)
def test_checkpointing_gives_the_same_gradients(heads, encoding):
    """The published code trained none of its position parameters: checkpointing lost tensors inside tuples."""
    model = tiny_model(heads, encoding).train()
    ids = tokens(2, 12)
    outcomes = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        outcomes.append(gradients(model))
    assert outcomes[0].keys() == {name for name, _ in model.named_parameters()}
    assert all(gradient.abs().max() > 0 for gradient in outcomes[0].values())
    assert largest_difference(outcomes[1], outcomes[0]) < 1e-6


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_gradients_are_the_slopes_of_the_loss(heads, encoding, monkeypatch):
    """Finite differences in fp64, one parameter at a time: a path cut anywhere (a detached state) shows here alone."""

    def rms(norm, x):  # transformers' own computes in fp32
        return F.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)

    monkeypatch.setattr(LlamaRMSNorm, "forward", rms)
    model, ids = tiny_model(heads, encoding).double(), tokens(2, 12)

    def loss():
        return F.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    loss().backward()
    for name, weight in model.named_parameters():
        direction, step, losses = torch.randn_like(weight), 1e-5, []
        with torch.no_grad():
            for sign in (1, -2):
                weight += sign * step * direction
                losses.append(loss().item())
            weight += step * direction
        slope = (losses[0] - losses[1]) / (2 * step)
        assert slope == pytest.approx((weight.grad * direction).sum().item(), rel=1e-4, abs=1e-7), name


def test_plain_rope_is_the_llama_inside_the_block_and_the_model_after_it():
    """Evaluation measures what a model was before its extension without loading it twice."""
    model, ids = tiny_model(), tokens(1, 17)
    before, names = model(ids).logits, set(model.state_dict())
    parameters = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
    with plain_rope(model, parameters):
        inside = model(ids).logits
    llama = llama_like(model)
    config = LlamaConfig(**(llama.config.to_dict() | {"rope_parameters": parameters}))
    scaled = LlamaForCausalLM(config).eval()
    scaled.load_state_dict(llama.state_dict())
    torch.testing.assert_close(inside, scaled(ids).logits, rtol=0, atol=5e-6)
    with pytest.raises(KeyboardInterrupt), plain_rope(model, parameters):
        raise KeyboardInterrupt
    assert torch.equal(model(ids).logits, before)
    assert set(model.state_dict()) == names


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_parameter_moves_within_two_steps(encoding, checkpointing):
    """Zero factors rightly block their partners' gradients at step 0, and at no later step."""
    model = TapeForCausalLM(tiny_config(encoding=encoding)).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer, ids = torch.optim.SGD(model.parameters(), lr=0.1), tokens(2, 12)
    for _ in range(2):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    assert not [name for name, weight in model.named_parameters() if torch.equal(weight, before[name])]


def test_bf16_is_finite_and_close():
    model, ids = tiny_model(), tokens(2, 64)
    exact = model(ids).logits
    half = randomised(model).bfloat16()(ids).logits
    assert half.isfinite().all()
    assert (half.float() - exact).abs().mean() < 0.02 * exact.abs().mean() + 0.02


def test_autocast_trains():
    model, ids = tiny_model().train(), tokens(2, 16)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, labels=ids).loss
    loss.backward()
    assert all(gradient.isfinite().all() and gradient.abs().max() > 0 for gradient in gradients(model).values())


@pytest.mark.parametrize("encoding", ["rope", "mix"])
def test_a_model_can_be_planned_on_the_meta_device(encoding):
    """Memory estimates need sizes without weights; the angles must not follow onto that device."""
    with torch.device("meta"):
        model = TapeForCausalLM(tiny_config(encoding=encoding))
    assert all(weight.is_meta for weight in model.parameters())
    real = tiny_model(encoding=encoding)
    model.load_state_dict(real.state_dict(), assign=True)
    ids = tokens(1, 9)
    assert torch.equal(model.eval()(ids).logits, real(ids).logits)


def test_double_precision_reaches_the_whole_model():
    """What is left between fp32 and fp64 is fp32 rounding: no path falls back to a lower precision."""
    model, ids = tiny_model(), tokens(1, 32)
    single = model(ids).logits
    torch.testing.assert_close(model.double()(ids).logits.float(), single, rtol=0, atol=5e-6)


def test_converted_weights_keep_their_names():
    names = {name for name in tiny_model().state_dict() if ".position." not in name}
    sizes = {name: value for name, value in SIZES.items() if name in LlamaConfig.__dataclass_fields__}
    assert names == set(LlamaForCausalLM(LlamaConfig(**(sizes | HEADS["gqa"]))).state_dict())
    assert convert.to_llama(tiny_model(encoding="rope")).state_dict().keys() == names
