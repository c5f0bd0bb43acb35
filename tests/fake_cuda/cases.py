"""What is computed on the device that is not there, and how it ended."""

import functools
import itertools
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from tape_ds import TapeForCausalLM
from tape_ds.data import dataset
from tape_ds.kernels import linear_cross_entropy
from tape_ds.model.attention import borders, flex
from tape_ds.model.recompute import use_recompute
from tests.fake_cuda.device import FakeCuda
from tests.model.helpers import tiny_config

TOKENS = 256
SHORTER = 20
"""Padding of the second sequence."""
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 2 * TOKENS,
}


class Case(NamedTuple):
    """One computation."""

    kind: str
    """A name of :data:`KINDS`."""
    encoding: str
    """Of ``tests.model.helpers.ENCODINGS``."""
    backend: str = "auto"
    rows: str = "dense"
    """"dense": ids alone; "packed" and "padded": from the collator, with positions that skip and differ."""
    recompute: int | str | None = None
    dtype: str = "bfloat16"
    autocast: bool = False

    @property
    def biased(self) -> bool:
        """Whether the encoding adds a bias to the scores."""
        return "alibi" in self.encoding or self.encoding in ("t5", "fire", "cope")

    @property
    def refused(self) -> str:
        """Words of the error that the case ends with, if any."""
        if self.encoding == "cope" and self.backend != "sdpa":
            return "cope counts by the scores"
        if self.biased and self.backend in ("varlen", "triton"):
            return "cannot add a bias to the scores"
        return (
            "cannot compute this encoding's bias"
            if (self.encoding, self.backend) == ("tape from alibi", "flex")
            else ""
        )

    def name(self) -> str:
        """Return what is not a default."""
        return " ".join(str(value) for value, default in zip(self, Case("", ""), strict=True) if value != default)


class Outcome(NamedTuple):
    """How a case ended."""

    error: str = ""
    waits: dict[str, str] = {}
    """Of :class:`FakeCuda`."""


def outcome(case: Case) -> Outcome:
    """Return the waits of a case's second step: what is copied to the device once is there by then."""
    cuda = FakeCuda()
    try:
        with cuda:
            use_stand_ins(cuda, case)
            step = KINDS[case.kind](case)
            if case.kind != "mistake":
                with torch.set_grad_enabled(case.kind == "optimization"):
                    step()
            cuda.waits.clear()
            step()
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/tape_ds/" in frame.filename]
        place = f"{frames[-1].filename.rpartition('/tape_ds/')[2]}:{frames[-1].lineno}: " if frames else ""
        return Outcome(f"{place}{type(error).__name__}: {error}", cuda.waits)
    return Outcome("", cuda.waits)


def training(case: Case) -> Callable[[], None]:
    """Forward and backward."""
    model = built(case).train()
    if case.recompute is not None:
        use_recompute(model, case.recompute)
    model.to("cuda")
    given = on_device(batch(case.rows)) | {"num_items_in_batch": torch.tensor(100, device="cuda")}

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=case.autocast):
            loss = model(**given, use_cache=False).loss
        if not loss.requires_grad:
            return
        loss.backward()
        for name, weight in model.named_parameters():
            assert weight.grad is None or (weight.grad.is_cuda and weight.grad.dtype == weight.dtype), name

    return step


def optimization(case: Case) -> Callable[[], None]:
    """Two micro-batches from the collator, the clipped gradient, AdamW and the schedule, as transformers' Trainer does
    it."""
    model = built(case).train().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

    def step() -> None:
        batches = [batch(case.rows), batch(case.rows)]
        items = torch.stack([(one["labels"][:, 1:] != -100).sum() for one in batches]).sum()
        total = torch.zeros((), device="cuda")
        for one in batches:
            loss = model(**on_device(one), use_cache=False, num_items_in_batch=on_device(items)).loss
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


def prompt(case: Case) -> Callable[[], None]:
    """The first call of transformers' ``generate``, which gives no mask where nothing is padding."""
    model = built(case).eval().to("cuda")
    return lambda: read(model, case, TOKENS, DynamicCache(config=model.config))


def decoding(case: Case) -> Callable[[], None]:
    """Its other calls, a token each."""
    model = built(case).eval().to("cuda")
    cache = DynamicCache(config=model.config)
    read(model, case, TOKENS, cache)
    return functools.partial(read, model, case, 1, cache)


