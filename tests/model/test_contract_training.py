"""What every encoding promises when it is trained: right gradients, for all of its parameters, in every precision."""

import pytest
import torch
from torch.nn import functional as F

from tape_ds import TapeForCausalLM
from tests.model.helpers import (
    ENCODINGS,
    MODELS,
    gradients,
    largest_difference,
    norms_in_own_dtype,
    tiny_config,
    tiny_model,
    tokens,
)

# Added to all scores of a query alike, and a softmax takes no notice: its gradient is 0 but for rounding.
WITHOUT_GRADIENT = (".network.bias_out",)


@pytest.mark.parametrize("heads, encoding", MODELS)
def test_checkpointing_gives_the_same_gradients(heads, encoding):
    """The published code trained none of its position parameters: checkpointing lost tensors inside tuples."""
    # In fp64: the two ways add a state's gradients up in different orders, which fp32 shows as 1e-6.
    model = tiny_model(heads, encoding).double().train()
    ids = tokens(2, 12)
    outcomes = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(0)  # for the encodings that draw
        model(ids, labels=ids).loss.backward()
        outcomes.append(gradients(model))
    assert outcomes[0].keys() == {name for name, _ in model.named_parameters()}
    assert all(gradient.abs().max() > 0 for gradient in outcomes[0].values())
    assert largest_difference(outcomes[1], outcomes[0]) < 1e-12


@pytest.mark.parametrize("heads, encoding", MODELS)
def test_gradients_are_the_slopes_of_the_loss(heads, encoding, monkeypatch):
    """Finite differences in fp64, one kind of parameter at a time: a path cut anywhere (a detached state) shows here
    alone."""
    norms_in_own_dtype(monkeypatch)
    model, ids = tiny_model(heads, encoding).double(), tokens(2, 12)

    def loss():
        return F.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    loss().backward()
    kinds = {}
    for name, weight in model.named_parameters():
        kind = ".".join(part for part in name.split(".") if not part.isdigit())
        kinds.setdefault(kind, []).append((weight, torch.randn_like(weight)))
    for kind, moves in kinds.items():
        step, losses = 1e-6, []
        with torch.no_grad():
            for sign in (1, -2, 1):
                for weight, direction in moves:
                    weight += sign * step * direction
                if len(losses) < 2:
                    losses.append(loss().item())
        slope = (losses[0] - losses[1]) / (2 * step)
        expected = sum((weight.grad * direction).sum().item() for weight, direction in moves)
        assert slope == pytest.approx(expected, rel=1e-4, abs=2e-7), kind


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_parameter_moves_within_a_few_steps(encoding, checkpointing):
    """Zero factors rightly block their partners' gradients at step 0, and at no later step.

    Where states stay rotations, the feed-forward has nothing to mix until attention has made the heads' states differ:
    its zero factor waits for a step, its partners for another one.
    """
    steps = 4 if encoding.startswith("tape unit") else 2
    model = TapeForCausalLM(tiny_config(encoding=encoding)).double().train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer, ids = torch.optim.SGD(model.parameters(), lr=0.1), tokens(2, 12)
    for _ in range(steps):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    still = {name for name, weight in model.named_parameters() if torch.equal(weight, before[name])}
    assert {name for name in still if not name.endswith(WITHOUT_GRADIENT)} == set()


def test_what_need_not_move_has_no_gradient():
    """The exception above is one of the published network's parameters, kept for its checkpoints."""
    model, ids = tiny_model(encoding="fire").double(), tokens(2, 12)
    model(ids, labels=ids).loss.backward()
    exempt = {name: grad for name, grad in gradients(model).items() if name.endswith(WITHOUT_GRADIENT)}
    assert len(exempt) == 3
    assert max(float(gradient.abs().max()) for gradient in exempt.values()) < 1e-9


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bf16_is_finite_and_close(encoding):
    """Logits, loss and every gradient; means, because single entries move by a bf16 step of the largest activation."""
    model, ids, outcomes = tiny_model(encoding=encoding), tokens(2, 64), []
    for dtype in (torch.float32, torch.bfloat16):
        model = model.to(dtype)
        model.zero_grad()
        out = model(ids, labels=ids)
        out.loss.backward()
        assert out.logits.dtype == dtype and out.logits.isfinite().all()
        outcomes.append((out.logits.float(), out.loss.float(), gradients(model)))
    exact, half = outcomes
    assert (half[0] - exact[0]).abs().mean() < 0.02 * exact[0].abs().mean() + 0.02
    torch.testing.assert_close(half[1], exact[1], rtol=0.01, atol=0)
    for name, gradient in half[2].items():
        assert gradient.isfinite().all()
        error = (gradient.float() - exact[2][name]).abs().mean()
        # Four scalars are a small sample: over 60 of them, rounded as here or after every step, 0.2 was the largest.
        few = gradient.numel() < 8
        assert error < (0.25 if few else 0.1) * exact[2][name].abs().mean() + 1e-4, name


@pytest.mark.parametrize("encoding", ["tape", "alibi", "fire", "cope", "bipe_rope", "tape from alibi"])
def test_autocast_trains(encoding):
    model, ids = tiny_model(encoding=encoding).train(), tokens(2, 16)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, labels=ids).loss
    loss.backward()
    assert all(gradient.isfinite().all() and gradient.abs().max() > 0 for gradient in gradients(model).values())


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_training_is_reproducible(encoding):
    """Two forwards from one seed are the same, and two in a row differ exactly where an encoding draws."""
    model, ids = tiny_model(encoding=encoding).train(), tokens(2, 12)
    logits = []
    for seed in (1, 1):
        torch.manual_seed(seed)
        logits.append([model(ids).logits for _ in range(2)])
    assert all(torch.equal(a, b) for a, b in zip(*logits, strict=True))
    draws = encoding in ("randpe", "tape from alibi")
    assert torch.equal(*logits[0]) == (not draws)
    model.eval()
    assert torch.equal(model(ids).logits, model(ids).logits)
