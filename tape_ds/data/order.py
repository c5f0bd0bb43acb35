"""Training samples by number: sample ``i`` of a run is a pure function of (seed, i).

It depends neither on the number of ranks or loader processes nor on what was read before. So the number of samples
consumed is the whole state of the loader, and a run resumes at any sample on any number of ranks. Read in order, global
batch ``s`` of size ``G`` is samples ``s * G .. (s + 1) * G - 1``.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from tape_ds.data.pose import PoseSequences
from tape_ds.data.selection import token_counts

if TYPE_CHECKING:
    import datasets

# label of a token that is no target: the ignore_index of torch's cross entropy
IGNORED = -100
# document id
PADDING = -1

# Independent streams of one seed.
(
    ORDER_OF_SEQUENCES,
    POSE_DRAWS,
    ORDER_OF_SHARDS,
    SHUFFLE_IN_SHARD,
    SOURCE_OF_SAMPLE,
    SEED_OF_SOURCE,
) = range(6)
RETRIEVAL_DRAWS = 6


def generator(seed: int, stream: int, *index: int) -> np.random.Generator:
    """Return random numbers that depend only on the arguments and on numpy's version."""
    # PCG64 by name: numpy's default may change
    return np.random.Generator(
        np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=(stream, *index)))
    )


class Orders:
    """The permutation, int64 [count], in which each epoch reads ``count`` sequences."""

    def __init__(self, seed: int, count: int):
        self.seed = seed
        self.count = count
        self._cached: dict[int, np.ndarray] = {}

    def __call__(self, epoch: int) -> np.ndarray:
        if epoch not in self._cached:
            drawn = generator(self.seed, ORDER_OF_SEQUENCES, epoch).permutation(self.count)
            # two are cached, since a step may reach over the border of two epochs
            self._cached = {**dict(list(self._cached.items())[-1:]), epoch: drawn}
        return self._cached[epoch]


class RunSamples(torch.utils.data.Dataset):
    """The samples of a run, by number."""

    samples: int

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < self.samples:
            raise IndexError(f"sample {index} of {self.samples}")
        return self.draw(index)

    def draw(self, index: int) -> dict[str, torch.Tensor]:
        raise NotImplementedError

    def places(self, index: int) -> Any:
        """Return what a resumed run gives :meth:`load_places`, to find sample ``index`` faster, as plain values; None:
        nothing."""
        return None

    def load_places(self, places: Any) -> None:
        """Take what :meth:`places` returned, before the first sample is drawn. It changes no sample."""


class NoSamples(RunSamples):
    """Of a run that trains nothing."""

    samples = 0
    origin = "none is read: nothing is trained"


def places(samples: Any, index: int) -> Any:
    """Return :meth:`RunSamples.places` of a training set; None for one of another class."""
    return samples.places(index) if isinstance(samples, RunSamples) else None


def load_places(samples: Any, of_ranks: Iterable[Any]) -> None:
    """Give a training set what :func:`places` returned on some ranks."""
    if isinstance(samples, RunSamples):
        for each in of_ranks:
            samples.load_places(each)


class TrainingSequences(RunSamples):
    """A run's samples, from packed sequences or, with ``pose``, from documents.

    Every epoch ``i // len(stored)`` has its own order. With PoSE, sample ``i`` also draws its chunks and positions from
    (seed, i), so that every epoch cuts a document differently.

    Items are dicts of tensors [t], t = the packed length, or at most ``pose.window``:

    - ``input_ids`` int64
    - ``position_ids`` int64. Packed sequences: 0 .. t - 1 across the borders of documents, so that late positions are
      trained although documents may be short. PoSE: as drawn.
    - ``document_ids`` int32. Packed: from the sequences, or with ``attend_across`` all 0. PoSE: all 0, one document.
    - ``labels`` int64, aligned with ``input_ids`` (the model shifts). Packed: a document's first token is -100, since
      attention does not cross the border (with ``attend_across`` it does, and the token stays a target). PoSE, as in
      the original: the first token of a later chunk stays a target, although text was left out before it. The first
      token of every sequence is -100, so that the labels other than -100 count the targets.
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
        """
        Args:
            stored: from :func:`tape_ds.data.pack.pack`, or with ``pose`` from :func:`tape_ds.data.selection.select`.
            samples: of the run; may exceed the sequences (several epochs).
            attend_across: treat a packed sequence as one document.
            origin: a description of the data and of what was left out, for reports.
        """
        columns = ["input_ids"] if pose else ["input_ids", "document_ids"]
        self.stored = stored.with_format("numpy", columns=columns, dtype=np.int64)
        self.samples = samples
        self.seed = seed
        self.pose = pose
        self.attend_across = attend_across
        self.origin = origin
        self.order = Orders(seed, len(stored))

    def row_of(self, index: int) -> int:
        """Return the row of ``stored`` that sample ``index`` is made from."""
        epoch, place = divmod(index, len(self.stored))
        return int(self.order(epoch)[place])

    def draw(self, index: int) -> dict[str, torch.Tensor]:
        stored = self.stored[self.row_of(index)]
        if self.pose is None:
            return packed_item(stored, self.attend_across)
        input_ids, position_ids = self.pose.draw(
            stored["input_ids"], generator(self.seed, POSE_DRAWS, index)
        )
        return item(input_ids, slice(1, None), position_ids)


class AnswerSequences(RunSamples):
    """A run's samples of whole sequences with an answer: a pure function of (seed, index, sequences of a step).

    The sequences of an optimizer step are drawn from (seed, step) regardless of length, and ordered by length, the
    longest first: those that are padded together are of similar length, and ranks have equal work at a time.

    Items are dicts of tensors [t], t = the sequence's length: ``input_ids``, ``position_ids`` (0 .. t - 1), ``labels``
    (-100 except for the answer and its EOS, aligned with ``input_ids``), all int64, and ``document_ids`` int32 (0).
    """

    # of ``stored``, for :meth:`item`
    COLUMNS: ClassVar[tuple[str, ...]] = ("input_ids", "targets")

    def __init__(self, stored: "datasets.Dataset", *, samples: int, seed: int, step_sequences: int):
        self.stored = stored.with_format("numpy", columns=list(self.COLUMNS), dtype=np.int64)
        self.samples = samples
        self.order = Orders(seed, len(stored))
        self.step_sequences = step_sequences
        self.lengths = token_counts(stored)
        self._step = -1
        self._members: list[int] = []

    @property
    def tokens(self) -> int:
        epochs, rest = divmod(self.samples, len(self.stored))
        last = self.order(epochs)[:rest]
        return epochs * int(self.lengths.sum()) + int(self.lengths[last].sum())

    def row_of(self, index: int) -> int:
        """Return the row of ``stored`` that sample ``index`` is made from."""
        step, place = divmod(index, self.step_sequences)
        if step != self._step:
            count = len(self.stored)
            indices = range(step * self.step_sequences, (step + 1) * self.step_sequences)
            drawn = [self.order(number // count)[number % count] for number in indices]
            # stable: of equal ones the first drawn
            self._members = sorted(drawn, key=lambda row: -self.lengths[row])
            self._step = step
        return int(self._members[place])

    def draw(self, index: int) -> dict[str, torch.Tensor]:
        return self.item(self.stored[self.row_of(index)])

    def item(self, row: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Return the tensors of a stored row, whose last ``targets`` tokens are the answer."""
        return item(row["input_ids"], slice(len(row["input_ids"]) - int(row["targets"]), None))


