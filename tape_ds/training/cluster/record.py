"""What a rank says of itself before a run on several machines: what it is about to compute with, and where."""

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tape_ds import results, storage
from tape_ds.errors import redacted
from tape_ds.training import verdict
from tape_ds.training.cluster.place import Place
from tape_ds.training.recipe import paths
from tape_ds.training.recipe.recipe import Recipe

LOOKS = 5
"""How often a machine looks for another's file: a network's file system may show it late."""

_LOOK_SECONDS = 0.4
_MACHINES_OWN = ("data_cache", "data_dir")
"""Fields that may name another folder on each machine."""
_OF_PACKAGE = (".py", ".json")


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a rank says of itself."""

    rank: int
    machine: str
    """In words, as :attr:`tape_ds.training.cluster.place.Place.machine`."""
    host: str = ""
    boot: str = ""
    """What tells the machine from every other; empty where the system does not say."""
    packages: dict[str, str] = field(default_factory=dict)
    """Versions of Python and of the packages, by name."""
    variables: dict[str, str] = field(default_factory=dict)
    """Of the environment, those of this stack."""
    digests: dict[str, str] = field(default_factory=dict)
    """Of :meth:`Details.parts`, by name."""
    device: str = "cpu"
    gpus: tuple[str, ...] = ()
    """Names of the GPUs that it sees."""
    time: float = 0.0
    """Its clock, in seconds since the epoch, when the ranks had just met."""
    free: dict[str, int] = field(default_factory=dict)
    """Bytes that are free where each folder lies, by the recipe's field."""
    sees_output: bool = True
    """Whether its ``output_dir`` holds what rank 0 has just put there."""


@dataclass(frozen=True)
class Details:
    """What a rank runs with, as lists of name -> value; too long to be told without need."""

    code: dict[str, str]
    """Digest of each file of the package and of the launcher."""
    recipe: dict[str, str]
    """Fields as text, credentials replaced."""
    data: dict[str, str]
    """Fingerprints by address."""

    def parts(self) -> dict[str, dict[str, str]]:
        """Them by name."""
        return dataclasses.asdict(self)

    def digests(self) -> dict[str, str]:
        """One digest for each part."""
        return {name: _digest(json.dumps(part, sort_keys=True).encode()) for name, part in self.parts().items()}


def details_of(recipe: Recipe, fingerprints: Mapping[str, str]) -> Details:
    """What this process runs with."""
    fields = {name: value for name, value in results.redact(recipe.as_dict()).items() if name not in _MACHINES_OWN}
    texts = {name: redacted(json.dumps(value, sort_keys=True, default=str)) for name, value in fields.items()}
    return Details(code_files(), texts, {redacted(name): value for name, value in fingerprints.items()})


def code_files(package: Path | None = None, launcher: Path | None = None) -> dict[str, str]:
    """Digest of every file of the package, and of the program that runs.

    Args:
        package: folder of the package; default that of this process.
        launcher: the program; default this process's.
    """
    package = Path(__file__).resolve().parents[2] if package is None else package
    launcher = Path(sys.argv[0]) if launcher is None else launcher
    files = {
        path.relative_to(package.parent).as_posix(): path for path in package.rglob("*") if path.suffix in _OF_PACKAGE
    }
    if launcher.is_file():
        files[launcher.name] = launcher
    return {name: _digest(path.read_bytes()) for name, path in sorted(files.items())}


def record_of(place: Place, recipe: Recipe, details: Details, output: Path, marker: str) -> Record:
    """What this rank says of itself; ``marker`` names the file that rank 0 has put into ``output``."""
    now = time.time()  # before all that takes a time of its own on each machine
    on_cpu = not torch.accelerator.is_available() or os.environ.get("DS_ACCELERATOR") == "cpu"
    folders = {"output_dir": output, "data_cache": paths.data_cache(recipe.as_dict().get("data_cache"))}
    return Record(
        rank=place.rank,
        machine=place.machine,
        host=place.host,
        boot=_boot(),
        packages=results.versions(),
        variables={name: redacted(value) for name, value in os.environ.items() if _decides(name)},
        digests=details.digests(),
        device="cpu" if on_cpu else str(torch.accelerator.current_accelerator()),
        gpus=tuple(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())),
        time=now,
        free={name: _free(folder) for name, folder in folders.items()},
        sees_output=not marker or sees(output / marker),
    )


def sees(path: Path) -> bool:
    """Whether this machine sees a file that another has just made.

    NFS remembers for up to a minute that there was no such folder; opening the one above has it ask the server again.
    """
    for _ in range(LOOKS):
        for folder in reversed(path.parents):
            with contextlib.suppress(OSError), os.scandir(folder):
                pass
        if path.exists():
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _free(folder: Path) -> int:
    try:
        return storage.free_bytes(folder)
    except OSError:
        return 0


def _decides(variable: str) -> bool:
    return variable.startswith("TAPE_DS_") and variable != verdict.FILE


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
