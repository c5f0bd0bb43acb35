"""One step of generation by a whole model whose cache is full: TAPE beside RoPE on the same weights.

The cache is transformers' own dynamic one, which is copied when it grows, as in ``generate``; TAPE's values in it are
twice as wide. It holds random numbers, since what they are does not change the work; what a step computes is checked on
a short text before.

Shape letters: B batch, T tokens.
"""

import functools
from dataclasses import replace

import torch
from torch import Tensor
from transformers import DynamicCache

from benchmarks import models
from benchmarks.benchmark_case import BenchmarkCase, Setting, Truth, expected_from
from benchmarks.measure import Runner, bytes_of
from benchmarks.shapes import BenchmarkModel
from tape_ds import TapeForCausalLM


def case(shape: BenchmarkModel, setting: Setting) -> BenchmarkCase:
    """Return both encodings by every attention backend of this device that can decode; T is the cache's length."""
    member = models.family(models.sizes(shape), setting)
    ids = models.tokens(replace(shape, tokens=models.CHECKED_TOKENS), setting.device)

    def build(encoding: str, backend: str) -> Runner:
        model = member(encoding, backend).eval()
        cache = functools.cache(lambda: full_cache(model, len(ids), shape.tokens))

        @torch.no_grad()
        def step() -> Tensor:
            logits = model(input_ids=ids[:, -1:], past_key_values=cache(), use_cache=True).logits
            cache().crop(-1)  # the next step finds the same length
            return logits

        @torch.no_grad()
        def outcome() -> dict[str, Tensor]:
            past = model(input_ids=ids[:, :-1], use_cache=True).past_key_values
            return {"logits": model(input_ids=ids[:, -1:], past_key_values=past, use_cache=True).logits}

        return Runner(step, None, outcome, bytes_of(list(model.parameters())))

    @torch.no_grad()
    def truth(encoding: str) -> Truth:
        model = member(encoding, "sdpa")
        exact, plain = (  # the full pass's last logits
            {"logits": models.by_reference(model, dtype).eval()(input_ids=ids, use_cache=False).logits[:, -1:]}
            for dtype in (torch.float64, model.dtype)
        )
        return expected_from(exact, plain, model.dtype)

    return models.by_backend(build, truth, models.backends(setting.device))


@torch.no_grad()
def full_cache(model: TapeForCausalLM, batch: int, length: int) -> DynamicCache:
    """Return a cache of ``length`` tokens with this model's own widths in every layer."""
    config, device = model.config, model.device
    sample = model(input_ids=torch.zeros(batch, 1, dtype=torch.int64, device=device), use_cache=True).past_key_values
    filled = DynamicCache(config=config)
    generator = torch.Generator(device).manual_seed(0)
    for index, layer in enumerate(sample.layers):
        shapes = ((*x.shape[:2], length, x.shape[3]) for x in (layer.keys, layer.values))
        keys, values = (torch.randn(*each, generator=generator, device=device).to(model.dtype) for each in shapes)
        filled.update(keys, values, index)
    return filled