def packed_item(
    sequence: dict[str, np.ndarray], attend_across: bool = False
) -> dict[str, torch.Tensor]:
    """Return the item (see :class:`TrainingSequences`) of a sequence of :mod:`tape_ds.data.pack`."""
    owners = np.zeros_like(sequence["document_ids"]) if attend_across else sequence["document_ids"]
    return item(
        sequence["input_ids"], np.flatnonzero(np.diff(owners) == 0) + 1, document_ids=owners
    )


def item(
    input_ids: Sequence[int] | np.ndarray,
    targets: Sequence[int] | slice | np.ndarray,
    position_ids: np.ndarray | None = None,
    document_ids: np.ndarray | None = None,
) -> dict[str, torch.Tensor]:
    """Return the tensors [t] of a sequence, see :class:`TrainingSequences`; ``targets`` are indices of tokens."""
    ids = np.asarray(input_ids, np.int64)
    labels = np.full_like(ids, IGNORED)
    labels[targets] = ids[targets]
    return {
        "input_ids": torch.tensor(ids),
        "labels": torch.tensor(labels),
        "position_ids": torch.tensor(
            np.arange(len(ids)) if position_ids is None else position_ids, dtype=torch.int64
        ),
        "document_ids": torch.tensor(
            np.zeros(len(ids)) if document_ids is None else document_ids, dtype=torch.int32
        ),
    }


def collate(
    sequences: Sequence[dict[str, torch.Tensor]],
    pad_token_id: int = 0,
    multiple_of: int = 1,
    weigh: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> dict[str, torch.Tensor | int]:
    """Return sequences of unequal length as one batch [B, T], padded on the right; ``weigh`` adds ``target_weights``
    [B, T] of its ``document_ids``.

    T is the longest sequence, rounded up to ``multiple_of`` (for sequence parallelism and some kernels). Padding has
    document id -1 and label -100, so it is neither attended nor a target.

    Positions that are equal in every sequence come once, as [1, T]. A batch without padding, each of whose documents is
    contiguous, also has the starts of documents in the concatenated tokens, named as by transformers' collators
    (``cu_seq_lens_q``, ``max_length_q``, the same for ``_k``), so that a model does not wait for the device. Such a
    batch cannot be split by sequences.
    """
    longest = max(len(sequence["input_ids"]) for sequence in sequences)
    length = -(-longest // multiple_of) * multiple_of
    filling = {"input_ids": pad_token_id, "labels": IGNORED, "document_ids": PADDING}
    batch: dict[str, torch.Tensor | int] = {}
    for name in sequences[0]:
        padded = []
        for sequence in sequences:
            values = sequence[name]
            # positions repeat their last one: 0 would be a beginning, and counting on could exceed an encoding's table
            value = int(filling.get(name, values[-1]))
            padded.append(torch.cat([values, values.new_full((length - len(values),), value)]))
        batch[name] = torch.stack(padded)
    if weigh is not None:
        batch["target_weights"] = weigh(torch.as_tensor(batch["document_ids"]))
    positions = batch.get("position_ids")
    documents = batch.get("document_ids")
    if isinstance(positions, torch.Tensor) and bool((positions == positions[:1]).all()):
        batch["position_ids"] = positions[:1]

    if isinstance(documents, torch.Tensor) and not bool((documents == PADDING).any()):
        contiguous = all(
            len(sequence.unique_consecutive()) == len(sequence.unique()) for sequence in documents
        )
        if contiguous:
            # a sequence begins a document
            begins = torch.ones_like(documents, dtype=torch.bool)
            begins[:, 1:] = documents.diff(dim=1) != 0
            starts = torch.cat(
                (begins.flatten().nonzero()[:, 0], torch.tensor([documents.numel()]))
            )
            batch |= {"cu_seq_lens_q": starts.int(), "cu_seq_lens_k": starts.int()}
            batch |= dict.fromkeys(("max_length_q", "max_length_k"), int(starts.diff().max()))
    return batch
