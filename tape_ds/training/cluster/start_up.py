"""Whether all machines of a job would train the same: looked at together, before a model or a process group is made.

A machine with another commit, another recipe or other data trains along without a word, and spoils the run; one whose
driver is broken makes the others wait. So every rank says what it is about to run with, rank 0 compares, and where
somebody differs all ranks end with one message that names the machine, the thing, and both values. What does no harm
(a clock, a disk that is nearly full, GPUs of another kind) is said and passed.

Digests come first, a few hundred bytes from each rank; whole lists are asked for only where digests differ.
"""

import contextlib
import dataclasses
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tape_ds import results
from tape_ds.errors import raise_if_any
from tape_ds.training.cluster import roll_call
from tape_ds.training.cluster.comparison import Findings, compare, compare_parts
from tape_ds.training.cluster.record import Record, details_of, record_of
from tape_ds.training.recipe.recipe import Recipe

SECONDS = 300.0
"""How long the comparison may take."""


def check(recipe: Recipe, fingerprints: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Call all ranks together and compare them; nothing where the whole job is on one machine.

    Args:
        recipe: checked.
        fingerprints: of the data, by address.
        say: shows a line to a person; called on rank 0.

    Raises:
        UserError: a machine differs, or did not come; on all ranks alike.
    """
    seconds = min(roll_call.JOIN_SECONDS, recipe.trainer_value("ddp_timeout"))
    call = roll_call.current(seconds)
    if call is None:
        return
    call.attend(seconds)
    output, details = Path(recipe.trainer_value("output_dir")).expanduser(), details_of(recipe, fingerprints)
    with _marked(output, call.place.rank == 0) as own:
        marker = call.exchange("", lambda _: own, SECONDS)
        # from here on all ranks are at the same moment, but for the pause between two looks at the store
        record = record_of(call.place, recipe, details, output, marker)
        found = Findings.from_text(call.exchange(_record_text(record), _compare, SECONDS))
    if found.unlike:
        parts = {name: details.parts()[name] for name in found.unlike}
        shown = {"record": _record_text(record), "commit": {"hash": _commit()}, **parts}
        text = call.exchange(json.dumps(shown), _compare_parts, SECONDS)
        found.problems.extend(Findings.from_text(text).problems)
    if call.place.rank == 0:
        for line in found.warnings:
            say(line)
    if found.problems:
        call.end()
    raise_if_any(found.problems)


def _compare(texts: list[str]) -> str:
    return compare([_record(text) for text in texts]).to_text()


def _compare_parts(texts: list[str]) -> str:
    read = [json.loads(text) for text in texts]
    return Findings(compare_parts([_record(each.pop("record")) for each in read], read)).to_text()


def _record_text(record: Record) -> str:
    return json.dumps(dataclasses.asdict(record))


def _record(text: str) -> Record:
    read: dict[str, Any] = json.loads(text)
    return Record(**{**read, "gpus": tuple(read["gpus"])})


@contextlib.contextmanager
def _marked(output: Path, is_first: bool) -> Iterator[str]:
    """A file in ``output`` for as long as this lasts, put there by rank 0; its name, "" where the disk takes none (the
    run's lock says that, in its own words). A folder that was not there goes with it."""
    if not is_first:
        yield ""
        return
    name, made = f".met-{secrets.token_hex(8)}", not output.exists()
    try:
        output.mkdir(parents=True, exist_ok=True)
        (output / name).touch()
    except OSError:
        name = ""
    try:
        yield name
    finally:
        with contextlib.suppress(OSError):
            (output / name).unlink() if name else None
            output.rmdir() if made else None


def _commit() -> str:
    return str((results.commit() or {}).get("hash") or "")[:12]
