"""Training samples by number: sample ``i`` of a run is a pure function of (seed, i).

Nothing else decides it: not the number of ranks or of loader processes, not what was read before. So the whole state of
the loader is the number of samples consumed, a run resumes at any sample on any number of ranks, and read in order
(a sequential sampler) global batch ``s`` of size ``G`` is samples ``s * G .. (s + 1) * G - 1``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from tape_ds.data.pose import PoseSequences

if TYPE_CHECKING:
    import datasets

IGNORED = -100
"""Label of a token that is no target (the ignore_index of torch's cross entropy)."""
PADDING = -1
"""Document id of padding."""

# Independent streams of one seed.
ORDER_OF_SEQUENCES, POSE_DRAWS, ORDER_OF_SHARDS, SHUFFLE_IN_SHARD, SOURCE_OF_SAMPLE, SEED_OF_SOURCE = range(6)


def generator(seed: int, stream: int, *index: int) -> np.random.Generator:
    """Random numbers that depend on these numbers alone (and, as numpy promises no more, on its version).

    PCG64 is named because numpy's default may change.
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=(stream, *index))))


class Orders:
    """The order in which each epoch reads ``count`` sequences, a permutation int64 [count].

    The two that were last asked for are kept, since a step may reach over the border of two epochs.
    """

    def __init__(self, seed: int, count: int):
        self.seed = seed
        self.count = count
        self._kept: dict[int, np.ndarray] = {}

    def __call__(self, epoch: int) -> np.ndarray:
        if epoch not in self._kept:
            drawn = generator(self.seed, ORDER_OF_SEQUENCES, epoch).permutation(self.count)
            self._kept = {**dict(list(self._kept.items())[-1:]), epoch: drawn}
        return self._kept[epoch]


class TrainingSequences(torch.utils.data.Dataset):
    """A run's samples, over packed sequences or, with ``pose``, over documents.

    Every pass over the sequences (epoch ``i // len(stored)``) has its own order, a permutation drawn from (seed,
    epoch). With PoSE, sample ``i`` also draws its chunks and positions from (seed, i), so every pass cuts a document
    anew.

    Items are dicts of tensors [t], t = the packed length, or at most ``pose.window``:

    - ``input_ids`` int64
    - ``position_ids`` int64, always given. Packed sequences: 0 .. t - 1 along the sequence, going on over the borders
      of documents, so that late positions are trained although documents may be short. PoSE: as drawn.
    - ``document_ids`` int32. Packed: from the sequences, or with ``attend_across`` all 0. PoSE: all 0, one document.
    - ``labels`` int64, aligned with ``input_ids`` (the model shifts). Packed sequences: a document's first token is
      -100, since attention does not cross the border and the token before it, of another document, cannot predict it
      (with ``attend_across`` it does, and the token stays a target, as in runs that join documents before cutting).
      PoSE sequences follow the original: the first token of a later chunk stays a target, although text was left out
      before it (chunks - 1 tokens of a window; it keeps the loss on par with published runs). The first token of every
      sequence is -100: shifting drops it anyway, and so the labels other than -100 count the targets.
    """

    def __init__(
        self,
        stored: "datasets.Dataset",
        *,
        samples: int,
        seed: int,
        pose: PoseSequences | None = None,
        attend_across: bool = False,
        origin: str = "",
    ):
        """Serve ``samples`` samples from ``stored``.

        Args:
            stored: of :func:`tape_ds.data.tokenized.pack`, or with ``pose`` of :func:`tape_ds.data.selection.select`.
            samples: how many samples the run consumes; may exceed the sequences (several epochs).
            seed: 0 or more.
            pose: draws from documents; None serves packed sequences as they are.
            attend_across: take a packed sequence for one document, so that attention crosses the borders within.
            origin: what the sequences were made of and what was left out, in words, for reports.
        """
        columns = ["input_ids"] if pose else ["input_ids", "document_ids"]
        self.stored = stored.with_format("numpy", columns=columns, dtype=np.int64)
        self.samples = samples
        self.seed = seed
        self.pose = pose
        self.attend_across = attend_across
        self.origin = origin
        self.order = Orders(seed, len(stored))

    def __len__(self) -> int:
        return self.samples

    def row_of(self, index: int) -> int:
        """Return which row of ``stored`` sample ``index`` is."""
        epoch, at = divmod(index, len(self.stored))
        return int(self.order(epoch)[at])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < self.samples:
            raise IndexError(f"sample {index} of {self.samples}")
        stored = self.stored[self.row_of(index)]
        if self.pose is None:
            return packed_item(stored, self.attend_across)
        input_ids, position_ids = self.pose.draw(stored["input_ids"], generator(self.seed, POSE_DRAWS, index))
        return item(input_ids, slice(1, None), position_ids)


def packed_item(sequence: dict[str, np.ndarray], attend_across: bool = False) -> dict[str, torch.Tensor]:
    """Return the item (see :class:`TrainingSequences`) of a sequence of :mod:`tape_ds.data.pack`."""
    owners = np.zeros_like(sequence["document_ids"]) if attend_across else sequence["document_ids"]
    return item(sequence["input_ids"], np.flatnonzero(np.diff(owners) == 0) + 1, document_ids=owners)


def item(
    input_ids: Sequence[int] | np.ndarray,
    targets: Sequence[int] | slice | np.ndarray,
    position_ids: np.ndarray | None = None,
    document_ids: np.ndarray | None = None,
) -> dict[str, torch.Tensor]:
    """Return the tensors of a sequence, types as of :class:`TrainingSequences`.

    Args:
        input_ids: its tokens, [t].
        targets: places of those that are targets.
        position_ids: [t]; default 0 .. t - 1.
        document_ids: [t]; default all 0, one document.
    """
    ids = np.asarray(input_ids, np.int64)
    labels = np.full_like(ids, IGNORED)
    labels[targets] = ids[targets]
    return {
        "input_ids": torch.tensor(ids),
        "labels": torch.tensor(labels),
        "position_ids": torch.tensor(np.arange(len(ids)) if position_ids is None else position_ids, dtype=torch.int64),
        "document_ids": torch.tensor(np.zeros(len(ids)) if document_ids is None else document_ids, dtype=torch.int32),
    }


def collate(
    sequences: Sequence[dict[str, torch.Tensor]], pad_token_id: int = 0, multiple_of: int = 1
) -> dict[str, torch.Tensor | int]:
    """Return sequences of unequal length as one batch [B, T], padded on the right.

    T is the longest sequence, rounded up to ``multiple_of`` (sequence parallelism and some kernels want one). Padding
    has document id -1 and label -100, so it is neither attended nor a target. Its position is the sequence's last one
    again: 0 would look like the start of something, and counting on could leave the table of an encoding that has one.

    A batch without padding, whose documents each lie together, also says where documents begin in all sequences' tokens
    one after the other, by the names of transformers' collators (``cu_seq_lens_q``, ``max_length_q``, the same for
    ``_k``), so that a model need not ask the device; and positions that are the same in every sequence come once, as
    [1, T]. So a batch cannot be cut by sequences.
    """
    longest = max(len(sequence["input_ids"]) for sequence in sequences)
    length = -(-longest // multiple_of) * multiple_of
    filling = {"input_ids": pad_token_id, "labels": IGNORED, "document_ids": PADDING}
    batch: dict[str, torch.Tensor] = {}
    for name in sequences[0]:
        padded = [_padded(sequence[name], length, filling.get(name)) for sequence in sequences]
        batch[name] = torch.stack(padded)
    if "position_ids" in batch and bool((batch["position_ids"] == batch["position_ids"][:1]).all()):
        batch["position_ids"] = batch["position_ids"][:1]
    return {**batch, **_document_starts(batch["document_ids"])} if "document_ids" in batch else {**batch}


def _document_starts(document_ids: torch.Tensor) -> dict[str, torch.Tensor | int]:
    """Return where documents begin in sequences [B, T], for kernels that read packed sequences; nothing for sequences
    with padding, or with a document that goes on behind another one's tokens."""
    apart = any(len(sequence.unique_consecutive()) != len(sequence.unique()) for sequence in document_ids)
    if apart or bool((document_ids == PADDING).any()):
        return {}
    begins = torch.ones_like(document_ids, dtype=torch.bool)  # a sequence begins a document
    begins[:, 1:] = document_ids.diff(dim=1) != 0
    starts = torch.cat((begins.flatten().nonzero()[:, 0], torch.tensor([document_ids.numel()])))
    longest = int(starts.diff().max())
    return {
        "cu_seq_lens_q": starts.int(),
        "cu_seq_lens_k": starts.int(),
        "max_length_q": longest,
        "max_length_k": longest,
    }


def _padded(values: torch.Tensor, length: int, filling: int | None) -> torch.Tensor:
    """``values`` [t] -> [length]; without a ``filling`` the last value is repeated."""
    value = values[-1] if filling is None else filling
    tail = values.new_full((length - len(values),), int(value))
    return torch.cat([values, tail])
