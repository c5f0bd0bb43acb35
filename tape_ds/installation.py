"""Where recipes and DeepSpeed's configurations are: in top-level folders of a checkout, or in the package."""

import os
import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
ROOT = _PACKAGE.parent
"""The checkout; of an installed package ``site-packages``."""
IS_CHECKOUT = (ROOT / "launchers" / "recipes").is_dir()
# pyproject.toml maps the two folders into a wheel
RECIPES = ROOT / "launchers" / "recipes" if IS_CHECKOUT else _PACKAGE / "recipes"
DS_CONFIGS = ROOT / "ds_configs" if IS_CHECKOUT else _PACKAGE / "ds_configs"

FOUND_NO_GPU = "TAPE_DS_FOUND_NO_GPU"
"""An environment variable that ``tape-ds`` sets where it found no GPU and chose the CPU itself."""


def environment() -> dict[str, str]:
    """Return this process's variables, with this Python's programs on the path, and the checkout's package if any."""
    found = dict(os.environ)
    found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), found.get("PATH", "")])
    if IS_CHECKOUT:
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), found.get("PYTHONPATH")]))
    return found
