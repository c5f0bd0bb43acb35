"""Where kernels read and write, watched in Triton's interpreter, which hands every address to one function.

Each address must be that of an element of a tensor of its launch, to the byte: a guard page would see less. No program
may touch what another one writes: their order does not matter. Tensors beyond 2^31 elements are views of sparse files.
"""

import contextlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tape_ds.kernels import decode_attention as decoding
from tape_ds.kernels import jit, tape_attention_backward, tape_attention_forward
from tape_ds.kernels.decode_attention import decode_attention
from tape_ds.kernels.tape_attention import tape_attention
from tests.kernels import test_position_mix, test_rotate
from tests.kernels.attention_cases import NAMES, Case, case, check, documents, gradients

pytestmark = pytest.mark.skipif(not jit.INTERPRETED, reason="watches Triton's interpreter")
HOLES = documents((0, 20), (-1, 9), (1, 14), (2, 3), (-1, 1), batch=2)


class Watched:
    """What one launch touches."""

    def __init__(self, tensors: list[Tensor], on_device: bool):
        self.own = np.unique(np.concatenate([addresses(x) for x in tensors if x.numel()]))
        self.on_device = on_device
        """Whether it was launched under ``device_of``: in a model spread over GPUs the current one is another."""
        self.touched: dict[str, list[tuple[np.ndarray, int]]] = {"read": [], "write": [], "add": []}

    def touch(self, kind: str, pointers: np.ndarray, mask: np.ndarray, program: int) -> None:
        """Refuse what is no element before it is touched."""
        found = pointers[mask].astype(np.int64)
        near = self.own[np.searchsorted(self.own, found).clip(max=len(self.own) - 1)]
        assert (near == found).all(), (
            f"{kind} of {(near != found).sum()} addresses that are no element of any tensor"
        )
        self.touched[kind].append((found, program))

    def of(self, kind: str) -> tuple[np.ndarray, np.ndarray]:
        """Addresses, and the programs that touched them."""
        pairs = [(np.empty(0, np.int64), 0), *self.touched[kind]]
        where = np.concatenate([found for found, _ in pairs])
        return where, np.concatenate([np.full(len(found), program) for found, program in pairs])

    def refuse_races(self) -> None:
        """A program touches nothing that another writes."""
        written, by = self.of("write")
        order = np.argsort(written, kind="stable")
        written, by = written[order], by[order]
        assert not ((written[1:] == written[:-1]) & (by[1:] != by[:-1])).any(), (
            "two programs write one element"
        )
        for kind in ("read", "add"):
            where, program = self.of(kind)
            if len(written) and len(where):
                at = np.searchsorted(written, where).clip(max=len(written) - 1)
                assert not ((written[at] == where) & (by[at] != program)).any(), (
                    f"one program writes, another: {kind}"
                )


def addresses(x: Tensor) -> np.ndarray:
    """Of all elements."""
    places = np.zeros((), np.int64)
    for size, stride in zip(x.shape, x.stride(), strict=True):
        places = places[..., None] + np.arange(size, dtype=np.int64) * stride
    return x.data_ptr() + places.ravel() * x.element_size()


@pytest.fixture
def launches(monkeypatch) -> list[Watched]:
    """What every launch of the test touches, the last one last."""
    from triton.runtime import interpreter

    found: list[Watched] = []
    low, run = interpreter._interpreter, interpreter.GridExecutor.__call__
    devices: list[Tensor] = []

    @contextlib.contextmanager
    def device_of(x):
        devices.append(x)
        yield
        devices.pop()

    def program() -> int:
        builder = interpreter.interpreter_builder
        return int(np.ravel_multi_index(builder.grid_idx, builder.grid_dim))

    def watched(self, *args, **kwargs):
        found.append(
            Watched([x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)], bool(devices))
        )
        run(self, *args, **kwargs)
        found[-1].refuse_races()

    load, store, add = low.load, low.store, low.atomic_rmw

    def watched_load(pointers, mask, *rest):
        found[-1].touch("read", pointers, mask, program())
        return load(pointers, mask, *rest)

    def watched_store(pointers, value, mask):
        found[-1].touch("write", pointers, mask, program())
        return store(pointers, value, mask)

    def watched_add(operation, pointers, value, mask, *rest):
        found[-1].touch("add", pointers, mask, program())
        return add(operation, pointers, value, mask, *rest)

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", watched)
    # It would copy every storage onto itself, sparse files included.
    monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *_: None)
    monkeypatch.setattr(low, "load", watched_load)
    monkeypatch.setattr(low, "store", watched_store)
    monkeypatch.setattr(low, "atomic_rmw", watched_add)
    return found


def attend(example: Case, **options) -> list[Tensor]:
    return gradients(
        lambda *inputs: tape_attention(*inputs, **example.options, **options),
        example,
        torch.float32,
    )


def decode(**shape) -> list[Tensor]:
    example = case(**shape)
    return list(
        decode_attention(
            *example.inputs, document_ids=example.options.get("document_ids"), splits=3
        )
    )


def mix(**shape) -> list[Tensor]:
    inputs = test_position_mix.example(**shape)
    return test_position_mix.by_triton(inputs, test_position_mix.received(inputs, torch.float32))


