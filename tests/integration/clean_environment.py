"""A virtual environment that holds torch, transformers and what those two declare to need, by links; nothing else."""

import importlib.metadata
import os
import subprocess
import venv
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOTS = ("torch", "transformers")
WITHOUT = {"triton"}
"""Left out although torch's builds for CUDA declare them."""


def needed(roots=ROOTS) -> dict[str, importlib.metadata.Distribution]:
    """The distributions that these need, themselves included: markers evaluated, no extras."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = list(roots)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found or name in WITHOUT:
            continue
        found[name] = importlib.metadata.distribution(name)
        wanted = map(Requirement, found[name].requires or ())
        waiting += [each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def build(folder: Path) -> Path:
    """Make the environment; returns its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    for distribution in needed().values():
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            target = Path(str(distribution.locate_file(top)))
            link = packages / top
            if target.exists() and not link.exists():  # namespace packages (nvidia) come from several
                link.symlink_to(target)
    return python


def run(python: Path, code: str, folder: Path, *arguments: str) -> str:
    """What a program prints there, started in ``folder`` without this checkout or its environment in sight.

    Raises:
        AssertionError: it failed.
    """
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
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
