"""Where the host may wait for the device, or copy to it, once things are warm; anywhere else is an error."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Allowed(NamedTuple):
    """A place, as :attr:`device.FakeCuda.waits` has it, the cases that wait there, and why."""

    place: str
    when: Callable[[Any], bool]
    why: str


WINDOWED = ("gemma3_text", "mistral", "phi3", "qwen3")
"""Classes of transformers with sliding windows, and without a soft cap."""
CAPPED = ("gemma2", "gpt_oss")
"""Those with windows that have a soft cap or sinks."""
FOREIGN = "transformers/cache_utils.py"
"""Its layers begin with an empty tensor from the host's memory, in some versions: once a cache, and not counted."""


def _trains(case: Any) -> bool:
    return case.kind in ("training", "foreign", "optimization")


ALLOWED = (
    Allowed(
        "tape_ds/kernels/linear_cross_entropy.py:blank_chunks",
        _trains,
        "the loss leaves out chunks without a label: one wait a micro-batch, when everything of it is queued",
    ),
    Allowed(
        "tape_ds/training/trainer.py:TapeTrainer._sync_step",
        lambda case: case.kind == "optimization",
        "once a step all ranks agree, by its loss and the norm of its gradient, whether to go on",
    ),
    Allowed(
        "tape_ds/resilience/guards.py:protect",
        lambda case: case.kind == "optimization",
        "without an engine: once a step, before the weights change, whether every gradient is finite",
    ),
    Allowed(
        "accelerate/utils/operations.py:send_to_device",
        lambda case: case.kind == "optimization",
        "all micro-batches of a step are copied at its beginning, when ranks have just agreed and nothing is queued",
    ),
    Allowed(
        "tape_ds/attention/document_layout.py:layout_of_ids",
        lambda case: case.rows == "padded" or case.kind == "prompt",
        "a mask, or positions alone: only the device knows whether there is padding or a second document. One wait a "
        "call, at its beginning, and before it transformers' generate has waited for the token",
    ),
    Allowed(
        "tape_ds/attention/document_layout.py:_pack",
        lambda case: case.rows == "padded" and case.kind != "decoding",
        "padded sequences without cu_seq_lens: kernels for packed tokens need their number, once for all layers",
    ),
    Allowed(
        "tape_ds/attention/document_layout.py:_contiguous",
        lambda case: case.rows == "padded" and case.encoding in WINDOWED,
        "a window over padded sequences: whether padding is between a document's tokens, once for all layers",
    ),
    Allowed(
        "tape_ds/models/decoder.py:KeyPlaces.within",
        lambda case: (
            case.kind == "foreign"
            and case.rows != "dense"
            and case.encoding in (*WINDOWED, *CAPPED)
        ),
        "layers with a window: whether positions skip further than it, once a call for all of them",
    ),
    Allowed(
        "tape_ds/encodings/base.py:dedupe_positions",
        lambda case: (
            case.kind == "prompt" or (case.kind == "decoding" and "abacus" in case.encoding)
        ),
        "a prompt of several sequences is compared once, so that angles and biases are computed once; with Abacus, "
        "places from a cache at every token",
    ),
    Allowed(
        "tape_ds/attention/sdpa.py:_lengths",
        lambda case: (
            (_trains(case) and case.backend == "sdpa" and case.rows != "dense")
            and (not case.biased or "nope layers" in case.encoding)
        ),
        "sdpa, asked for by hand, calls a kernel for each document: the host needs the lengths, once for all layers",
    ),
    Allowed(
        "tape_ds/encodings/randpe.py:RandpeEncoding.positions_for",
        lambda case: _trains(case) and case.encoding == "randpe",
        "the positions of a forward are drawn by torch's CPU generator, so that all ranks draw the same",
    ),
    Allowed(
        "tape_ds/encodings/kernel_features.py:features",
        lambda case: _trains(case) and case.encoding == "tape from alibi",
        "so are the grids of a forward",
    ),
)


def allowed(case: Any) -> set[str]:
    """Return all places where a case waits: no more, and no fewer, so that the list stays true."""
    return {each.place for each in ALLOWED if each.when(case)}
