"""``stdlib``: the sources of Python's standard library, real text that needs no download."""

import functools
import hashlib
import os
import sysconfig
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tape_ds.data.sources.base import SPLITS, Document, Shard, Source
from tape_ds.errors import Problem, did_you_mean

# Long files (85,000 to 230,000 characters, so 16,384 tokens and more under a usual tokenizer) of different nature, all
# present in every Python from 3.11 on.
HELD_OUT = (
    "_pydecimal.py",
    "argparse.py",
    "doctest.py",
    "inspect.py",
    "subprocess.py",
    "tarfile.py",
    "typing.py",
)

# Generated tables and tests, and parts that distributions leave out, move or patch: with them the same Python would
# give different data on different machines.
# fmt: off
_STDLIB_LEFT_OUT = frozenset((
    "__phello__", "__pycache__", "dist-packages", "distutils", "encodings", "ensurepip", "idlelib", "lib-dynload",
    "lib2to3", "msilib", "pydoc_data", "site-packages", "sitecustomize.py", "test", "tests", "tkinter", "turtle.py",
    "turtledemo", "usercustomize.py", "venv",
))
# fmt: on
_STDLIB_LEFT_OUT_PREFIXES = ("_sysconfigdata", "config-")


class StandardLibrary(Source):
    """The ``.py`` files of the running Python without tests and optional parts; they and their order depend on its
    minor version alone."""

    kind = "stdlib"
    form = "stdlib[:FILE]"

    def check(self) -> list[Problem]:
        files = files_of_python()
        missing = [name for name in HELD_OUT if name not in files]
        if missing:
            absent = f"{', '.join(missing)} not in {sysconfig.get_path('stdlib')}"
            remedy = "install the full Python (a '-minimal' or zipped one lacks them), or name other data"
            return [
                self.problem(
                    f"this Python comes without the sources of its library ({absent})", remedy
                )
            ]
        if ":" in self.spec and self.rest not in files:
            return [
                self.problem("no such file in the standard library", did_you_mean(self.rest, files))
            ]
        return []

    def shards(self, split: str) -> list[Shard]:
        """Return a shard for each file, of one document, or none if it is empty or unreadable."""
        files = files_of_python()
        names = (
            [self.rest]
            if self.rest
            else [n for n in files if (n in HELD_OUT) == (split == "heldout")]
        )
        return [Shard(name, partial(_read, name, files[name])) for name in names]

    def fingerprint(self) -> str:
        """Hash all names and contents (5 MB, milliseconds): patch releases differ."""
        digest = hashlib.sha256()
        for split in SPLITS:
            for document in self.documents(split):
                digest.update(f"{document.name}\0{len(document.text)}\0{document.text}".encode())
        return digest.hexdigest()

    def identities(self, split: str) -> set[str]:
        return {f"stdlib:{shard.name}" for shard in self.shards(split)}


# a recipe asks for them several times
@functools.cache
def files_of_python() -> dict[str, Path]:
    """Return relative posix path -> file, sorted; empty if Python is installed without its sources."""
    root = sysconfig.get_path("stdlib")

    def wanted(name: str) -> bool:
        return name not in _STDLIB_LEFT_OUT and not name.startswith(_STDLIB_LEFT_OUT_PREFIXES)

    found = {}
    for folder, folders, names in os.walk(root):
        # site-packages is larger than all the rest
        folders[:] = [name for name in folders if wanted(name)]
        for name in names:
            if name.endswith(".py") and wanted(name):
                path = Path(folder, name)
                found[path.relative_to(root).as_posix()] = path
    return dict(sorted(found.items()))


def _read(name: str, path: Path) -> Iterator[Document]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    if text.strip():
        yield Document(name, text)
