"""Whether all machines of a job would train the same: looked at together, before a model or a process group is made.

A machine with another commit, another recipe or other data trains along without a word, and spoils the run. So all
ranks say what they are about to run with, and end with one message that names the machine, the thing and both values.
"""

import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tape_ds import results
from tape_ds.config.recipe import Recipe
from tape_ds.distributed import interface, place, rendezvous
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import Problem, raise_if_any, redacted
from tape_ds.kernels import jit
from tape_ds.resilience import exit_code_file, run_lock

NAMED = 6
"""Files and machines that a message names one by one."""
LOOKS = 5
"""How often a machine looks for another's file: a network's file system may show it late."""

_LOOK_SECONDS = 0.4
_MACHINES_OWN = ("data_cache", "data_dir")
"""Fields that may name another folder on each machine."""
_REMEDIES = {
    "code": "bring all machines to the same commit, or share the checkout",
    "versions": "install the same requirements.txt on all machines",
    "variables": "set it on all machines alike: tape-ds on-hosts does",
    "device": "see `nvidia-smi` there, and that DS_ACCELERATOR is the same on all machines",
    "compiler": "install gcc and the headers of .venv's Python on all machines",
    "recipe": "start every machine with the same recipe and the same flags",
    "data": "copy the same files to every machine, or read them from a disk that all share",
    "base": "copy the same model folder to every machine, or read it from a disk that all share",
}
"""What is compared, and the remedy where it differs."""


def check(recipe: Recipe, identity: Mapping[str, Any]) -> None:
    """Bring all ranks together and compare them; nothing where the whole job is on one machine.

    Args:
        recipe: checked.
        identity: of the run, see :mod:`tape_ds.training.identity`.

    Raises:
        UserError: a machine differs, or did not come; on all ranks alike.
    """
    seconds = min(rendezvous.JOIN_SECONDS, recipe.trainer_value("ddp_timeout"))
    met = rendezvous.current(seconds)
    if met is None:
        return
    facts = facts_of(recipe, identity)
    digest, boot = _digest(json.dumps(facts, sort_keys=True).encode()), Path("/proc/sys/kernel/random/boot_id")
    own: dict[str, Any] = {
        "machine": met.place.machine,
        "host": met.place.host,
        "boot": boot.read_text(encoding="ascii") if boot.exists() else "",
        "address": interface.own_address(os.environ["MASTER_ADDR"]) or "",
        "digest": digest,
    }
    records = [json.loads(text) for text in met.barrier(json.dumps(own), seconds)]
    # rank 0's machine may know its own name by a loopback address alone, and then looks towards the others
    addresses = [each.get("address", "") for each in records]  # other code may give none, and is named below
    interface.use_interface_towards([os.environ["MASTER_ADDR"], *addresses])
    found = namesakes(records)
    if len({record["digest"] for record in records}) > 1:  # the long lists are sent only where they are needed
        own |= {"facts": facts, "commit": (results.commit() or {"hash": "unknown"})["hash"]}
        found += differences([json.loads(text) for text in met.barrier(json.dumps(own), seconds)])
    raise_if_any(found)


def facts_of(recipe: Recipe, identity: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What this process is about to run with, as subject -> name -> value, without credentials."""
    on_cpu = not torch.accelerator.is_available() or os.environ.get("DS_ACCELERATOR") == "cpu"
    fields = {name: value for name, value in results.redact(recipe.as_dict()).items() if name not in _MACHINES_OWN}
    own = {
        name: value for name, value in os.environ.items() if name.startswith("TAPE_DS_") and name != exit_code_file.FILE
    }
    return {
        "code": code_files(Path(__file__).resolve().parents[1], Path(sys.argv[0])),
        "versions": results.versions(),
        "variables": {name: redacted(value) for name, value in own.items()},
        "device": {"device": "cpu" if on_cpu else str(torch.accelerator.current_accelerator())},
        # a rank that computes without Triton holds up all others
        "compiler": {} if on_cpu else {"C compiler": jit.no_compiler() or "there, with Python.h"},
        "recipe": {name: redacted(json.dumps(value, sort_keys=True, default=str)) for name, value in fields.items()},
        "data": _named("data", identity),
        "base": _named("base", identity) | _named("tokenizer", identity),
    }


def _named(kind: str, identity: Mapping[str, Any]) -> dict[str, str]:
    """The parts of an identity that are ``kind`` or ``kind.NAME``."""
    return {name.replace(".", " ", 1): value for name, value in identity.items() if name.split(".")[0] == kind}


def code_files(package: Path, program: Path) -> dict[str, str]:
    """Digest of every file of the package, and of the program that runs."""
    files = {path.relative_to(package.parent).as_posix(): path for path in package.rglob("*")} | {program.name: program}
    wanted = {name: path for name, path in files.items() if path.suffix in (".py", ".json") and path.is_file()}
    return {name: _digest(path.read_bytes()) for name, path in wanted.items()}


def differences(records: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """What differs from the machines that are most, of equally many from the first."""
    usual = Counter(record["digest"] for record in records).most_common(1)[0][0]
    right = [record for record in records if record["digest"] == usual]
    others, found = _machines(right), []
    for digest in dict.fromkeys(record["digest"] for record in records if record["digest"] != usual):
        unlike = [record for record in records if record["digest"] == digest]
        there = _machines(unlike)
        for subject, remedy in _REMEDIES.items():
            own, wanted = (each[0]["facts"].get(subject, {}) for each in (unlike, right))  # of other code, too
            names = sorted(name for name in own | wanted if own.get(name) != wanted.get(name))
            if names and subject == "code":
                wrong = f"not as on {others} (commit {unlike[0]['commit'][:12]}, there {right[0]['commit'][:12]})"
                found.append(Problem(f"code on {there}", _some(names), wrong, remedy))
                continue
            for name in names:
                wrong = f"it is {wanted.get(name, 'absent')} on {others}"
                found.append(Problem(f"{name} on {there}", own.get(name, "absent"), wrong, remedy))
    return found


def namesakes(records: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """Machines of one name: locks and messages would take one for the other."""
    found = []
    for host in sorted({record["host"] for record in records}):
        named = [record for record in records if record["host"] == host]
        if len({record["boot"] for record in named}) > 1:
            wrong = f"several machines call themselves so: {_machines(named)}"
            found.append(Problem("hostname", host, wrong, "give each machine, or container, a hostname of its own"))
    return found


def unshared(output: Path, rank_sync: RankSync) -> list[Problem]:
    """Whether this machine sees rank 0's lock of the run's folder, which rank 0 has by now; called by all ranks.

    NFS may show a new file late; listing a folder has it ask the server again.
    """
    here = place.here()
    if here.is_alone:
        return []
    machine, host, pid = rank_sync.first((here.machine, here.host, os.getpid()))
    for _ in range(LOOKS):
        if any((holder.host, holder.pid) == (host, pid) for holder in run_lock.named(output)):
            return []
        time.sleep(_LOOK_SECONDS)
    wrong = f"it is another folder than that of {machine}: nothing that was put there is seen"
    remedy = "name a folder on a disk that all machines share: every rank writes its part of a checkpoint there"
    return [Problem(f"output_dir on {here.machine}", str(output), wrong, remedy)]


def _machines(records: Sequence[Mapping[str, Any]]) -> str:
    return _some(list(dict.fromkeys(record["machine"] for record in records)))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
