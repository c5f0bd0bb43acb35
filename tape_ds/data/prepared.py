"""Tokenise a corpus ahead, in parallel, so that runs only map it into memory: ``arrow:DIR``.

The inputs (files, mostly) are divided in their order into ``parts`` of neighbours. A part is one task: its documents
are tokenised (:func:`tape_ds.data.tokenized.encode`) into shards of about ``shard_tokens`` tokens,
``PPPPP-SSSSS.arrow``. Both numbers decide the shards; the number of workers does not.

After a complete shard, its record is written into the subfolder ``records``; after all of them, the manifest
(:mod:`tape_ds.data.sources.arrow`). Killed at any moment and started again, or started again with a shard deleted, the
preparation resumes in each part after the shards with a valid record: earlier documents are read but not tokenised. A
shard made again is the same file.

``datasets.map(num_proc)`` loses the unfinished share of a killed worker and needs the text as Arrow first.
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
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, count, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout

from tape_ds import building, storage
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.sources import Document, Shard, parse_all
from tape_ds.data.sources.arrow import (
    MANIFEST,
    PARTS,
    PREPARE_AGAIN,
    RECORDS,
    SHARD_TOKENS,
    WIDE,
    DataManifest,
    Settings,
    ShardEntry,
    check_manifest,
    is_prepared,
    read_manifest,
    wrong_size,
)
from tape_ds.data.tokenized import document_features, encode, id_type, tokenizer_fingerprint
from tape_ds.errors import Problem, UserError, raise_if_any, redacted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# A record batch ends at either; larger ones cost memory, smaller ones time when single documents are read.
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
    report: Callable[[ShardEntry], None] | None = None,
) -> DataManifest:
    """Tokenise ``specs`` into ``folder``, or resume it.

    Args:
        specs, tokenizer, split, bad_rows: as for :func:`tape_ds.data.selection.select`.
        folder: new, empty, or of an earlier call with the same arguments.
        shard_tokens: a shard ends with the document that reaches it.
        parts: the most tasks; more than ``processes``, so that none waits long for the last.
        processes: 1: this one.
        report: called after each new shard, in the process that wrote it; picklable.
    """
    from datasets import DatasetInfo

    folder = Path(folder)
    numbers = {"shard_tokens": shard_tokens, "parts": parts, "workers": processes}
    problems = []
    for name, n in numbers.items():
        if n < 1:
            problems.append(Problem(name, n, "not a positive number", "1 or more"))
    raise_if_any(problems)
    bad_rows = bad_rows or BadRows()
    sources = parse_all(specs, "data", bad_rows)
    remedy = "leave it out here, and name it next to this folder in the recipe's train_data"
    problems = [
        source.problem("token ids already", remedy) for source in sources if source.tokenised
    ]
    raise_if_any(problems)
    inputs = list(chain.from_iterable(source.shards(split) for source in sources))
    read = [source.fingerprint() for source in sources]
    # a file more or less is another corpus, even if its source has no fingerprint of each
    read += [shard.name for shard in inputs]
    settings = Settings(
        split=split,
        tokenizer=tokenizer_fingerprint(tokenizer),
        tokenizer_name=tokenizer.name_or_path,
        addresses=[redacted(spec) for spec in specs],
        data=hashlib.sha256("\0".join(read).encode()).hexdigest(),
        shard_tokens=shard_tokens,
        parts=parts,
        ids=id_type(tokenizer),
    )
    if folder.is_dir() and is_prepared(folder):
        begun = _begun_with(folder)
        if begun is not None and begun.format == WIDE:
            settings = replace(settings, format=begun.format, ids=begun.ids)
        if begun is not None:
            _check_same(begun, settings)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(Problem("output", str(folder), "holds something else", "name a new folder"))
    records = folder / RECORDS
    left_out = f"*-{BadRows.FILE}"
    if (folder / MANIFEST).is_file() and not check_manifest(folder, "output", str(folder)):
        for record in sorted(records.glob(left_out)):
            bad_rows.read(record)
        return read_manifest(folder)

    with building.disk("output", folder, "started again, the preparation resumes where it was"):
        try:
            records.mkdir(parents=True, exist_ok=True)
            lock = FileLock(records / "lock", timeout=0).acquire()
        except Timeout as error:
            wrong = "another preparation is using this folder"
            remedy = "wait until it is done, or name another folder"
            raise UserError(Problem("output", str(folder), wrong, remedy)) from error
        except OSError as error:
            wrong = f"cannot be created ({error.strerror})"
            raise UserError(Problem("output", str(folder), wrong, "name another folder")) from error
        with lock:
            storage.write_json(records / "plan.json", asdict(settings))
            for left_over in folder.rglob(".*.writing"):
                left_over.unlink()
            borders = np.linspace(0, len(inputs), min(parts, len(inputs)) + 1).round().astype(int)
            parts_of_inputs = [inputs[start:end] for start, end in pairwise(borders)]
            work = partial(
                _write_part,
                tokenizer=tokenizer,
                folder=folder,
                limit=shard_tokens,
                ids=settings.ids,
                bad_rows=bad_rows,
                report=report,
            )
            written = _in_processes(work, list(enumerate(parts_of_inputs)), processes)
            # of all processes, also of earlier calls
            for record in sorted(records.glob(left_out)):
                bad_rows.read(record)
            shards = tuple(chain.from_iterable(written))
            if not shards:
                # the folder is as empty as before
                shutil.rmtree(records)
                reason = "no document has any token"
                remedy = "name data that hold text"
                raise UserError(Problem("data", settings.addresses, reason, remedy))
            result = DataManifest(settings, shards)
            DatasetInfo(features=document_features(settings.ids)).write_to_directory(str(folder))
            result.write(folder)
            return result


def verify(folder: str | Path, threads: int = 1) -> list[Problem]:
    """Read a finished folder completely and return a problem for each damaged shard."""
    folder = Path(folder)
    if not is_prepared(folder):
        reason = f"no prepared data: it has no {MANIFEST}"
        return [Problem("check", str(folder), reason, "check the path")]
    problems = check_manifest(folder, "check", str(folder))
    try:
        every = read_manifest(folder).shards
    except ValueError:
        return problems
    # of the others the size says enough
    shards = [shard for shard in every if wrong_size(folder, shard) is None]
    # hashing releases Python's lock
    with ThreadPoolExecutor(threads) as pool:
        digests = pool.map(storage.digest, [folder / shard.file for shard in shards])
    for shard, digest in zip(shards, digests, strict=True):
        if digest != shard.sha256:
            wrong = f"shard {shard.file} is damaged: its SHA-256 is another"
            problems.append(Problem("check", str(folder), wrong, PREPARE_AGAIN))
    return problems


def _begun_with(folder: Path) -> Settings | None:
    """Return the settings that a preparation was begun with; None if it was killed before they were written."""
    plan = folder / RECORDS / "plan.json"
    try:
        if (folder / MANIFEST).is_file():
            return read_manifest(folder).settings
        if plan.is_file():
            return Settings(**json.loads(plan.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        reason = f"cannot be resumed: {error}"
        raise UserError(Problem("output", str(folder), reason, "name a new folder")) from error
    return None


def _check_same(known: Settings, settings: Settings) -> None:
    # instead of a fingerprint
    shown = {"tokenizer": "tokenizer_name", "data": "addresses"}
    problems = []
    for name in ("split", "tokenizer", "data", "shard_tokens", "parts", "format"):
        if getattr(known, name) != getattr(settings, name):
            value = getattr(settings, shown.get(name, name))
            was = getattr(known, shown.get(name, name))
            reason = f"the folder was begun with {was!r}"
            # the same name, but other contents
            if name in shown:
                reason += ", or it changed since"
            remedy = "give what it was begun with, or name a new folder"
            problems.append(Problem(name, value, reason, remedy))
    raise_if_any(problems)


def _write_part(
    part: tuple[int, list[Shard]],
    *,
    tokenizer: "PreTrainedTokenizerBase",
    folder: Path,
    limit: int,
    ids: str,
    bad_rows: BadRows,
    report: Callable[[ShardEntry], None] | None,
) -> list[ShardEntry]:
    """Write the missing shards of a part, its number and inputs; return all of its shards."""
    number, inputs = part
    names = (f"{number:05d}-{shard:05d}.arrow" for shard in count())
    entries: list[ShardEntry] = []
    for name in names:
        record = folder / RECORDS / f"{name}.json"
        try:
            entry = ShardEntry(**json.loads(record.read_text(encoding="utf-8")))
        except (FileNotFoundError, TypeError, ValueError):
            # a damaged record is as good as none
            break
        if entry.documents and wrong_size(folder, entry):
            break
        entries.append(entry)
    documents = chain.from_iterable(shard.documents() for shard in inputs)
    rows = encode(islice(documents, sum(entry.read for entry in entries), None), tokenizer)
    while not entries or entries[-1].tokens >= limit:
        entry = write_shard(folder / name, rows, limit, ids)
        # first: a finished part is not read again
        bad_rows.write(folder / RECORDS / f"{number:05d}-{BadRows.FILE}")
        storage.write_json(folder / RECORDS / f"{name}.json", asdict(entry))
        if entry.documents and report is not None:
            report(entry)
        entries.append(entry)
        name = next(names)
    return [entry for entry in entries if entry.documents]


def write_shard(
    path: Path, rows: Iterator[tuple[Document, np.ndarray]], limit: int, id_type: str = "int32"
) -> ShardEntry:
    """Write rows ``{name, input_ids}`` of whole documents until they have ``limit`` tokens or none are left.

    The Arrow stream file, not kept if no document has a token, depends on the documents and the limit alone, not on the
    tokenizer's batches.
    """
    from datasets.arrow_writer import ArrowWriter

    read = documents = tokens = 0

    def fill(aside: Path) -> None:
        nonlocal read, documents, tokens
        batch = 0
        features = document_features(id_type)
        with ArrowWriter(
            features=features, path=str(aside), writer_batch_size=_BATCH_DOCUMENTS
        ) as writer:
            while tokens < limit and (row := next(rows, None)) is not None:
                read += 1
                document, ids = row
                if len(ids) == 0:
                    continue
                writer.write({"name": document.name, "input_ids": ids.astype(id_type)})
                documents += 1
                tokens += len(ids)
                batch += len(ids)
                if batch >= _BATCH_TOKENS:
                    writer.write_examples_on_file()
                    batch = 0
            writer.finalize()

    storage.write_file(path, fill)
    entry = ShardEntry(
        path.name, documents, tokens, read, path.stat().st_size, storage.digest(path)
    )
    if documents == 0:
        path.unlink()
    return entry


def _in_processes(work: Callable[[Any], Any], tasks: Sequence[Any], processes: int) -> list[Any]:
    """Map ``work`` over the tasks; the first failure ends the others at once.

    With fewer tasks than processes, the tokenizers library gets the remaining cores as threads.
    """
    if processes == 1 or not tasks:
        return list(map(work, tasks))
    workers = min(processes, len(tasks))
    # the tokenizers library has threads: a fork of it can hang
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(workers, context, _begin, (processes // workers,)) as executor:
            futures = [executor.submit(work, task) for task in tasks]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                # or a failure would wait for hours of tasks
                for child in multiprocessing.active_children():
                    child.terminate()
                raise
            return [future.result() for future in futures]
    except BrokenProcessPool as error:
        wrong = "one of the processes was killed, as the system does when memory runs out"
        remedy = "start again with fewer workers: finished work is kept"
        raise UserError(Problem("workers", processes, wrong, remedy)) from error


def _begin(threads: int) -> None:
    # an orphan would write into the folder of a restarted preparation
    def leave_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    # Ctrl-C reaches all; the parent alone decides
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=leave_with_parent, daemon=True).start()
