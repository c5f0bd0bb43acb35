"""Records of all ranks compared: what differs and must not, with the machine, the thing and both values; what may."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tape_ds import storage
from tape_ds.errors import Problem
from tape_ds.training.cluster.record import Record

CLOCK_SECONDS = 5.0
"""Clocks that are this far apart are said."""
LOW_DISK = 20 * 2**30
"""Bytes: where less is free on a machine, and less than half of what the others have, it is said."""
NAMED = 6
"""Files and machines that a message names one by one."""

_NOT_SHARED = "not shared"
_DEVICE = "see `nvidia-smi` there, and that DS_ACCELERATOR is the same on all machines"
_FACETS = {
    "packages": "install the same requirements.txt on all machines",
    "variables": "set it on all machines alike: launchers/on_hosts.py does",
}
"""Parts of a record that must be equal, and the remedy."""
_PARTS = {
    "code": "bring all machines to the same commit, or share the checkout",
    "recipe": "start every machine with the same recipe and the same flags",
    "data": "copy the same files to every machine, or read them from a disk that all share",
}
"""Parts of its details, and the remedy."""


@dataclass(frozen=True)
class Findings:
    """What a comparison found."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    """Names of the parts whose digests differ."""

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "Findings":
        """What :meth:`to_text` wrote."""
        read = json.loads(text)
        return cls([Problem(**each) for each in read["problems"]], read["warnings"], read["unlike"])


def compare(records: Sequence[Record]) -> Findings:
    """What differs between ranks; values that most have, of equally many those of the first, count as right."""
    records = sorted(records, key=lambda record: record.rank)
    found = Findings()
    for facet, remedy in _FACETS.items():
        for name in sorted({name for record in records for name in getattr(record, facet)}):
            values = [getattr(record, facet).get(name, "absent") for record in records]
            found.problems.extend(_unlike(name, records, values, remedy))
    found.problems.extend(_unlike("device", records, [record.device for record in records], _DEVICE))
    found.problems.extend(_namesakes(records))
    if blind := [record for record in records if not record.sees_output]:
        wrong = f"it is another folder than that of {records[0].machine}: nothing that was put there is seen"
        remedy = "name a folder on a disk that all machines share: every rank writes its part of a checkpoint there"
        found.problems.append(Problem(f"output_dir on {_machines(blind)}", _NOT_SHARED, wrong, remedy))
    found.unlike.extend(
        name
        for name in sorted({name for record in records for name in record.digests})
        if len({record.digests.get(name) for record in records}) > 1
    )
    found.warnings.extend([*_clocks(records), *_disks(records), *_kinds(records)])
    return found


def compare_parts(records: Sequence[Record], parts: Sequence[Mapping[str, Mapping[str, str]]]) -> list[Problem]:
    """What differs in the parts whose digests do; ``parts`` in the order of ``records``."""
    found: list[Problem] = []
    for part, remedy in _PARTS.items():
        lists = [each.get(part, {}) for each in parts]
        names = sorted({name for each in lists for name in each})
        unlike = [name for name in names if len({each.get(name) for each in lists}) > 1]
        if part == "code" and unlike:
            commits = [each.get("commit", {}).get("hash", "") for each in parts]
            found += _other_code(records, lists, unlike, commits)
            continue
        for name in unlike:
            shown = name if part == "recipe" else f"{part} {name}"
            found += _unlike(shown, records, [each.get(name, "absent") for each in lists], remedy)
    return found


def _other_code(
    records: Sequence[Record], lists: Sequence[Mapping[str, str]], unlike: Sequence[str], commits: Sequence[str]
) -> Iterator[Problem]:
    """One problem for each group of machines with the same other files, which it names."""
    states = [json.dumps([each.get(name) for name in unlike]) for each in lists]
    usual = _usual(states)
    right = lists[states.index(usual)]
    for state in dict.fromkeys(states):
        if state == usual:
            continue
        own = lists[states.index(state)]
        names = [name for name in unlike if own.get(name) != right.get(name)]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        there = [record for record, each in zip(records, states, strict=True) if each == state]
        others = [record for record, each in zip(records, states, strict=True) if each == usual]
        here, usually = commits[states.index(state)], commits[states.index(usual)]
        apart = f" (commit {here or 'unknown'}, there {usually or 'unknown'})" if here != usually else ""
        wrong = f"not as on {_machines(others)}{apart}"
        yield Problem(f"code on {_machines(there)}", ", ".join(names[:NAMED]) + more, wrong, _PARTS["code"])


def _unlike(name: str, records: Sequence[Record], values: Sequence[str], remedy: str) -> Iterator[Problem]:
    """A problem for each value that is not the usual one."""
    usual = _usual(values)
    for value in dict.fromkeys(values):
        if value == usual:
            continue
        there = [record for record, each in zip(records, values, strict=True) if each == value]
        others = [record for record, each in zip(records, values, strict=True) if each == usual]
        yield Problem(f"{name} on {_machines(there)}", value, f"it is {usual} on {_machines(others)}", remedy)


def _usual(values: Sequence[str]) -> str:
    """The commonest value; of equally common ones the first."""
    return Counter(values).most_common(1)[0][0]


def _machines(records: Sequence[Record]) -> str:
    """Their machines in words."""
    names = list(dict.fromkeys(record.machine for record in records))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _namesakes(records: Sequence[Record]) -> Iterator[Problem]:
    """Locks and messages tell machines by their names: a process would be looked for on the wrong one."""
    for host in dict.fromkeys(record.host for record in records):
        named = [record for record in records if record.host == host]
        if len({record.boot for record in named if record.boot}) > 1:
            wrong = f"several machines call themselves so: {_machines(named)}"
            yield Problem("hostname", host, wrong, "give each machine, or container, a hostname of its own")


def _clocks(records: Sequence[Record]) -> Iterator[str]:
    machines = {record.machine for record in records}
    middle = records[0].time if len(machines) == 2 else _median([record.time for record in records])
    for record in _firsts(records):
        apart = record.time - middle
        if abs(apart) > CLOCK_SECONDS:
            side = "ahead of" if apart > 0 else "behind"
            yield f"the clock of {record.machine} is {abs(apart):.0f} s {side} the others"


def _disks(records: Sequence[Record]) -> Iterator[str]:
    for name in sorted({name for record in records for name in record.free}):
        middle = _median([record.free.get(name, 0) for record in records])
        for record in _firsts(records):
            free = record.free.get(name, 0)
            if free < min(LOW_DISK, middle / 2):
                yield f"{name} on {record.machine} has {storage.size(free)} free, the others {storage.size(middle)}"


def _kinds(records: Sequence[Record]) -> Iterator[str]:
    values = [_gpus(record) for record in records]
    usual = _usual(values)
    for value in dict.fromkeys(values):
        if value != usual:
            there = [record for record, each in zip(records, values, strict=True) if each == value]
            yield f"{_machines(there)} has {value}, the others {usual}: the slowest sets the pace"


def _gpus(record: Record) -> str:
    counted = Counter(record.gpus)
    return ", ".join(f"{count} x {name}" for name, count in sorted(counted.items())) or "no GPU"


def _firsts(records: Sequence[Record]) -> list[Record]:
    """The first rank of each machine."""
    return list({record.machine: record for record in reversed(records)}.values())


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
