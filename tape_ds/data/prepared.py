"""Tokenise a corpus ahead, in parallel, so that runs only map it into memory: ``arrow:DIR``.

The inputs (files, mostly) are dealt in their order to ``parts``, each a run of neighbours. A part is one task: its
documents are tokenised one after another into shards of about ``shard_tokens`` tokens, ``PPPPP-SSSSS.arrow``, as
:func:`tape_ds.data.packing.encode` does it. Both numbers decide the shards and the number of workers does not.

Until the manifest is written (:mod:`tape_ds.data.manifest`), the subfolder ``unfinished`` holds ``plan.json`` (the
settings), a record of each part, the shards being written and a lock. A shard is written aside, read back, noted in its
part's record and only then renamed. So a file that no record names is foreign, and one that a record names and that is
not there has to be made again, with all behind it in its part. Killed at any moment and started again, the preparation
resumes behind the last shard of each part; documents before it are read but not tokenised.

``datasets.map(num_proc)`` keeps nothing of a worker's share that was not whole when it was killed, leaves its temporary
files behind and its workers at work, and needs the text as Arrow first.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute

from tape_ds import storage
from tape_ds.data import manifest, workers
from tape_ds.data.manifest import MANIFEST, UNFINISHED, DataManifest, Settings, ShardEntry
from tape_ds.data.packing import document_features, encode, tokenizer_fingerprint
from tape_ds.data.sources import SPLITS, Document, Shard, parse_all
from tape_ds.errors import Problem, UserError, disk_error, raise_if_any, redacted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHARD_TOKENS = 100_000_000
"""Tokens of a shard unless given: 400 MB."""
PARTS = 64
"""Parts unless given."""

# A record batch ends at either; larger ones would cost memory, smaller ones time when single documents are read.
_BATCH_DOCUMENTS = 256
_BATCH_TOKENS = 2**20


@dataclass(frozen=True)
class PreparedPart:
    """A task: some inputs, and the shards of them that are there already."""

    number: int
    inputs: tuple[Shard, ...]
    entries: tuple[ShardEntry, ...] = ()
    done: bool = False
    """Whether these are all its shards."""


def prepare(
    addresses: Sequence[str],
    tokenizer: "PreTrainedTokenizerBase",
    folder: str | Path,
    *,
    split: str = "train",
    shard_tokens: int = SHARD_TOKENS,
    parts: int = PARTS,
    processes: int = 1,
    report: Callable[[ShardEntry], None] = lambda entry: None,
) -> DataManifest:
    """Make ``folder`` a finished one, or resume making it.

    Args:
        addresses: of text, see :mod:`tape_ds.data.sources`.
        tokenizer: any of transformers; with its own special tokens, never truncating.
        folder: new, empty, or of an earlier call with the same arguments.
        split: ``"train"`` or ``"heldout"``.
        shard_tokens: a shard ends with the document that reaches it.
        parts: at most so many tasks; more than ``processes``, or the last of them are waited for.
        processes: see :func:`tape_ds.data.workers.run`.
        report: called after each new shard.

    Raises:
        UserError: an address or its data, no token in them, other arguments than the folder's, a folder of other
            things or with a shard that is damaged or foreign, a folder in which another call is at work, a full disk.
        ValueError: an unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"split = {split!r}: one of {', '.join(SPLITS)}")
    folder = Path(folder)
    numbers = {"shard_tokens": shard_tokens, "parts": parts, "workers": processes}
    raise_if_any([Problem(name, n, "not a positive number", "1 or more") for name, n in numbers.items() if n < 1])
    sources = parse_all(addresses, "data")
    remedy = "leave it out here, and name it beside this folder in the recipe's train_data"
    raise_if_any([source.problem("token ids already", remedy) for source in sources if source.tokenised])
    inputs = [shard for source in sources for shard in source.shards(split)]
    settings = Settings(
        split=split,
        tokenizer=tokenizer_fingerprint(tokenizer),
        tokenizer_name=tokenizer.name_or_path,
        addresses=[redacted(address) for address in addresses],
        sources=[source.fingerprint() for source in sources],
        inputs=hashlib.sha256("\0".join(shard.name for shard in inputs).encode()).hexdigest(),
        shard_tokens=shard_tokens,
        parts=parts,
    )
    _check_folder(folder, settings)
    if (folder / MANIFEST).is_file() and not manifest.check(folder, "output", str(folder)):
        return manifest.read(folder)
    with _disk(folder), claimed(folder):
        tasks = _resume(folder, settings, _dealt(inputs, parts))
        write = partial(_write_part, tokenizer=tokenizer, folder=folder, limit=shard_tokens)
        workers.run(write, [part for part in tasks if not part.done], processes, report)
        return _finish(folder, settings, [_recorded(folder, part) for part in tasks])


