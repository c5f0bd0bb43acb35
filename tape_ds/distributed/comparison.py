"""Compare the machines of a job before a model or a process group is made.

A machine with another commit, other data or another copy of the base model silently corrupts the run. All ranks publish
what they are about to run with, and end with one message that names the machine, the subject and both values.
"""

import contextlib
import hashlib
import ipaddress
import json
import os
import socket
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from tape_ds import exit_codes, results
from tape_ds.distributed import process_info, rendezvous
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import Problem, raise_if_any, redacted
from tape_ds.kernels import jit
from tape_ds.numbers import some

GLOO = "GLOO_SOCKET_IFNAME"
"""Environment variable that gloo reads."""
NAMED = 6
"""Number of files or machines that a message names one by one."""
_LOCAL_FIELDS = ("data_cache", "data_dir")
"""Fields that may name another folder on each machine."""
_REMEDIES = {
    "code": "bring all machines to the same commit, or share the checkout",
    "versions": "install the same requirements.txt on all machines",
    "variables": "set it on all machines alike, for example in .deepspeed_env (docs/cluster.md)",
    "device": "see `nvidia-smi` there, and that DS_ACCELERATOR is the same on all machines",
    "compiler": "install gcc and the headers of .venv's Python on all machines",
    "recipe": "start every machine with the same recipe and the same flags",
    "data": "copy the same files to every machine, or read them from a shared disk",
    "base": "copy the same model folder to every machine, or read it from a shared disk",
}
"""Subjects that are compared, and the remedy for a difference."""


