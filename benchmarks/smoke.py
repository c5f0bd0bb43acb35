"""Look for anything wrong: two layers of a large model's width, by each backend, against the same in a wider precision.

Compared are the loss, every gradient, the loss after a step of AdamW and, where a sequence is one text, the logits of
tokens that are decoded one by one from a cache.

Shape letters: B batch, T tokens.
"""

import torch
from torch import Tensor

from benchmarks import models
from benchmarks.benchmark_case import BenchmarkCase, Setting, Truth, expected_from
from benchmarks.measure import Runner
from benchmarks.shapes import Shape
from tape_ds import TapeForCausalLM

DECODED = 4  # tokens, after the others have filled the cache
# Of AdamW, whose first step changes every weight by about this, enough to show in bf16
RATE = 1e-4


def case(shape: Shape, setting: Setting) -> BenchmarkCase:
    member = models.family(models.sizes(shape), setting)

    def build(encoding: str, backend: str) -> Runner:
        model = member(encoding, backend)
        return models.training(model, shape)._replace(outcome=lambda: outcome(model, shape, cached=True))

    def truth(encoding: str) -> Truth:
        model = member(encoding, "sdpa")
        exact = torch.float64 if setting.dtype == torch.float32 else torch.float32
        wide, plain = (
            outcome(models.by_backend(model, "reference", dtype), shape, cached=False)
            for dtype in (exact, setting.dtype)
        )
        return expected_from(wide, plain, setting.dtype)

    backends = ("sdpa", "triton") if setting.device.type == "cpu" else ("varlen", "triton", "sdpa")
    return models.compared(build, truth, backends)


def outcome(model: TapeForCausalLM, shape: Shape, cached: bool) -> dict[str, Tensor]:
    """Return everything that is compared; the weights are restored."""
    ids_BT, packing = models.tokens(shape, model.device), models.packing(shape, model.device)
    found = {}
    if not packing:  # the last tokens' logits, one by one from a cache, or of the whole text at once
        model.eval()
        first = ids_BT[:, : models.CHECKED_TOKENS]
        with torch.no_grad():
            if cached:
                past = model(input_ids=first[:, :-DECODED], use_cache=True).past_key_values
                decoded = [
                    model(input_ids=ids_B1, past_key_values=past, use_cache=True).logits
                    for ids_B1 in first[:, -DECODED:].split(1, 1)
                ]
                found["decoded logits"] = torch.cat(decoded, dim=1)
            else:
                found["decoded logits"] = model(input_ids=first, use_cache=False).logits[:, -DECODED:]
        model.train()

    before = models.loss(model, ids_BT, **packing)
    before.backward()
    weights = dict(model.named_parameters())
    initial = {name: weight.detach().clone() for name, weight in weights.items()}
    found |= {f"d {name}": weight.grad.clone() for name, weight in weights.items() if weight.grad is not None}
    torch.optim.AdamW(weights.values(), lr=RATE).step()
    with torch.no_grad():
        found |= {"loss": before.detach()[None], "loss after a step": models.loss(model, ids_BT, **packing)[None]}
        for name, weight in weights.items():
            weight.copy_(initial[name])
    return found
