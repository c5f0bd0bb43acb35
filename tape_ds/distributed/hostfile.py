"""The machines of a job: a hostfile and the options that choose among its lines, checked before DeepSpeed starts.

:func:`check` reads the file line by line and imports nothing heavy. :func:`machines` then asks DeepSpeed's own
functions which machines and slots a command gets, and :func:`check_reachable` asks each of those by ssh, all at once
and with a time limit: DeepSpeed asks the first one alone, for as long as its network lets it.
"""

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from tape_ds import exit_codes
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.exit_codes import ExitCode
from tape_ds.numbers import counted

DEFAULT = "/job/hostfile"
"""The file that DeepSpeed reads if none is named and this one exists."""
SECONDS = 20.0
"""How long a machine may take to answer."""
_CONNECT_SECONDS = 10
_AT_ONCE = 64
_REMEDY = "write a line for each machine, such as 'node1 slots=8'"
# DeepSpeed's own pattern, to the end of the line: it passes over what follows the number
_LINE = re.compile(r"(?P<host>\S+)\s+slots=(?P<slots>\d+)(?P<rest>.*)")
# one colon alone is of a port: an address of IPv6 has two and more; ssh takes a name with a dash in front for an option
_HOST = re.compile(r"(?!-)([\w.-]+@)?(?!-)(?![^:]*:[^:]*$)[\w.:%\[\]-]+", re.ASCII)
_MOST_SLOTS = 4096
"""More than the processes of any machine; DeepSpeed makes a list of all of them."""


class UnreachableError(UserError):
    """Raised for machines that do not answer: a mistake, but under keep_alive perhaps one that is starting again."""

    def __init__(self, problems: list[Problem]):
        super().__init__(problems)
        if exit_codes.FILE in os.environ:
            self.exit_code = ExitCode.FAILURE


