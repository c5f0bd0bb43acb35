"""A whole model's forward, loss and backward: TAPE beside RoPE on the same weights, sequences of one text and packed
ones.

On a GPU each is also replayed as one CUDA graph, without the time of its thousands of launches. Its loss is taken from
the whole sequence's logits: the chunked loss waits for the device, which a graph cannot hold.
"""

import functools

import torch
from torch import Tensor

from benchmarks import models
from benchmarks.benchmark_case import BenchmarkCase, Setting, Truth
from benchmarks.measure import Runner, bytes_of
from benchmarks.shapes import BenchmarkModel
from tape_ds import TapeForCausalLM


def case(shape: BenchmarkModel, setting: Setting) -> BenchmarkCase:
    """Return both encodings by every attention backend of this device."""
    member = models.family(models.sizes(shape), setting)
    ids, packing = models.tokens(shape, setting.device), models.packing(shape, setting.device)
    few_packing = models.packing(shape, setting.device, few=True)

    def build(encoding: str, backend: str) -> Runner:
        return models.training(member(encoding, backend), ids, packing, few_packing)

    def graphed(encoding: str, backend: str) -> Runner:
        return _graphed(member(encoding, backend), ids)

    def truth(encoding: str) -> Truth:
        return models.truth(member(encoding, "sdpa"), models.first_tokens(ids), **few_packing)

    backends = models.backends(setting.device)
    launched = models.by_backend(build, truth, backends)
    if setting.device.type != "cuda" or packing:
        return launched
    replayed = [
        entry._replace(implementation=f"{entry.implementation}, CUDA graph, whole logits")
        for entry in models.by_backend(graphed, truth, backends).entries
    ]
    return launched._replace(entries=launched.entries + replayed)


def _graphed(model: TapeForCausalLM, ids_BT: Tensor) -> Runner:
    """Captured when first run, so that an implementation that is wrong on few tokens captures nothing larger."""
    few = models.first_tokens(ids_BT)

    @functools.cache
    def graph() -> torch.cuda.CUDAGraph:
        return _capture(model, ids_BT)

    def outcome() -> dict[str, Tensor]:
        with torch.no_grad():
            found = {"logits": model(input_ids=few, use_cache=False).logits.detach()}
        _capture(model, few).replay()
        found |= models.gradients(model)
        model.zero_grad(set_to_none=True)
        return found

    return Runner(lambda: graph().replay(), None, outcome, bytes_of(list(model.parameters())))


def _capture(model: TapeForCausalLM, ids_BT: Tensor) -> torch.cuda.CUDAGraph:
    """Return a graph of one step; its gradients lie in the graph's own memory."""
    model.eval()  # there is no dropout: this asks for the logits of the whole sequence, and changes nothing else
    try:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                models.loss(model, ids_BT).backward()
        torch.cuda.current_stream().wait_stream(aside)
        model.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            models.loss(model, ids_BT).backward()
    finally:
        model.train()
    return graph
