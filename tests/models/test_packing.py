"""Documents packed into sequences, by every collator: each is computed as if it were alone, forward and backward.

The collators are the real ones: transformers', TRL's and ours.
"""

from itertools import chain

import pytest
import torch
from transformers import DataCollatorWithFlattening
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from tape_ds.attention import backends, sdpa
from tape_ds.data.order import collate
from tape_ds.kernels import jit
from tape_ds.methods.recompute import use_recompute
from tests.attention import varlen_on_cpu
from tests.models.helpers import HEADS, gradients, tiny_model, tokens

LENGTHS = [5, 1, 9, 4]
ENCODINGS = ["rope", "tape", "fire"]
FLATTENING = {
    "positions": {},
    "flash arguments": {"return_flash_attn_kwargs": True, "return_position_ids": False},
    "sequence ids": {"return_seq_idx": True, "return_position_ids": False},
    "everything": {"return_flash_attn_kwargs": True, "return_seq_idx": True},
}


def documents(lengths=LENGTHS):
    return [tokens(1, length)[0].tolist() for length in lengths]


def alone(model, texts):
    """Logits [tokens of all documents, V], a call for each document."""
    return torch.cat([model(torch.tensor([ids])).logits[0] for ids in texts])


def check(model, batch, texts):
    """Logits of a batch of one packed sequence, to fp32 rounding."""
    batch = {name: x for name, x in batch.items() if name != "labels"}
    torch.testing.assert_close(model(**batch).logits[0], alone(model, texts), rtol=0, atol=2e-5)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", FLATTENING)
def test_transformers_flattening_collator(encoding, kind):
    """Its position ids alone may mark where documents begin."""
    texts, model = documents(), tiny_model(encoding=encoding)
    options = FLATTENING[kind]
    # then positions that run on over documents are others
    if not model.model.encoding.translation_invariant:
        options = options | {"return_position_ids": True}
    batch = DataCollatorWithFlattening(**options)([{"input_ids": ids} for ids in texts])
    check(model, batch, texts)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_trl_s_packing_collator(encoding):
    texts = documents()
    halves = ((texts[:2], LENGTHS[:2]), (texts[2:], LENGTHS[2:]))
    packed = [{"input_ids": [*chain(*some)], "seq_lengths": lengths} for some, lengths in halves]
    check(
        tiny_model(encoding=encoding),
        DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(packed),
        texts,
    )


def test_borders_that_cannot_be_applied_are_refused():
    model, ids = tiny_model(), tokens(1, 6)
    cache = model(ids, use_cache=True).past_key_values
    refused = {
        "needs max_length_q": {"cu_seq_lens_q": torch.tensor([0, 2, 6])},
        "cu_seq_lens_q = ": {"cu_seq_lens_q": torch.tensor([0, 3, 99]), "max_length_q": 96},
        "seq_idx has 4 columns": {"seq_idx": torch.zeros(1, 4, dtype=torch.int32)},
        "use_cache=False": {
            "cu_seq_lens_q": torch.tensor([0, 6]),
            "max_length_q": 6,
            "past_key_values": cache,
        },
    }
    for words, arguments in refused.items():
        with pytest.raises(ValueError, match=words):
            model(
                ids,
                attention_mask=None if "past_key_values" in arguments else torch.ones_like(ids),
                **arguments,
            )


# Every backend that takes borders. Thresholds of the sdpa backend make each of its ways answer; packed kernels of a GPU
# are stood in for, and Triton's run in its interpreter.
BACKENDS = {
    "reference": ("reference", {}),
    "masks": ("sdpa", {"MASK_ENTRIES": 1 << 30}),
    "masks in blocks": ("sdpa", {"MASK_ENTRIES": 1 << 30, "BLOCKED_ENTRIES": 0, "QUERY_BLOCK": 7}),
    "one by one": ("sdpa", {"MASK_ENTRIES": 0}),
    "varlen": ("varlen", {}),
    "triton": ("triton", {}),
}


