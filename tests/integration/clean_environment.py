"""A virtual environment that holds some packages and what they declare to need, by links; nothing else."""

import importlib.metadata
import os
import subprocess
import venv
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOTS = ("torch", "transformers")
WITHOUT = {"triton"}
"""Left out although torch's builds for CUDA declare them."""


def needed(roots: Iterable[str] = ROOTS) -> dict[str, importlib.metadata.Distribution]:
    """The distributions that requirements need, their own included: markers evaluated, extras where asked for."""
    found: dict[str, importlib.metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(root) for root in roots]
    while waiting:
        asked = waiting.pop()
        name = canonicalize_name(asked.name)
        for extra in {"", *asked.extras}:
            if name in WITHOUT or (name, extra) in seen:
                continue
            seen.add((name, extra))
            found[name] = importlib.metadata.distribution(name)
            wanted = map(Requirement, found[name].requires or ())
            waiting += [
                each
                for each in wanted
                if each.marker is None or each.marker.evaluate({"extra": extra})
            ]
    return found


def build(folder: Path, roots: Iterable[str] = ROOTS) -> Path:
    """Make the environment; returns its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(
        subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    )
    for distribution in needed(roots).values():
        tops = {
            file.parts[0]
            for file in distribution.files or ()
            if file.parts[0] not in ("..", "__pycache__")
        }
        for top in tops:
            target = Path(str(distribution.locate_file(top)))
            link = packages / top
            # namespace packages (nvidia) come from several
            if target.exists() and not link.exists():
                link.symlink_to(target)
    return python


def run(python: Path, code: str, folder: Path, *arguments: str) -> str:
    """What a program prints there, started in ``folder`` without this checkout or its environment in sight.

    Raises:
        AssertionError: it failed.
    """
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [str(python), "-I", "-c", code, *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
