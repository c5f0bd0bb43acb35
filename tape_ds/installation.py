"""Where launchers, evaluation, tools and ds_configs lie, and that a script runs the package that it belongs to.

In a checkout they are the folders beside the package. A wheel carries them inside it, in ``tape_ds/shipped``: ``tools``
and ``evaluation`` are no names to take in somebody else's environment. :func:`environment` lets a command find them.
"""

import os
import sys
from pathlib import Path

from tape_ds.errors import Problem, UserError, command

ROOMS = ("launchers", "evaluation", "tools", "benchmarks")
"""Folders that hold scripts."""
SHIPPED = "shipped"
"""The folder of the package that holds them in a wheel; ``setup.py`` fills it."""

FOUND_NO_GPU = "TAPE_DS_FOUND_NO_GPU"
"""A variable of what ``tape-ds`` starts: it chose the CPU itself, since it found no GPU."""

_PACKAGE = Path(__file__).resolve().parent
ROOT = _PACKAGE / SHIPPED if (_PACKAGE / SHIPPED).is_dir() else _PACKAGE.parent
"""What paths such as ``launchers/recipes`` and ``ds_configs`` start from: the checkout, or the wheel's folder."""


def work() -> Path:
    """Return what ``runs`` starts from where a tool writes there without being told: the checkout; for an installed
    package, beside which nothing is to be written, the current folder."""
    return ROOT if _PACKAGE.parent == ROOT else Path.cwd()


def environment() -> dict[str, str]:
    """This process's variables, for a command of this installation: its modules and its Python's programs are found."""
    found = dict(os.environ)
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), found.get("PYTHONPATH")]))
    found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), found.get("PATH", "")])
    return found


def root_of(script: Path) -> Path | None:
    """Return the checkout, or the wheel's folder, that a script is part of; None for one that is no part of this
    project."""
    for room in script.resolve().parents:
        root = room.parent
        package = root.parent if root.name == SHIPPED else root / "tape_ds"
        if room.name in ROOMS and package.name == "tape_ds" and (package / "__init__.py").is_file():
            return root
    return None


def hold_together() -> None:
    """Let a script import the folders beside its own; end the process with exit code 2 where it is another checkout's.

    ``python tools/serve.py`` has ``tools`` on its path but not ``evaluation``. And it finds the package that Python's
    environment knows, which may be a first checkout's while the script is a second one's. Scripts import the package
    first, so nothing has happened yet.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is None or (root := root_of(Path(script))) is None:
        return
    if root != ROOT:
        sys.exit(_refuse(Path(script), root))
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))


@command
def _refuse(script: Path, root: Path) -> int:
    wrong = f"not the package that {script.resolve()} belongs to"
    remedy = f"start it as PYTHONPATH={root} python ..., or with the Python of an environment made for {root}"
    raise UserError(Problem("tape_ds", str(_PACKAGE), wrong, f"{remedy} (make setup)"))


hold_together()  # here, so that the package's first import is early enough
