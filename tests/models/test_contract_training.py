"""What every encoding promises when it is trained: right gradients, for all of its parameters, in every precision."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from tape_ds import TapeForCausalLM
from tests.models.helpers import (
    ENCODINGS,
    MODELS,
    WITHOUT_GRADIENT,
    gradients,
    largest_difference,
    norms_in_own_dtype,
    tiny_config,
    tiny_model,
    tokens,
)


@pytest.mark.parametrize("heads, encoding", MODELS)
def test_checkpointing_gives_the_same_gradients(heads, encoding):
    """Checkpointing may lose tensors inside tuples, and with them position parameters."""
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


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_parameter_moves_within_a_few_steps(encoding):
    """Zero factors rightly block their partners' gradients at step 0, and at no later step.

    Where states stay rotations, the feed-forward has nothing to mix until attention has made the heads' states differ:
    its zero factor waits for a step, its partners for another one.
    """
    steps = 4 if encoding.startswith("tape unit") else 2
    model = TapeForCausalLM(tiny_config(encoding=encoding)).double().train()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer, ids = torch.optim.SGD(model.parameters(), lr=0.1), tokens(2, 12)
    for _ in range(steps):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    still = {name for name, weight in model.named_parameters() if torch.equal(weight, before[name])}
    assert {name for name in still if not name.endswith(WITHOUT_GRADIENT)} == set()


class RoundedResults(TorchDispatchMode):
    """Each result in fp32 becomes one of the two bf16 numbers around it, by chance, and in the mean itself: errors of
    bf16's size on any CPU."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        # the caller goes on with the same memory
        if function.is_view or function._schema.is_mutable:
            return result
        return tree_map_only(torch.Tensor, self.rounded, result)

    @staticmethod
    def rounded(x):
        if x.dtype != torch.float32:
            return x
        bits = x.view(torch.int32)
        return ((bits + torch.randint_like(bits, 1 << 16)) & -(1 << 16)).view(torch.float32)


def step(model, ids):
    """The loss; then logits and the gradient of each kind of parameter, of all layers together."""
    model.zero_grad()
    out = model(ids, labels=ids)
    out.loss.backward()
    found = {"logits": [out.logits.detach()]}
    for name, gradient in gradients(model).items():
        kind = ".".join(part for part in name.split(".") if not part.isdigit())
        found.setdefault(kind, []).append(gradient)
    return out.loss.detach(), {
        name: torch.cat([part.flatten() for part in parts]) for name, parts in found.items()
    }


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bf16_is_finite_and_close(encoding):
    """Not four times as far from fp32 as rounding every result of fp32 to bf16 brings it: some gradients are small
    differences, which bf16 changes by a tenth, others by a hundredth."""
    model, ids = tiny_model(encoding=encoding), tokens(2, 64)
    loss, exact = step(model, ids)
    half_loss, half = step(model.bfloat16(), ids)
    with RoundedResults():  # of the weights that bf16 has
        draws = [step(model.float(), ids)[1] for _ in range(8)]
    torch.testing.assert_close(
        half_loss.float(), loss, rtol=torch.finfo(torch.bfloat16).eps, atol=0
    )
    for name, value in exact.items():
        assert half[name].dtype == torch.bfloat16
        expected = (
            torch.stack([draw[name] - value for draw in draws]).square().sum(dim=1).mean().sqrt()
        )
        assert (half[name].float() - value).norm() < 4 * expected, name


@pytest.mark.parametrize(
    "encoding", ["tape", "alibi", "fire", "cope", "bipe_rope", "tape from alibi"]
)
def test_autocast_trains(encoding):
    model, ids = tiny_model(encoding=encoding).train(), tokens(2, 16)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, labels=ids).loss
    loss.backward()
    assert all(
        gradient.isfinite().all() and gradient.abs().max() > 0
        for gradient in gradients(model).values()
    )


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