def check(fields: Mapping[str, Any], identity: Mapping[str, Any], timeout: float) -> None:
    """Compare all ranks; a job on one machine is not compared.

    Args:
        fields: the recipe's values by field.
        identity: of the run, see :mod:`tape_ds.training.identity`.
        timeout: seconds to wait for the other machines, :data:`rendezvous.JOIN_SECONDS` at most.

    Raises:
        UserError: a machine differs or did not come; on all ranks alike.
    """
    seconds = min(rendezvous.JOIN_SECONDS, timeout)
    meeting = rendezvous.current(seconds)
    if meeting is None:
        return
    facts = facts_of(fields, identity)
    # of one boot of a machine: Linux alone has it, and without it names are not compared
    boot = ""
    with contextlib.suppress(FileNotFoundError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    record: dict[str, Any] = {
        "machine": meeting.process.machine,
        "host": meeting.process.host,
        "boot": boot,
        "address": own_address(os.environ["MASTER_ADDR"]) or "",
        "digest": _digest(json.dumps(facts, sort_keys=True).encode()),
    }
    records = list(map(json.loads, meeting.barrier(json.dumps(record), seconds)))

    # rank 0's machine may resolve its own name to a loopback address; then any other machine's address shows the way
    # absent from another version's record
    addresses = [other.get("address", "") for other in records]
    use_interface_towards([os.environ["MASTER_ADDR"], *addresses])

    # the facts are long: exchanged only if they differ
    if len({other["digest"] for other in records}) > 1:
        record |= {"facts": facts, "commit": (results.commit() or {"hash": "unknown"})["hash"]}
        records = list(map(json.loads, meeting.barrier(json.dumps(record), seconds)))
    raise_if_any(differences(records))


def check_data(identity: Mapping[str, str], rank_sync: RankSync) -> None:
    """Compare the training data of all ranks, which know it once they share the reading of a machine's files; a job on
    one machine is not compared.

    Args:
        identity: the data's part of the run's, see :mod:`tape_ds.training.identity`.

    Raises:
        UserError: a machine differs; on all ranks alike.
    """
    process = process_info.current()
    if process.is_single_node:
        return
    data = {name.replace(".", " ", 1): value for name, value in identity.items()}
    record = {
        "machine": process.machine,
        "host": process.host,
        "boot": "",
        "digest": _digest(json.dumps(data, sort_keys=True).encode()),
        "facts": {"data": data},
    }
    raise_if_any(differences(rank_sync.objects(record)))


def own_address(peer: str) -> str | None:
    """Return this machine's address on the route to ``peer``; None if it is a loopback address or unknown."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, target in socket.getaddrinfo(
            peer, 9, type=socket.SOCK_DGRAM
        ):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                # looks the route up; nothing is sent
                probe.connect(target)
                address: str = probe.getsockname()[0]
                if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
                    return address
    return None


def use_interface_towards(peers: Iterable[str]) -> None:
    """Have gloo use the interface on the route to the first of ``peers`` (names or addresses) on another machine,
    unless the user set one.

    Gloo takes the address of the host's own name, which is 127.0.1.1 where Debian and Ubuntu wrote /etc/hosts: no other
    machine reaches it, and every job on several machines makes a gloo group, under NCCL too.
    """
    interfaces = {}
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            interfaces[address.address] = name
    for own in map(own_address, peers):
        if own in interfaces:
            os.environ.setdefault(GLOO, interfaces[own])
            return


def facts_of(fields: Mapping[str, Any], identity: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return what this process is about to run with: subject -> name -> value, without credentials."""
    package = Path(__file__).resolve().parents[1]
    files = {path.relative_to(package.parent).as_posix(): path for path in package.rglob("*")}
    # the command's own file, which may be in another folder on each machine
    program = Path(sys.argv[0])
    files[program.name] = program
    code = {}
    for name, path in files.items():
        if path.suffix in (".py", ".json") and path.is_file():
            code[name] = _digest(path.read_bytes())
    variables = {}
    for name, value in os.environ.items():
        # the file of an exit code is of one process
        if name.startswith("TAPE_DS_") and name != exit_codes.FILE:
            variables[name] = redacted(value)
    device = "cpu"
    compiler = {}
    if torch.accelerator.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu":
        device = str(torch.accelerator.current_accelerator())
        # a rank that computes without Triton slows all others down
        compiler["C compiler"] = jit.no_compiler() or "there, with Python.h"
    recipe = {}
    for name, value in results.redact(fields).items():
        if name not in _LOCAL_FIELDS:
            recipe[name] = redacted(json.dumps(value, sort_keys=True, default=str))
    return {
        "code": code,
        "versions": results.versions(),
        "variables": variables,
        "device": {"device": device},
        "compiler": compiler,
        "recipe": recipe,
        "data": _part_of(identity, "data"),
        "base": _part_of(identity, "base", "tokenizer"),
    }


def _part_of(identity: Mapping[str, Any], *kinds: str) -> dict[str, str]:
    """Return the part of these kinds: data.NAME as "data NAME"."""
    part = {}
    for name, value in identity.items():
        if name.split(".")[0] in kinds:
            part[name.replace(".", " ", 1)] = value
    return part


def differences(records: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """Compare every machine with the majority, or with the first if there is none; refuse different machines with one
    hostname, which locks and messages could not tell apart."""
    by_host = defaultdict(list)
    by_digest = defaultdict(list)
    for record in records:
        by_host[record["host"]].append(record)
        by_digest[record["digest"]].append(record)
    problems = []
    for host, same_name in sorted(by_host.items()):
        if len({record["boot"] for record in same_name}) > 1:
            wrong = f"several machines have this name: {_machines(same_name)}"
            problems.append(
                Problem(
                    "hostname", host, wrong, "give each machine, or container, its own hostname"
                )
            )

    usual = Counter(record["digest"] for record in records).most_common(1)[0][0]
    majority = by_digest.pop(usual)
    others = _machines(majority)
    # one of each side is enough: machines with the same digest run with the same
    there = majority[0]
    for minority in by_digest.values():
        here = minority[0]
        machines = _machines(minority)
        for subject, remedy in _REMEDIES.items():
            # another version of the code may not compare this subject
            values = here["facts"].get(subject, {})
            expected = there["facts"].get(subject, {})
            names = sorted(
                name for name in values | expected if values.get(name) != expected.get(name)
            )
            if names and subject == "code":
                wrong = f"not as on {others} (commit {here['commit'][:12]}, there {there['commit'][:12]})"
                problems.append(Problem(f"code on {machines}", some(names, NAMED), wrong, remedy))
                continue
            for name in names:
                wrong = f"it is {expected.get(name, 'absent')} on {others}"
                problems.append(
                    Problem(f"{name} on {machines}", values.get(name, "absent"), wrong, remedy)
                )
    return problems


def _machines(records: Sequence[Mapping[str, Any]]) -> str:
    return some(list(dict.fromkeys(record["machine"] for record in records)), NAMED)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