def verify(folder: str | Path, threads: int = 1) -> list[Problem]:
    """Everything wrong with a finished folder, every byte of it read: a problem for each damaged or foreign shard."""
    field = "check"
    folder = Path(folder)
    if not manifest.is_prepared(folder):
        return [Problem(field, str(folder), f"no prepared data: there is no {MANIFEST}", "check the path")]
    found = manifest.check(folder, field, str(folder))
    try:
        shards = manifest.read(folder).shards
    except ValueError:
        return found
    whole = [entry for entry in shards if manifest.misfit(folder, entry) is None]
    with ThreadPoolExecutor(threads) as pool:  # hashing holds no lock of Python's
        damages = list(pool.map(partial(manifest.damage, folder), whole))
    return found + [Problem(field, str(folder), wrong, manifest.MAKE_ANEW) for wrong in damages if wrong]


# --- the folder -----------------------------------------------------------------------------------------------------


def _problem(folder: Path, wrong: str, remedy: str) -> Problem:
    return Problem("output", str(folder), wrong, remedy)


def _check_folder(folder: Path, settings: Settings) -> None:
    """Raise unless ``folder`` is new, empty, or was begun with ``settings``; every one that differs is named."""
    if not (folder.is_dir() and manifest.is_prepared(folder)):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(_problem(folder, "holds something else", "name a new folder"))
        return
    plan = folder / UNFINISHED / "plan.json"
    try:
        if (folder / MANIFEST).is_file():
            raise_if_any(_differences(manifest.read(folder).settings, settings))
        elif plan.is_file():  # else it was killed before that was written
            raise_if_any(_differences(Settings(**json.loads(plan.read_text(encoding="utf-8"))), settings))
    except UserError:
        raise
    except (TypeError, ValueError) as error:
        raise UserError(_problem(folder, f"cannot be resumed: {error}", "name a new folder")) from error