RUNS: dict[str, Callable[[], list[Tensor]]] = {
    "attention": lambda: attend(case(47, 70, 10, heads=4, groups=2)),
    "attention, unused keys": lambda: attend(case(20, 90, 16, offset=30)),
    "attention, documents of later queries": lambda: attend(
        case(30, 47, 10, batch=2, offset=25, document_ids=HOLES)
    ),
    "attention, documents, deterministic": lambda: attend(
        case(47, 47, 10, batch=2, document_ids=HOLES), deterministic=True
    ),
    "decode": lambda: decode(
        queries=2, keys=47, width=10, heads=6, groups=2, batch=2, document_ids=HOLES
    ),
    "rotate": lambda: test_rotate.by_triton(*test_rotate.example(6, 2, 13, 10)),
    "position_mix": lambda: mix(heads=6, groups=3, tokens=11, width=10),
    "position_mix of many groups": lambda: mix(heads=40, groups=40, rank=7, tokens=5, width=6),
}


@pytest.mark.parametrize("name", RUNS)
def test_nothing_but_its_tensors_and_nothing_of_others(launches, name):
    """No address is out of bounds, before or after a tensor or between its rows; no program meets another's writes."""
    RUNS[name]()
    assert launches and all(each.touched["write"] for each in launches if not each.touched["add"])
    assert all(each.on_device for each in launches)


def test_a_read_out_of_bounds_and_a_race_are_found(launches):
    from tests.kernels import memory_examples

    x = torch.zeros(10)
    # the interpreter wraps what is raised within it
    with pytest.raises(Exception, match="read of 2 addresses"):
        memory_examples.copy[(1,)](x[:6], x.clone(), 6, ROWS=8)
    with pytest.raises(AssertionError, match="two programs write one element"):
        memory_examples.copy[(2,)](x, x.clone(), 8, ROWS=8)


@pytest.mark.parametrize(("heads", "groups", "queries"), [(4, 4, 1), (12, 3, 1), (8, 2, 5)])
def test_a_cache_is_read_once_for_a_group_of_heads(monkeypatch, launches, heads, groups, queries):
    """Counted: every key, value and state that is seen, in one program, whatever the number of heads and parts."""
    monkeypatch.setitem(decoding.SPLIT, (jit.INTERPRETER, 16), decoding.SPLIT[90, 16])
    example = case(queries, 100, 16, heads=heads, groups=groups, batch=2)
    check(decode_attention(*example.inputs, splits=3), example)
    where, _ = launches[0].of("read")
    for name, cached in zip("kve", example.inputs[1:], strict=True):
        times = np.isin(where, addresses(cached)).sum() / cached.numel()
        assert times == 1, f"{name} is read {times} times"


FAR = {
    "rows": lambda tokens, heads, width: (2**31 + 16, width, heads * width, 1),
    "heads": lambda tokens, heads, width: (tokens * width, 2**31 + 16, width, 1),
    "tokens": lambda tokens, heads, width: (heads * width, 2 * heads * width, 2**24 - 16, 1),
}
"""Strides [B, heads, tokens, K] whose places pass 2^31: with tokens 2^24 apart, a block of tokens from 128 on does."""


@pytest.fixture
def sparse(tmp_path):
    """A function that gives memory of some shape, further apart than 32 bits count, in a file that holds only what is
    written."""
    count = 0

    def memory(apart: str, shape: torch.Size) -> Tensor:
        nonlocal count
        count += 1
        strides = FAR[apart](shape[2], shape[1], shape[3])
        length = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        whole = np.memmap(tmp_path / str(count), np.float32, "w+", shape=(length,))
        return torch.from_numpy(whole).as_strided(shape, strides)

    return memory


@pytest.mark.parametrize(
    "apart, deterministic",
    [("rows", True), ("heads", False), pytest.param("tokens", False, marks=pytest.mark.slow)],
)
def test_attention_beyond_2_to_the_31(monkeypatch, launches, sparse, apart, deterministic):
    """Inputs, what comes back and all results lie so, forward and backward."""
    tokens, several = (170, 1) if apart == "tokens" else (35, 2)
    example = case(tokens, tokens, 16, batch=several, heads=several, groups=several)
    far = [sparse(apart, x.shape).copy_(x) for x in example[:6]]
    for module in (tape_attention_forward, tape_attention_backward):
        monkeypatch.setattr(module, "empty_rows", lambda like: sparse(apart, like.shape))
    found = attend(
        example._replace(**dict(zip(example._fields, far, strict=False))),
        deterministic=deterministic,
    )
    check(found, example)
    for name, x in zip(NAMES, found, strict=True):
        reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        assert reach > 2**31, name


@pytest.mark.parametrize("apart", FAR)
def test_decoding_beyond_2_to_the_31(launches, sparse, apart):
    example = case(2, 40, 16, batch=2, heads=4, groups=2) if apart != "tokens" else case(2, 170, 16)
    far = [sparse(apart, x.shape).copy_(x) for x in example.inputs[1:]]
    check(decode_attention(example.q_BHTK, *far, splits=9), example)


@pytest.mark.parametrize("apart", ["rows", "heads"])
def test_rotation_beyond_2_to_the_31(launches, sparse, apart):
    x, start, state, grad = inputs = test_rotate.example(4, 2, 13, 10)
    far_x, far_state, far_grad = (
        sparse(apart, each.shape).copy_(each) for each in (x, state, grad)
    )
    test_rotate.check(test_rotate.by_triton(far_x, start, far_state, far_grad), inputs)


@pytest.mark.parametrize("apart", ["rows", "heads"])
def test_updates_of_the_state_beyond_2_to_the_31(launches, sparse, apart):
    inputs = test_position_mix.example(heads=6, groups=3, tokens=11, width=10, batch=2)
    grad = test_position_mix.received(inputs, torch.float32)
    given = {"state": inputs.state, "moved": inputs.moved}
    far = inputs._replace(**{name: sparse(apart, x.shape).copy_(x) for name, x in given.items()})
    test_position_mix.check(
        test_position_mix.by_triton(far, sparse(apart, grad.shape).copy_(grad)), inputs, grad
    )
