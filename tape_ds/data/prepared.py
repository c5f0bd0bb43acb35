"""Tokenise a corpus ahead, in parallel, so that runs only map it into memory: ``arrow:DIR``.

The inputs (files, mostly) are dealt in their order to ``parts``, each a run of neighbours. A part is one task: its
documents are tokenised one after another into shards of about ``shard_tokens`` tokens, ``PPPPP-SSSSS.arrow``, as
:func:`tape_ds.data.tokenized.encode` does it. Both numbers decide the shards and the number of workers does not.

Beside a shard, once it is whole, a record of it is written into the subfolder ``records``; when all are there, the
manifest (:mod:`tape_ds.data.manifest`). Killed at any moment and started again, or started again with a shard deleted,
the preparation resumes in each part behind the shards that have a record and its size. Documents before that are read
but not tokenised. A shard made again is the same file, so nothing that was left there is in the way.

``datasets.map(num_proc)`` keeps nothing of a worker's share that was not whole when it was killed, leaves its temporary
files behind and its workers at work, and needs the text as Arrow first.
"""

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tape_ds import building, storage
from tape_ds.data import manifest
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.manifest import MANIFEST, RECORDS, DataManifest, Settings, ShardEntry
from tape_ds.data.sources import Document, Shard, parse_all
from tape_ds.data.tokenized import document_features, encode, tokenizer_fingerprint
from tape_ds.errors import Problem, UserError, raise_if_any, redacted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHARD_TOKENS = 100_000_000
"""Tokens of a shard unless given: 400 MB."""
PARTS = 64
"""Parts unless given."""

# A record batch ends at either; larger ones would cost memory, smaller ones time when single documents are read.
_BATCH_DOCUMENTS = 256
_BATCH_TOKENS = 2**20


def prepare(
    specs: Sequence[str],
    tokenizer: "PreTrainedTokenizerBase",
    folder: str | Path,
    *,
    split: str = "train",
    shard_tokens: int = SHARD_TOKENS,
    parts: int = PARTS,
    processes: int = 1,
    bad_rows: BadRows | None = None,
    report: Callable[[ShardEntry], None] = lambda entry: None,
) -> DataManifest:
    """Make ``folder`` a finished one, or resume making it.

    Args:
        specs: of data, see :mod:`tape_ds.data.sources`.
        tokenizer: any of transformers; with its own special tokens, never truncating.
        folder: new, empty, or of an earlier call with the same arguments.
        split: ``"train"`` or ``"heldout"``.
        shard_tokens: a shard ends with the document that reaches it.
        parts: at most so many tasks; more than ``processes``, or the last of them are waited for.
        processes: 1 works in this very one.
        bad_rows: what happens to rows that cannot be read; by default the first is refused.
        report: called after each new shard, in the process that wrote it; picklable.

    Raises:
        UserError: a spec or its data, no token in them, other arguments than the folder's, a folder of other
            things, a folder in which another call is at work, a process that was killed, a full disk.
    """
    folder = Path(folder)
    numbers = {"shard_tokens": shard_tokens, "parts": parts, "workers": processes}
    raise_if_any([Problem(name, n, "not a positive number", "1 or more") for name, n in numbers.items() if n < 1])
    bad_rows = bad_rows or BadRows()
    sources = parse_all(specs, "data", bad_rows)
    remedy = "leave it out here, and name it beside this folder in the recipe's train_data"
    raise_if_any([source.problem("token ids already", remedy) for source in sources if source.tokenised])
    inputs = [shard for source in sources for shard in source.shards(split)]
    read = [source.fingerprint() for source in sources] + [shard.name for shard in inputs]
    settings = Settings(
        split=split,
        tokenizer=tokenizer_fingerprint(tokenizer),
        tokenizer_name=tokenizer.name_or_path,
        addresses=[redacted(spec) for spec in specs],
        data=hashlib.sha256("\0".join(read).encode()).hexdigest(),
        shard_tokens=shard_tokens,
        parts=parts,
    )
    _check_folder(folder, settings)
    if (folder / MANIFEST).is_file() and not manifest.check(folder, "output", str(folder)):
        _count(folder, bad_rows)
        return manifest.read(folder)
    with building.disk("output", folder, "started again, the preparation resumes where it was"), claimed(folder):
        storage.write_json(folder / RECORDS / "plan.json", asdict(settings))
        for left_over in folder.rglob(".*.writing"):
            left_over.unlink()
        work = {"tokenizer": tokenizer, "folder": folder, "limit": shard_tokens, "report": report}
        write = partial(_write_part, bad_rows=bad_rows, **work)
        written = _in_processes(write, list(enumerate(_dealt(inputs, parts))), processes)
        _count(folder, bad_rows)
        return _finish(folder, settings, tuple(chain.from_iterable(written)))