@torch.no_grad()
def read(model: TapeForCausalLM, case: Case, tokens: int, cache: DynamicCache) -> None:
    """Add tokens to a cache."""
    ids = torch.ones(2, tokens, dtype=torch.int64, device="cuda")
    keys = cache.get_seq_length() + tokens
    mask = torch.ones(2, keys, dtype=torch.int64, device="cuda") if case.rows == "padded" else None
    places = torch.arange(keys - tokens, keys, device="cuda").repeat(2, 1)
    model(input_ids=ids, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True)


def mistake(case: Case) -> Callable[[], None]:
    """What the device is there to find, by the name that the case has for an encoding."""
    x, table = torch.ones(4, 4, device="cuda"), torch.ones(4, 4, device="cuda", dtype=torch.bfloat16)
    rows = torch.arange(4, device="cuda")
    mistakes: dict[str, Callable[[], Any]] = {
        "item": lambda: x[0, 0].item(),
        "bool": lambda: bool((x > 0).all()),
        "list": lambda: x.tolist(),
        "equal": lambda: torch.equal(x, x),
        "cpu": lambda: x.cpu(),
        "number of elements": lambda: x.nonzero(),
        "boolean index": lambda: x[x > 0],
        "constant": lambda: torch.tensor([1.0, 2.0], device="cuda"),
        "array": lambda: torch.from_numpy(np.ones(4)).to("cuda"),
        "index on the host": lambda: x[torch.tensor([1, 2])],
        "two devices": lambda: x + torch.ones(4),
        "product of two dtypes": lambda: x @ table,
        "copy of two dtypes": lambda: x.index_copy(0, rows, table),
    }
    return mistakes[case.encoding]


KINDS = {
    "training": training,
    "optimization": optimization,
    "prompt": prompt,
    "decoding": decoding,
    "mistake": mistake,
}


def built(case: Case) -> TapeForCausalLM:
    config = tiny_config("gqa", case.encoding, **SIZES, attention_backend=case.backend)
    return TapeForCausalLM(config).to(getattr(torch, case.dtype))


def batch(rows: str) -> dict[str, Any]:
    """Return two sequences, on the host."""
    ids = np.arange(2 * TOKENS).reshape(2, TOKENS) % 500
    if rows == "dense":
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor(ids)}
    documents, places, sequences = np.repeat(range(4), TOKENS // 4), np.arange(TOKENS), []
    for number, row in enumerate(ids):
        kept = slice(0, TOKENS - (SHORTER if number and rows == "padded" else 0))
        positions = places + 100 * (places > 30 + number)
        sequences.append(dataset.item(row[kept], slice(None), positions[kept], documents[kept]))
    return dataset.collate(sequences)


def on_device(given: Any) -> Any:
    """Copy tensors as a loader's pinned memory is copied: nothing waits."""
    if isinstance(given, dict):
        return {name: on_device(value) for name, value in given.items()}
    return torch.empty(given.shape, dtype=given.dtype, device="cuda") if isinstance(given, Tensor) else given


def use_stand_ins(cuda: FakeCuda, case: Case) -> None:
    """Replace what a device without numbers cannot compute: compiled FlexAttention, here on plain matrices, and where
    the documents of padded sequences are. The loss has a body that is seen."""
    cuda.bodies[torch.ops.tape_ds.linear_cross_entropy.default] = linear_cross_entropy._chunked._init_fn
    flex.create_block_mask = lambda allowed, *_, **__: allowed
    flex._compiled = lambda: flexed
    if case.rows != "padded":
        cuda.answers["tape_ds/model/attention/borders.py:borders_of"] = itertools.repeat(True)  # one document a row
    lengths = [TOKENS // 4] * 8
    lengths[-1] -= SHORTER if case.rows == "padded" else 0
    cuda.answers["tape_ds/model/attention/sdpa.py:_lengths"] = itertools.cycle(lengths)

    def packed(own: borders.Borders) -> borders.Packed:
        cuda.waits["tape_ds/model/attention/borders.py:_pack"] = "several"
        ids = batch("padded")["document_ids"]
        return borders.Packed(*map(on_device, _pack(borders.Borders(ids, own.queries, own.offset))))

    borders._pack = packed


_pack = borders._pack


def flexed(q: Tensor, k: Tensor, v: Tensor, score_mod: Any, block_mask: Any, scale: float, **_: Any) -> Tensor:
    """FlexAttention on plain matrices."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)).float() * scale
    indices = [
        torch.arange(size, device=q.device).view([-1 if axis == dim else 1 for axis in range(4)])
        for dim, size in enumerate(scores.shape)
    ]
    scores = scores if score_mod is None else score_mod(scores, *indices)
    return torch.where(block_mask(*indices), scores, -torch.inf).softmax(-1).to(v.dtype) @ v
