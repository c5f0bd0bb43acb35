"""Tokenise a corpus ahead, in parallel, so that runs only map it into memory: ``arrow:DIR``.

The inputs (files, mostly) are dealt in their order to ``parts``, each a run of neighbours. A part is one task: its
documents are tokenised one after another into shards of about ``shard_tokens`` tokens, ``PPPPP-SSSSS.arrow``. Both
numbers decide the shards and the number of workers does not, so two workers write the files that one would.

Every shard is written aside, read back, noted in its part's record and renamed. Killed at any moment and started again,
the preparation goes on behind the last shard of each part; documents before it are read but not tokenised. When all
parts are done the manifest is written (:mod:`tape_ds.data.manifest`). A shard that is missing from a finished folder is
made again, with those behind it in its part.

Documents are tokenised as :func:`tape_ds.data.packing.encode` does it, and kept apart: any window, with or without
PoSE, can be cut from one folder.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tape_ds import storage
from tape_ds.data import manifest, shard_file, workers
from tape_ds.data.manifest import MANIFEST, Entry, Manifest, Settings
from tape_ds.data.packing import encode, tokenizer_fingerprint
from tape_ds.data.sources import SPLITS, Shard, Source, parse_all
from tape_ds.data.unfinished import Part, Unfinished
from tape_ds.errors import Problem, disk_error, raise_if_any, redacted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHARD_TOKENS = 100_000_000
"""Tokens of a shard unless told otherwise: 400 MB."""
PARTS = 64
"""Parts unless told otherwise."""


def prepare(
    addresses: Sequence[str],
    tokenizer: "PreTrainedTokenizerBase",
    folder: str | Path,
    *,
    split: str = "train",
    shard_tokens: int = SHARD_TOKENS,
    parts: int = PARTS,
    processes: int = 1,
    report: Callable[[Entry], None] = lambda entry: None,
) -> Manifest:
    """Make ``folder`` a finished one, or go on making it.

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
    sources = _text_sources(addresses)
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
    work = Unfinished(folder)
    work.check(settings)
    if (folder / MANIFEST).is_file() and not manifest.check(folder, "output", str(folder)):
        return manifest.read(folder)
    with _disk(folder), work.claimed():
        tasks = work.take_up(settings, _dealt(inputs, parts))
        write = partial(_write_part, tokenizer=tokenizer, folder=folder, limit=shard_tokens)
        workers.run(write, [part for part in tasks if not part.done], processes, report)
        return work.finish(settings, [work.recorded(part) for part in tasks])


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """What the disk refuses of plans, records and the manifest becomes a message."""
    try:
        yield
    except OSError as error:
        refused = disk_error(error, "output", folder, shard_file.GOES_ON)
        if refused is None:
            raise
        raise refused from error


def _write_part(
    part: Part,
    tell: Callable[[Entry], None],
    *,
    tokenizer: "PreTrainedTokenizerBase",
    folder: Path,
    limit: int,
) -> None:
    """Write the shards of ``part`` that are not there, one after another."""
    work = Unfinished(folder)
    end = part.entries[-1].end if part.entries else 0
    documents = (document for shard in part.inputs for document in shard.documents())
    rows = encode(islice(documents, end, None), tokenizer)
    while not part.done:
        name = f"{part.number:05d}-{len(part.entries):05d}.arrow"
        aside = work.aside(name)
        written = shard_file.write(aside, rows, limit)
        end += written.read
        part = replace(part, done=written.tokens < limit)
        if written.documents == 0:
            aside.unlink()
            work.record(part)
            return
        size, sha256 = aside.stat().st_size, storage.digest(aside)
        entry = Entry(name, part.number, written.documents, written.tokens, size, sha256, end)
        part = replace(part, entries=(*part.entries, entry))
        work.record(part)
        os.replace(aside, folder / name)
        tell(entry)


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


def _text_sources(addresses: Sequence[str]) -> list[Source]:
    sources = parse_all(addresses, "data")
    remedy = "leave it out here, and name it beside this folder in the recipe's train_data"
    raise_if_any([source.problem("token ids already", remedy) for source in sources if source.tokenised])
    return sources


def _dealt(inputs: list[Shard], parts: int) -> list[Part]:
    """Neighbouring inputs in parts of equal number, or one less."""
    borders = np.linspace(0, len(inputs), min(parts, len(inputs)) + 1).round().astype(int)
    return [Part(k, tuple(inputs[borders[k] : borders[k + 1]])) for k in range(len(borders) - 1)]
