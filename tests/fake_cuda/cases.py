"""What is computed on the device that is not there, and how it ended."""

import itertools
import tempfile
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, TrainerCallback, TrainingArguments
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from tape_ds import TapeForCausalLM
from tape_ds.attention import document_layout, flex
from tape_ds.checkpoint.trained import TrainedRecord
from tape_ds.data import order
from tape_ds.kernels import linear_cross_entropy
from tape_ds.methods.prepare import prepare_model
from tape_ds.methods.recompute import use_recompute
from tape_ds.models import decoder, decoder_configuration
from tests.fake_cuda.device import FakeCuda
from tests.models import tiny_decoders
from tests.models.helpers import tiny_config

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
    """One computation: a name of :data:`KINDS`, and an encoding or what the kind takes in its place.

    Rows are "dense": ids alone; "packed" and "padded": from the collator, with positions that skip and differ.
    """

    kind: str
    encoding: str
    backend: str = "auto"
    rows: str = "dense"
    recompute: int | str | None = None
    dtype: str = "bfloat16"
    autocast: bool = False

    @property
    def biased(self) -> bool:
        """Whether the encoding adds a bias to the scores."""
        return "alibi" in self.encoding or self.encoding in ("t5", "fire", "cope")


class Outcome(NamedTuple):
    """How a case ended."""

    error: str = ""
    waits: dict[str, str] = {}
    """Of :class:`FakeCuda`, from the second step on: what is copied to the device once is there by then."""


def outcome(case: Case) -> Outcome:
    """Compute a case."""
    cuda = FakeCuda()
    try:
        with cuda:
            use_stand_ins(cuda, case)
            KINDS[case.kind](case, cuda)
    except Exception as error:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if "/tape_ds/" in frame.filename
        ]
        place = (
            f"{frames[-1].filename.rpartition('/tape_ds/')[2]}:{frames[-1].lineno}: "
            if frames
            else ""
        )
        return Outcome(f"{place}{type(error).__name__}: {error}", cuda.waits)
    return Outcome("", cuda.waits)


def training(case: Case, cuda: FakeCuda) -> None:
    """Forward and backward."""
    model = built(case).train()
    if case.recompute is not None:
        use_recompute(model, case.recompute)
    model.to("cuda")
    given = on_device(batch(case.rows)) | {
        "use_cache": False,
        "num_items_in_batch": torch.tensor(9, device="cuda"),
    }
    with torch.autocast("cuda", torch.bfloat16, enabled=case.autocast):
        with torch.no_grad():
            model(**given)
        cuda.waits.clear()
        loss = model(**given).loss
    loss.backward()
    for name, weight in model.named_parameters():
        assert weight.grad is None or (weight.grad.is_cuda and weight.grad.dtype == weight.dtype), (
            name
        )


def optimization(case: Case, cuda: FakeCuda) -> None:
    """Two steps of two micro-batches by the trainer, without an engine; the waits are those of the second."""
    from tape_ds.training.trainer import TapeTrainer  # which imports DeepSpeed, for seconds

    method = "tape" if case.encoding.startswith("tape") else "full"
    groups = SimpleNamespace(
        train_position=case.encoding != "tape neither", train_norms=True, train_embeddings=True
    )
    prepared = prepare_model(method, built(case), groups)
    model = prepared.model.to("cuda")
    # what is there is not moved again: torch cannot exchange fake weights that are in use
    model.to = lambda *_: model
    found: dict[str, str] = {}

    class Look(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            found.update(cuda.waits if state.global_step > 1 else {})
            cuda.waits.clear()

    arguments = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 2,
        "logging_steps": 100,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "logging_nan_inf_filter": False,
        "train_sampling_strategy": "sequential",
        "dataloader_pin_memory": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        trainer = TapeTrainer(
            record=TrainedRecord(base="base", method=method, names=prepared.names),
            tokens_per_step=4 * TOKENS,
            flops_per_token=1.0,
            model=model,
            args=TrainingArguments(folder, **arguments),
            train_dataset=sequences(case.rows) * 4,
            data_collator=order.collate,
            callbacks=[Look()],
        )
        trainer.train()
    assert trainer.state.global_step == 2
    cuda.waits = found


def foreign(case: Case, cuda: FakeCuda) -> None:
    """Forward and backward of a class of transformers, whose name is the case's encoding."""
    config = tiny_decoders.tiny_config(case.encoding)
    config._attn_implementation = decoder_configuration.ATTENTION
    model = (
        decoder.class_of(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])(config)
        .bfloat16()
        .train()
        .to("cuda")
    )
    given = on_device(batch(case.rows)) | {
        "use_cache": False,
        "num_items_in_batch": torch.tensor(9, device="cuda"),
    }
    with torch.no_grad():
        model(**given)
    cuda.waits.clear()
    model(**given).loss.backward()


def prompt(case: Case, cuda: FakeCuda) -> None:
    """The first call of transformers' ``generate``, which gives no mask where nothing is padding."""
    model = built(case).eval().to("cuda")
    read(model, case, TOKENS, DynamicCache(config=model.config))
    cuda.waits.clear()
    read(model, case, TOKENS, DynamicCache(config=model.config))