def _differences(known: Settings, wanted: Settings) -> list[Problem]:
    """A problem for each setting in which ``wanted`` is not what the folder was begun with."""
    names = known.differences(wanted)
    if {"sources", "split"} & set(names):
        names = [name for name in names if name != "inputs"]  # which follow from these
    problems = []
    for name in names:
        option, value, wrong = name, getattr(wanted, name), f"the folder was begun with {getattr(known, name)!r}"
        if name == "tokenizer":
            value = wanted.tokenizer_name
            wrong = f"not the tokenizer that the folder was begun with ({known.tokenizer_name})"
        elif name in {"sources", "inputs"}:
            option, value = "data", wanted.addresses
            wrong = f"not the data that the folder was begun with ({', '.join(known.addresses)}), or changed since"
        problems.append(Problem(option, value, wrong, "give what it was begun with, or name a new folder"))
    return problems


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Alone at work in ``folder``.

    Raises:
        UserError: another process is, or the folder cannot be made.
    """
    from filelock import FileLock, Timeout

    try:
        (folder / UNFINISHED).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(_problem(folder, f"cannot be made ({error.strerror})", "name another folder")) from error
    try:
        with FileLock(folder / UNFINISHED / "lock", timeout=0):
            yield
    except Timeout as error:
        remedy = "wait until it is done, or name another folder"
        raise UserError(_problem(folder, "another preparation is at work in it", remedy)) from error


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """What the disk refuses, here or in a worker, becomes a message."""
    try:
        yield
    except OSError as error:
        refused = disk_error(error, "output", folder, "started again, the preparation resumes where it was")
        if refused is None:
            raise
        raise refused from error


def _dealt(inputs: list[Shard], parts: int) -> list[PreparedPart]:
    """Neighbouring inputs in parts of equal number, or one less."""
    borders = np.linspace(0, len(inputs), min(parts, len(inputs)) + 1).round().astype(int)
    return [PreparedPart(k, tuple(inputs[borders[k] : borders[k + 1]])) for k in range(len(borders) - 1)]


def _resume(folder: Path, settings: Settings, parts: Sequence[PreparedPart]) -> list[PreparedPart]:
    """``parts`` with the shards that are there; leaves nothing else in the folder.

    Raises:
        UserError: naming every foreign shard and every one of another size than it had.
    """
    for left_over in (folder / UNFINISHED).glob("*.writing"):
        left_over.unlink()
    if (folder / MANIFEST).is_file():
        known = manifest.read(folder).shards
        parts = [replace(part, entries=tuple(e for e in known if e.part == part.number), done=True) for part in parts]
    else:
        parts = [_recorded(folder, part) for part in parts]
    entries = [entry for part in parts for entry in part.entries]
    problems = [_problem(folder, wrong, remedy) for wrong, remedy in manifest.foreign(folder, entries)]
    there = [entry for entry in entries if (folder / entry.file).exists()]
    wrongs = [manifest.misfit(folder, entry) for entry in there]
    raise_if_any(problems + [_problem(folder, wrong, manifest.MAKE_ANEW) for wrong in wrongs if wrong])
    parts = [_present(folder, part) for part in parts]
    for part in parts:
        _record(folder, part)
    storage.write_json(folder / UNFINISHED / "plan.json", asdict(settings))
    (folder / MANIFEST).unlink(missing_ok=True)
    return parts


def _present(folder: Path, part: PreparedPart) -> PreparedPart:
    """``part`` up to its first shard that is missing; what lies behind is removed, since it is made again."""
    missing = [k for k, entry in enumerate(part.entries) if not (folder / entry.file).exists()]
    if not missing:
        return part
    for entry in part.entries[missing[0] :]:
        (folder / entry.file).unlink(missing_ok=True)
    return replace(part, entries=part.entries[: missing[0]], done=False)


def _recorded(folder: Path, part: PreparedPart) -> PreparedPart:
    """``part`` as its record has it."""
    try:
        record = json.loads((folder / UNFINISHED / f"{part.number:05d}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return part
    return replace(part, entries=tuple(ShardEntry(**entry) for entry in record["entries"]), done=record["done"])


def _record(folder: Path, part: PreparedPart) -> None:
    """Note what of ``part`` is there."""
    record = {"entries": [asdict(entry) for entry in part.entries], "done": part.done}
    storage.write_json(folder / UNFINISHED / f"{part.number:05d}.json", record)


def _finish(folder: Path, settings: Settings, parts: list[PreparedPart]) -> DataManifest:
    """Write the manifest, once every part is done.

    Raises:
        UserError: they have no shard at all; the folder is as empty as before then.
    """
    from datasets import DatasetInfo

    result = DataManifest(settings, tuple(entry for part in parts for entry in part.entries))
    if not result.shards:
        shutil.rmtree(folder / UNFINISHED)
        raise UserError(Problem("data", settings.addresses, "no document has any token", "name data that hold text"))
    DatasetInfo(features=document_features()).write_to_directory(str(folder))
    result.write(folder)
    shutil.rmtree(folder / UNFINISHED)
    return result


# --- shards ---------------------------------------------------------------------------------------------------------


def _write_part(
    part: PreparedPart,
    tell: Callable[[ShardEntry], None],
    *,
    tokenizer: "PreTrainedTokenizerBase",
    folder: Path,
    limit: int,
) -> None:
    """Write the shards of ``part`` that are not there, one after another."""
    end = part.entries[-1].end if part.entries else 0
    documents = (document for shard in part.inputs for document in shard.documents())
    rows = encode(islice(documents, end, None), tokenizer)
    while not part.done:
        name = f"{part.number:05d}-{len(part.entries):05d}.arrow"
        aside = folder / UNFINISHED / f"{name}.{os.getpid()}.writing"
        read, count, tokens = write_shard(aside, rows, limit)
        end += read
        part = replace(part, done=tokens < limit)
        if count == 0:
            aside.unlink()
            _record(folder, part)
            return
        entry = ShardEntry(name, part.number, count, tokens, aside.stat().st_size, storage.digest(aside), end)
        part = replace(part, entries=(*part.entries, entry))
        _record(folder, part)
        os.replace(aside, folder / name)
        tell(entry)


def write_shard(path: Path, rows: Iterator[tuple[Document, np.ndarray]], limit: int) -> tuple[int, int, int]:
    """Write rows ``{name, input_ids}`` until they hold ``limit`` tokens or none are left; documents stay whole.

    An Arrow stream file, the kind that ``datasets`` maps into memory. Its bytes depend on the documents and the limit
    alone, not on how they were batched for the tokenizer: a shard made again, by whichever worker, is the same file.

    Args:
        path: made or written over; on the disk for good when this returns, and gone when it raises.
        rows: of :func:`tape_ds.data.packing.encode`; what is raised in reading them is passed on.
        limit: tokens, 1 or more.

    Returns:
        Documents read, documents written (those that have tokens), tokens.

    Raises:
        OSError: the disk is full or refuses.
        UserError: the disk gives back something else than was written.
    """
    read = count = tokens = 0

    def taken() -> Iterator[tuple[str, np.ndarray]]:
        nonlocal read, count, tokens
        while tokens < limit and (row := next(rows, None)) is not None:
            document, ids = row
            read += 1
            if len(ids):
                count, tokens = count + 1, tokens + len(ids)
                yield document.name, ids

    try:
        schema = document_features().arrow_schema
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
            for batch in _batches(taken(), schema):
                stream.write_batch(batch)
        storage.sync(path)
        if (found := measure(path)) != (count, tokens):
            wrong = f"{path.name} reads back as {found} documents and tokens, not as what was written"
            raise UserError(_problem(path.parent, wrong, "check the disk"))
    except Exception:
        path.unlink(missing_ok=True)  # it would keep the disk full
        raise
    return read, count, tokens


def measure(path: Path) -> tuple[int, int]:
    """(documents, tokens) of a shard, from the file."""
    documents = tokens = 0
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        for batch in stream:
            documents += batch.num_rows
            tokens += pa.compute.sum(pa.compute.list_value_length(batch.column("input_ids"))).as_py()
    return documents, tokens


def _batches(rows: Iterator[tuple[str, np.ndarray]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    waiting: list[tuple[str, np.ndarray]] = []
    tokens = 0
    for row in rows:
        waiting.append(row)
        tokens += len(row[1])
        if len(waiting) == _BATCH_DOCUMENTS or tokens >= _BATCH_TOKENS:
            yield _batch(waiting, schema)
            waiting, tokens = [], 0
    if waiting:
        yield _batch(waiting, schema)


def _batch(rows: list[tuple[str, np.ndarray]], schema: pa.Schema) -> pa.RecordBatch:
    names, arrays = zip(*rows, strict=True)
    ends = pa.array(np.cumsum([0, *map(len, arrays)]), pa.int32())
    ids = pa.array(np.concatenate(arrays), pa.int32())
    lists = pa.ListArray.from_arrays(ends, ids, type=schema.field("input_ids").type)
    return pa.RecordBatch.from_arrays([pa.array(names, pa.string()), lists], schema=schema)
