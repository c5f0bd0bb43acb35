"""The hostfile: machines of a job, one a line, as ``node1 slots=8``.

DeepSpeed reads it with a regular expression that overlooks what follows it, raises on the first line it cannot read,
and without a word trains on one machine where there is no such file. So it is read here first, strictly, and everything
that is wrong is said at once, each with its line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tape_ds.errors import Problem, raise_if_any

FIELD = "--hostfile"

_COMMENT = re.compile(r"(^|\s)#.*")
_ENTRY = re.compile(r"(?P<name>\S+)\s+slots=(?P<slots>\d+)")
_NAME = re.compile(r"([A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""No ``-`` in front, which ssh would take for an option; no ``,`` and ``[``, which pdsh reads as lists."""
_BYTE_ORDER_MARK = "\ufeff"
_WITH_COLON = re.compile(r"(?P<name>[^\s:]+):(?P<slots>\d+)")


@dataclass(frozen=True)
class Host:
    """A machine."""

    name: str
    """As ssh reaches it, ``user@`` in front where it says so."""
    slots: int
    """Ranks that it takes: its GPUs."""
    line: int
    """Where in the file it stands, from 1."""


def read(path: Path) -> list[Host]:
    """The machines of a hostfile, in its order.

    Raises:
        UserError: naming every line that is wrong, or that there is no such file.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        remedy = (
            "name a file that is there (launchers/hostfile.example shows one): DeepSpeed would train on one machine"
        )
        raise_if_any([Problem(FIELD, str(path), f"cannot be read: {error.strerror}", remedy)])
    hosts: dict[str, Host] = {}
    problems: list[Problem] = []
    if text.startswith(_BYTE_ORDER_MARK):
        wrong = "begins with a byte order mark, which nobody sees and DeepSpeed takes for a part of the first line"
        problems.append(Problem(f"{path}:1", _BYTE_ORDER_MARK, wrong, "save the file as UTF-8 without it"))
    for number, line in enumerate(text.removeprefix(_BYTE_ORDER_MARK).splitlines(), 1):
        words = _COMMENT.sub("", line).strip()
        if not words:
            continue
        found = list(_wrong(words, hosts))
        problems += [Problem(f"{path}:{number}", words, wrong, remedy) for wrong, remedy in found]
        if not found and (match := _ENTRY.fullmatch(words)):
            hosts[match["name"]] = Host(match["name"], int(match["slots"]), number)
    if not hosts and not problems:
        problems.append(Problem(FIELD, str(path), "no machine in it", "write one a line, such as: node1 slots=8"))
    raise_if_any(problems)
    return list(hosts.values())


def _wrong(words: str, before: dict[str, Host]) -> Iterator[tuple[str, str]]:
    """What is wrong with a line, and its remedy; nothing where it is right."""
    match = _ENTRY.fullmatch(words)
    if match is None:
        yield _misread(words)
        return
    name, slots = match["name"], int(match["slots"])
    if not _NAME.fullmatch(name):
        remedy = "give the name that ssh reaches it by; a port goes into ~/.ssh/config, or all alike: --ssh_port"
        yield f"{name!r} is no name of a machine (letters, digits, . _ -)", remedy
    if slots == 0:
        yield "a machine without a GPU", "give 1 or more, or remove the line"
    if name in before:
        yield f"{name} stands in line {before[name].line} already", "keep one line for a machine, with all its GPUs"


def _misread(words: str) -> tuple[str, str]:
    """What is wrong with a line that is no ``NAME slots=N``, and how it was probably meant."""
    first, *rest = words.split()
    if colon := _WITH_COLON.fullmatch(words):
        return "the number of GPUs stands behind a colon", f"write: {colon['name']} slots={colon['slots']}"
    if not rest:
        return "its number of GPUs is missing", f"write: {first} slots=N, with N GPUs"
    if first.startswith("slots="):
        return "the machine's name comes first", f"write: {rest[0]} {first}"
    if known := _ENTRY.match(words):
        return f"{words[known.end() :].strip()!r} is read by nobody", f"write: {known[0]}"
    numbers = re.findall(r"(?<![\w-])\d+", " ".join(rest))
    return "not of the form NAME slots=N", f"write: {first} slots={numbers[0] if numbers else 'N, with N GPUs'}"