def decoding(case: Case, cuda: FakeCuda) -> None:
    """Its other calls, a token each."""
    model = built(case).eval().to("cuda")
    cache = DynamicCache(config=model.config)
    read(model, case, TOKENS, cache)
    read(model, case, 1, cache)
    cuda.waits.clear()
    read(model, case, 1, cache)


@torch.no_grad()
def read(model: TapeForCausalLM, case: Case, tokens: int, cache: DynamicCache) -> None:
    """Add tokens to a cache."""
    ids = torch.ones(2, tokens, dtype=torch.int64, device="cuda")
    keys = cache.get_seq_length() + tokens
    mask = torch.ones(2, keys, dtype=torch.int64, device="cuda") if case.rows == "padded" else None
    places = torch.arange(keys - tokens, keys, device="cuda").repeat(2, 1)
    model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=places,
        past_key_values=cache,
        use_cache=True,
    )


def mistake(case: Case, cuda: FakeCuda) -> None:
    """What the device is there to find; its name is the case's encoding."""
    x = torch.ones(4, 4, device="cuda")
    mistakes: dict[str, Callable[[], Any]] = {
        "two devices": lambda: x + torch.ones(4),
        "two dtypes": lambda: x @ x.bfloat16(),
    }
    mistakes[case.encoding]()


KINDS = {
    each.__name__: each for each in (training, foreign, optimization, prompt, decoding, mistake)
}


def built(case: Case) -> TapeForCausalLM:
    config = tiny_config("gqa", case.encoding, **SIZES, attention_backend=case.backend)
    return TapeForCausalLM(config).to(getattr(torch, case.dtype))


def batch(rows: str) -> dict[str, Any]:
    """Return two sequences, on the host."""
    if rows == "dense":
        ids = torch.arange(2 * TOKENS).view(2, TOKENS)
        return {"input_ids": ids, "labels": ids}
    return order.collate(sequences(rows))


def sequences(rows: str) -> list[dict[str, Tensor]]:
    """Return what the collator is given: four documents in each of two sequences, or "dense" one."""
    if rows == "dense":
        return 2 * [order.item(np.arange(TOKENS), slice(None))]
    made, ids, documents = [], np.arange(TOKENS), np.repeat(range(4), TOKENS // 4)
    for number in range(2):
        kept = slice(0, TOKENS - (SHORTER if number and rows == "padded" else 0))
        positions = ids + 100 * (ids > 30 + number)
        made.append(order.item(ids[kept], slice(None), positions[kept], documents[kept]))
    return made


def on_device(given: Any) -> Any:
    """Copy tensors as a loader's pinned memory is copied: nothing waits."""
    if isinstance(given, dict):
        return {name: on_device(value) for name, value in given.items()}
    return (
        torch.empty(given.shape, dtype=given.dtype, device="cuda")
        if isinstance(given, Tensor)
        else given
    )


def use_stand_ins(cuda: FakeCuda, case: Case) -> None:
    """Replace what a device without numbers cannot compute: compiled FlexAttention, here on plain matrices, and where
    the documents of padded sequences are. The loss has a body that is seen."""
    cuda.bodies[torch.ops.tape_ds.linear_cross_entropy.default] = (
        linear_cross_entropy._chunked.kernel
    )
    flex.create_block_mask = lambda allowed, *_, **__: allowed
    flex._compiled = lambda: flexed
    cuda.answers["tape_ds/models/decoder.py:has_plain_head"] = itertools.repeat(True)
    if case.rows != "padded":
        one_document_a_row = itertools.repeat(True)
        cuda.answers["tape_ds/attention/document_layout.py:layout_of_ids"] = one_document_a_row
    lengths = [TOKENS // 4] * 8
    lengths[-1] -= SHORTER if case.rows == "padded" else 0
    cuda.answers["tape_ds/attention/sdpa.py:_lengths"] = itertools.cycle(lengths)

    def packed(own: document_layout.DocumentLayout) -> document_layout.PackedLayout:
        cuda.waits["tape_ds/attention/document_layout.py:_pack"] = "several"
        ids = batch("padded")["document_ids"]
        return document_layout.PackedLayout(
            *map(on_device, _pack(document_layout.DocumentLayout(ids, own.queries, own.offset)))
        )

    document_layout._pack = packed


_pack = document_layout._pack


def flexed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score_mod: Any,
    block_mask: Any,
    scale: float,
    return_aux: Any = None,
    **_: Any,
) -> Any:
    """FlexAttention on plain matrices."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)).float() * scale
    indices = [
        torch.arange(size, device=q.device).view([-1 if axis == dim else 1 for axis in range(4)])
        for dim, size in enumerate(scores.shape)
    ]
    scores = scores if score_mod is None else score_mod(scores, *indices)
    scores = torch.where(block_mask(*indices), scores, -torch.inf)
    out = scores.softmax(-1).to(v.dtype) @ v
    return out if return_aux is None else (out, SimpleNamespace(lse=scores.logsumexp(-1)))