def named(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return the hostfiles among a command's words, each with its option."""
    parts: list[str] = []
    for word in words:
        if word.startswith("--hostfile="):
            parts += word.split("=", 1)
        else:
            parts.append(word)
    return [(option, name) for option, name in pairwise(parts) if option in ("--hostfile", "-H")]


def check(words: Sequence[str]) -> list[Problem]:
    """Check that every hostfile among a command's words exists, without which DeepSpeed would use this machine alone,
    and that DeepSpeed will be able to read it."""
    problems: list[Problem] = []
    for option, name in named(words):
        if Path(name).is_file():
            problems += _check_lines(option, name)
        else:
            problems.append(Problem(option, name, "no such file", _REMEDY))
    return problems


def _check_lines(option: str, name: str) -> list[Problem]:
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        return [Problem(option, name, f"cannot be read as text ({error})", _REMEDY)]
    if text.startswith("\ufeff"):
        wrong = "it begins with a byte order mark, which would be part of the first machine's name"
        return [
            Problem(
                option,
                name,
                wrong,
                f"save it as UTF-8 without one: sed -i '1s/^\\xef\\xbb\\xbf//' {name}",
            )
        ]
    problems = []
    lines: dict[str, int] = {}
    for number, line in enumerate(map(str.strip, text.split("\n")), 1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            wrong = f"line {number} is {line!r}: not a name, a space, and slots= with a number"
            problems.append(Problem(option, name, wrong, f"write it as {_as_meant(line)!r}"))
            continue
        host = match["host"]
        if not _HOST.fullmatch(host):
            wrong = f"line {number}: {host!r} is no name of a machine"
            problems.append(
                Problem(
                    option, name, wrong, "write its name or address, without a port (--ssh_port)"
                )
            )
        digits = match["slots"].lstrip("0")
        is_count = digits != "" and len(digits) < 6 and int(digits) <= _MOST_SLOTS
        if not is_count or match["rest"][:1].strip():
            wrong = f"line {number} is {line!r}: no number of processes of a machine"
            problems.append(
                Problem(option, name, wrong, f"write it as '{host} slots=8', or remove the line")
            )
        if host in lines:
            wrong = f"line {number}: {host} is in line {lines[host]} already"
            problems.append(
                Problem(option, name, wrong, "give a machine one line, with all its slots")
            )
        lines.setdefault(host, number)
    if not lines and not problems:
        problems.append(Problem(option, name, "no line names a machine", _REMEDY))
    return problems


def _as_meant(line: str) -> str:
    """Return a line that DeepSpeed reads, with the name and the number of one that it does not."""
    words = [word for word in re.split(r"[\s:=,]+", line) if word and word.lower() != "slots"]
    host = next((word for word in words if not word.isdecimal()), "node1")
    # the number of slots, or any number that is not part of the name
    numbers = re.findall(r"\bslots\W*(\d+)", line, re.IGNORECASE)[:1]
    numbers = numbers or re.findall(r"\d+", line.replace(host, "", 1)) or ["8"]
    return f"{host} slots={numbers[-1]}"


def machines(options: Sequence[str]) -> dict[str, list[int]]:
    """Return the slots of each machine that DeepSpeed's launcher would use with these options of its own, by its own
    functions; none where it would use this machine without a hostfile. Importing them takes seconds.

    Raises:
        UserError: the hostfile cannot be read, or the options name what is not in it.
    """
    raise_if_any(check(options))
    given = named(options)
    name = given[-1][1] if given else DEFAULT
    if not Path(name).is_file():
        return {}
    if not given:
        raise_if_any(check(["--hostfile", name]))
    # DeepSpeed prints the file, and this machine's devices
    logging.disable(logging.ERROR)
    try:
        return _chosen(name, options)
    finally:
        logging.disable(logging.NOTSET)


def _chosen(name: str, options: Sequence[str]) -> dict[str, list[int]]:
    from deepspeed.launcher import runner

    arguments = runner.parse_args([*options, "a script"])
    option = "--include" if arguments.include else "--exclude"
    chosen = arguments.include or arguments.exclude
    if chosen and (arguments.num_nodes >= 0 or arguments.num_gpus >= 0):
        remedy = "give --num_nodes and --num_gpus, or --include or --exclude"
        raise UserError(Problem(option, chosen, "not with a number", remedy))
    try:
        pool = runner.fetch_hostfile(name)
        slots = runner.parse_inclusion_exclusion(pool, arguments.include, arguments.exclude)
    except ValueError as error:
        remedy = f"write node1@node2:0,1, of the machines in {name}: {', '.join(pool)}"
        if "@" in "".join(pool):
            remedy += "; @ separates machines here: put a machine's user into ~/.ssh/config"
        raise UserError(Problem(option, chosen, str(error), remedy)) from error
    # DeepSpeed would take fewer
    if arguments.num_nodes > len(slots):
        has = f"{name} has {len(slots)}: {', '.join(slots)}"
        raise UserError(
            Problem(
                "--num_nodes", arguments.num_nodes, has, "give that many, or name the others there"
            )
        )
    slots = runner.apply_num_nodes_and_gpus(slots, arguments.num_nodes, arguments.num_gpus)
    if not slots:
        raise UserError(Problem("--exclude", chosen, "no machine is left", "exclude fewer"))
    if arguments.no_ssh:
        return dict(slots)
    # on this machine alone DeepSpeed starts the ranks itself
    by_pdsh = len(slots) > 1 or arguments.force_multi
    if by_pdsh and shutil.which("pdsh") is None:
        raise UserError(
            Problem(
                "--hostfile",
                name,
                "DeepSpeed starts its machines with pdsh, not installed here",
                "install it (apt install pdsh), or start each machine with --no_ssh (docs/cluster.md)",
            )
        )
    if not arguments.no_ssh_check:
        check_reachable(name, slots, arguments.ssh_port)
    return dict(slots)


def check_reachable(
    name: str, hosts: Mapping[str, object] | Sequence[str], port: int | None = None
) -> None:
    """Ask every machine for its name by ssh, at most :data:`SECONDS` in all.

    Raises:
        UnreachableError: some do not answer; with ssh's own words.
    """
    if shutil.which("ssh") is None:
        remedy = "install it (apt install openssh-client), or start each machine with --no_ssh"
        raise UserError(
            Problem(
                "--hostfile",
                name,
                "DeepSpeed reaches its machines by ssh, not installed here",
                remedy,
            )
        )
    asked = counted(len(hosts), "machine")
    waits = f"tape-ds: asking {asked} of {name} by ssh, for {SECONDS:g} s at most"
    print(waits, file=sys.stderr, flush=True)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = pool.map(lambda host: _why_not(host, port), hosts)
        problems = []
        for host, wrong in zip(hosts, answers, strict=True):
            if wrong is not None:
                question = " ".join(_question(host, port))
                remedy = f"make this print a name: {question} (docs/cluster.md has ssh's messages), or leave it out"
                problems.append(
                    Problem("--hostfile", name, f"{host} does not answer ({wrong})", remedy)
                )
    if problems:
        raise UnreachableError(problems)


def _question(host: str, port: int | None) -> list[str]:
    chosen = [] if port is None else ["-p", str(port)]
    return [
        "ssh",
        "-o",
        "BatchMode=yes",
        "-o",
        f"ConnectTimeout={_CONNECT_SECONDS}",
        *chosen,
        host,
        "hostname",
    ]


def _why_not(host: str, port: int | None) -> str | None:
    """Return why a machine does not answer, or None."""
    try:
        asked = subprocess.run(
            _question(host, port),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            # a machine's banner has any encoding
            errors="replace",
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"nothing within {SECONDS:g} s"
    if asked.returncode == 0:
        return None
    words = asked.stderr.strip().splitlines() or [f"ssh ended with {asked.returncode}"]
    return words[-1].strip()
