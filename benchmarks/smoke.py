"""Is anything wrong? Two layers of a large model's width, by each backend, against the same in a wider precision.

Compared are the loss, every gradient, the loss after a step of AdamW and, where a sequence is one text, the logits of
tokens that are decoded one by one from a cache.

Shape letters: B batch, T tokens.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from benchmarks import models
from benchmarks.benchmark_case import BenchmarkCase, Setting, Truth, expected_from
from benchmarks.measure import Runner, bytes_of
from benchmarks.shapes import BenchmarkModel
from tape_ds import TapeForCausalLM

DECODED = 4  # tokens, after the others have filled the cache
# Of AdamW, whose first step changes every weight by about this, enough to show in bf16
RATE = 1e-4


def case(shape: BenchmarkModel, setting: Setting) -> BenchmarkCase:
    member = models.family(models.sizes(shape), setting)
    ids, packing = models.tokens(shape, setting.device), models.packing(shape, setting.device)

    def build(encoding: str, backend: str) -> Runner:
        model = member(encoding, backend)
        return Runner(
            lambda: models.loss(model, ids, **packing),
            Tensor.backward,
            lambda: outcome(model, ids, packing, cached=True),
            bytes_of(list(model.parameters())),
        )

    def truth(encoding: str) -> Truth:
        model = member(encoding, "sdpa")
        exact = torch.float64 if setting.dtype == torch.float32 else torch.float32
        wide, plain = (
            outcome(models.by_reference(model, dtype).train(), ids, packing, cached=False)
            for dtype in (exact, setting.dtype)
        )
        return expected_from(wide, plain, setting.dtype)

    backends = ("sdpa", "triton") if setting.device.type == "cpu" else ("varlen", "triton", "sdpa")
    return models.by_backend(build, truth, backends)


def outcome(model: TapeForCausalLM, ids_BT: Tensor, packing: dict[str, Any], cached: bool) -> dict[str, Tensor]:
    """Return everything that is compared; the weights are restored."""
    found = {} if packing else {"decoded logits": decoded(model, ids_BT[:, : models.CHECKED_TOKENS], cached)}
    loss = functools.partial(models.loss, model, ids_BT, **packing)
    (before := loss()).backward()
    weights = dict(model.named_parameters())
    kept = {name: weight.detach().clone() for name, weight in weights.items()}
    found |= {f"d {name}": weight.grad.clone() for name, weight in weights.items() if weight.grad is not None}
    torch.optim.AdamW(weights.values(), lr=RATE).step()
    with torch.no_grad():
        found |= {"loss": before.detach()[None], "loss after a step": loss()[None]}
        for name, weight in weights.items():
            weight.copy_(kept[name])
    return found


@torch.no_grad()
def decoded(model: TapeForCausalLM, ids_BT: Tensor, cached: bool) -> Tensor:
    """Return logits of the last tokens, one by one from a cache, or of the whole text at once."""
    model.eval()
    if cached:
        past = model(input_ids=ids_BT[:, :-DECODED], use_cache=True).past_key_values
        each = [
            model(input_ids=x, past_key_values=past, use_cache=True).logits for x in ids_BT[:, -DECODED:].split(1, 1)
        ]
        logits = torch.cat(each, dim=1)
    else:
        logits = model(input_ids=ids_BT, use_cache=False).logits[:, -DECODED:]
    model.train()
    return logits