@pytest.fixture(params=BACKENDS)
def backend(request, monkeypatch):
    name, thresholds = BACKENDS[request.param]
    if name == "triton" and not jit.INTERPRETED:
        pytest.skip("fp32 kernels are for Triton's interpreter")
    for threshold, value in thresholds.items():
        monkeypatch.setattr(sdpa, threshold, value)
    if name == "varlen":
        monkeypatch.setattr(backends, "missing", lambda name, device: None)
        monkeypatch.setattr(backends, "_why_not", lambda name, call: None)
        varlen_on_cpu.CALLS.clear()
    monkeypatch.setenv("TAPE_DS_ATTENTION", name)
    return name


def sequence_of(lengths, jumps):
    """A sequence of documents as our data room leaves it; with ``jumps``, positions that skip ahead within each."""
    sequence = {"input_ids": [], "position_ids": [], "document_ids": [], "labels": []}
    for number, length in enumerate(lengths):
        ids = tokens(1, length)[0].tolist()
        at = torch.arange(length) + (torch.arange(length) > length // 2) * 11 * jumps
        sequence["input_ids"] += ids
        sequence["labels"] += [-100, *ids[1:]]
        sequence["document_ids"] += [number] * length
        sequence["position_ids"] += at.tolist()
    return {name: torch.tensor(column) for name, column in sequence.items()}


def piece(sequence, number):
    """One document of a sequence, as a batch."""
    own = sequence["document_ids"] == number
    return {name: column[own][None] for name, column in sequence.items() if name != "document_ids"}


def outcome(model, batches):
    """Logits of all real tokens in order, and the gradients of the summed losses."""
    model.zero_grad()
    logits = []
    for batch in batches:
        out = model(**batch, num_items_in_batch=10, use_cache=False, skip_logits=False)
        if out.loss.requires_grad and bool((batch["labels"][:, 1:] != -100).any()):
            out.loss.backward()
        real = batch.get("document_ids", torch.zeros_like(batch["input_ids"])) >= 0
        logits.append(out.logits.detach()[real])
    return torch.cat(logits), gradients(model)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("encoding", ["rope", "tape"])
@pytest.mark.parametrize(
    "sequences, jumps, recompute",
    [
        ([[1] * 56 + [3] * 8], False, False),
        ([[7, 1, 10], [5, 3, 9]], True, True),
        ([[17], [4, 1, 20]], False, False),
    ],
    ids=["64 documents", "two sequences, PoSE's jumps, recomputed", "one of them padded"],
)
def test_packed_is_each_document_alone(
    monkeypatch, backend, heads, encoding, sequences, jumps, recompute
):
    """Forward and every gradient: of documents of 1 and odd lengths, with and without padding after them."""
    if backend == "triton" and (heads != "gqa" or encoding != "tape"):
        pytest.skip(
            "the interpreter takes its time: one kind of heads, and the encoding whose kernels these are"
        )
    width = 16 if backend == "triton" else 8
    model = tiny_model(heads, encoding, head_dim=width, num_hidden_layers=2).train()
    if recompute:
        use_recompute(model, 1)
    made = [sequence_of(lengths, jumps) for lengths in sequences]
    batch = collate(made)
    assert ("cu_seq_lens_q" in batch) == (len({sum(lengths) for lengths in sequences}) == 1)
    packed = outcome(model, [batch])
    monkeypatch.setenv("TAPE_DS_ATTENTION", "reference")
    single = outcome(
        model,
        [
            piece(sequence, n)
            for sequence, lengths in zip(made, sequences, strict=True)
            for n in range(len(lengths))
        ],
    )
    torch.testing.assert_close(packed[0], single[0], rtol=0, atol=3e-5)
    assert packed[1].keys() == single[1].keys()
    for name, gradient in packed[1].items():
        scale = single[1][name].abs().max().clamp_min(0.03)
        torch.testing.assert_close(
            gradient / scale, single[1][name] / scale, rtol=0, atol=2e-4, msg=name
        )
    assert bool(varlen_on_cpu.CALLS) or backend != "varlen"


def test_interleaved_documents_have_no_borders():
    sequence = {name: torch.arange(6) for name in ("input_ids", "labels", "position_ids")}
    batch = collate(
        [{**sequence, "document_ids": torch.tensor([0, 1, 0, 1, 1, 1], dtype=torch.int32)}]
    )
    assert "cu_seq_lens_q" not in batch