def verify(folder: str | Path, threads: int = 1) -> list[Problem]:
    """Return everything wrong with a finished folder, every byte of it read: a problem for each damaged shard."""
    folder = Path(folder)
    if not manifest.is_prepared(folder):
        return [Problem("check", str(folder), f"no prepared data: there is no {MANIFEST}", "check the path")]
    found = manifest.check(folder, "check", str(folder))
    try:
        shards = manifest.read(folder).shards
    except ValueError:
        return found
    with ThreadPoolExecutor(threads) as pool:  # hashing holds no lock of Python's
        damages = list(pool.map(partial(manifest.damage, folder), shards))
    return [Problem("check", str(folder), wrong, manifest.MAKE_ANEW) for wrong in damages if wrong]


# --- the folder -----------------------------------------------------------------------------------------------------


def _problem(folder: Path, wrong: str, remedy: str) -> Problem:
    return Problem("output", str(folder), wrong, remedy)


def _check_folder(folder: Path, settings: Settings) -> None:
    """Raise unless ``folder`` is new, empty, or was begun with ``settings``; every one that differs is named."""
    if not (folder.is_dir() and manifest.is_prepared(folder)):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(_problem(folder, "holds something else", "name a new folder"))
        return
    plan = folder / RECORDS / "plan.json"
    try:
        if (folder / MANIFEST).is_file():
            known = manifest.read(folder).settings
        elif plan.is_file():
            known = Settings(**json.loads(plan.read_text(encoding="utf-8")))
        else:  # killed before that was written
            return
    except (TypeError, ValueError) as error:
        raise UserError(_problem(folder, f"cannot be resumed: {error}", "name a new folder")) from error
    shown = {"tokenizer": "tokenizer_name", "data": "addresses"}  # what a person knows of a fingerprint
    problems = []
    for name in ("split", "tokenizer", "data", "shard_tokens", "parts", "format"):
        if getattr(known, name) != getattr(settings, name):
            value, was = (getattr(each, shown.get(name, name)) for each in (settings, known))
            wrong = f"the folder was begun with {was!r}" + (", or it changed since" if name in shown else "")
            problems.append(Problem(name, value, wrong, "give what it was begun with, or name a new folder"))
    raise_if_any(problems)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Alone at work in ``folder``.

    Raises:
        UserError: another process is, or the folder cannot be made.
    """
    from filelock import FileLock, Timeout

    try:
        (folder / RECORDS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(_problem(folder, f"cannot be made ({error.strerror})", "name another folder")) from error
    try:
        with FileLock(folder / RECORDS / "lock", timeout=0):
            yield
    except Timeout as error:
        remedy = "wait until it is done, or name another folder"
        raise UserError(_problem(folder, "another preparation is at work in it", remedy)) from error


def _count(folder: Path, bad_rows: BadRows) -> None:
    """Add what all processes, and those of earlier calls, have left out.

    Raises:
        UserError: it is more than the limit.
    """
    for record in sorted((folder / RECORDS).glob(f"*-{BadRows.FILE}")):
        bad_rows.read(record)


def _dealt(inputs: list[Shard], parts: int) -> list[list[Shard]]:
    """Neighbouring inputs in parts of equal number, or one less."""
    borders = np.linspace(0, len(inputs), min(parts, len(inputs)) + 1).round().astype(int)
    return [inputs[borders[k] : borders[k + 1]] for k in range(len(borders) - 1)]


def _finish(folder: Path, settings: Settings, shards: tuple[ShardEntry, ...]) -> DataManifest:
    """Write the manifest, once every part is done.

    Raises:
        UserError: they have no shard at all; the folder is as empty as before then.
    """
    from datasets import DatasetInfo

    if not shards:
        shutil.rmtree(folder / RECORDS)
        raise UserError(Problem("data", settings.addresses, "no document has any token", "name data that hold text"))
    result = DataManifest(settings, shards)
    DatasetInfo(features=document_features()).write_to_directory(str(folder))
    result.write(folder)
    return result


# --- parts ----------------------------------------------------------------------------------------------------------


def _write_part(
    part: tuple[int, list[Shard]],
    *,
    tokenizer: "PreTrainedTokenizerBase",
    folder: Path,
    limit: int,
    bad_rows: BadRows,
    report: Callable[[ShardEntry], None],
) -> list[ShardEntry]:
    """Write the shards of a part, its number and inputs, that are not there; all of them."""
    number, inputs = part
    names = (f"{number:05d}-{shard:05d}.arrow" for shard in count())
    entries = []
    while (known := _recorded(folder, name := next(names))) is not None:
        entries.append(known)
    documents = chain.from_iterable(shard.documents() for shard in inputs)
    rows = encode(islice(documents, sum(entry.read for entry in entries), None), tokenizer)
    while not entries or entries[-1].tokens >= limit:
        entry = write_shard(folder / name, rows, limit)
        bad_rows.write(folder / RECORDS / f"{number:05d}-{BadRows.FILE}")  # first: a whole part is not read again
        storage.write_json(_record(folder, name), asdict(entry))
        if entry.documents:
            report(entry)
        entries.append(entry)
        name = next(names)
    return [entry for entry in entries if entry.documents]


def _record(folder: Path, name: str) -> Path:
    return folder / RECORDS / f"{name}.json"


def _recorded(folder: Path, name: str) -> ShardEntry | None:
    """Return a shard as its record has it; None where it has to be made, as for a record that is damaged."""
    try:
        entry = ShardEntry(**json.loads(_record(folder, name).read_text(encoding="utf-8")))
    except (FileNotFoundError, TypeError, ValueError):
        return None
    return None if entry.documents and manifest.misfit(folder, entry) else entry


def write_shard(path: Path, rows: Iterator[tuple[Document, np.ndarray]], limit: int) -> ShardEntry:
    """Write rows ``{name, input_ids}`` until they hold ``limit`` tokens or none are left; documents stay whole.

    An Arrow stream file, the kind that ``datasets`` maps into memory; none where no document has a token. Its bytes
    depend on the documents and the limit alone, not on how they were batched for the tokenizer: a shard made again, by
    whichever worker, is the same file.

    Args:
        path: made or written over; whole and on the disk when this returns, and as it was when it raises.
        rows: of :func:`tape_ds.data.tokenized.encode`; what is raised in reading them is passed on.
        limit: tokens, 1 or more.

    Raises:
        OSError: the disk is full or refuses.
    """
    from datasets.arrow_writer import ArrowWriter

    read = documents = tokens = 0

    def fill(aside: Path) -> None:
        nonlocal read, documents, tokens
        batch = 0
        with ArrowWriter(features=document_features(), path=str(aside), writer_batch_size=_BATCH_DOCUMENTS) as writer:
            while tokens < limit and (row := next(rows, None)) is not None:
                read += 1
                document, ids = row
                if len(ids) == 0:
                    continue
                writer.write({"name": document.name, "input_ids": ids})
                documents, tokens, batch = documents + 1, tokens + len(ids), batch + len(ids)
                if batch >= _BATCH_TOKENS:
                    writer.write_examples_on_file()
                    batch = 0
            writer.finalize()

    storage.write_file(path, fill)
    entry = ShardEntry(path.name, documents, tokens, read, path.stat().st_size, storage.digest(path))
    if documents == 0:
        path.unlink()
    return entry


# --- processes ------------------------------------------------------------------------------------------------------


def _in_processes(work: Callable[[Any], Any], tasks: Sequence[Any], processes: int) -> list[Any]:
    """Return what ``work`` gives for each task, in their order; the first failure ends the others at once.

    With fewer tasks than processes, the tokenizers library gets the cores left over as threads.

    Raises:
        UserError: a process was killed from outside.
        Exception: the first that a task raised.
    """
    if processes == 1 or not tasks:
        return list(map(work, tasks))
    workers = min(processes, len(tasks))
    context = multiprocessing.get_context("spawn")  # the tokenizers library has threads: a fork of it can hang
    try:
        with ProcessPoolExecutor(workers, context, _begin, (processes // workers,)) as executor:
            futures = [executor.submit(work, task) for task in tasks]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                for child in multiprocessing.active_children():  # else a failure would wait for an hour's tasks
                    child.terminate()
                raise
            return [future.result() for future in futures]
    except BrokenProcessPool as error:
        wrong = "one of the processes was killed, as the system does when memory runs out"
        remedy = "start again with fewer workers: finished work is kept"
        raise UserError(Problem("workers", processes, wrong, remedy)) from error


def _begin(threads: int) -> None:
    """First call in a process, which leaves when its parent does: alone it would write beside a preparation begun
    anew."""

    def leave_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent alone decides
    threading.Thread(target=leave_with_parent, daemon=True).start()
