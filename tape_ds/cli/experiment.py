"""``tape-ds experiment``: the experiments of a checkout, ``tools/experiment``; a wheel has none."""

import sys
from importlib import import_module

from tape_ds.errors import Problem, UserError, command
from tape_ds.installation import ROOT

FOLDER = ROOT / "tools" / "experiment"


@command
def main(argv: list[str] | None = None) -> int:
    if not FOLDER.is_dir():
        remedy = "start it from a checkout: make setup, then .venv/bin/tape-ds experiment"
        raise UserError(
            Problem(
                "command", "experiment", "experiments are no part of an installed package", remedy
            )
        )
    sys.path.insert(0, str(ROOT))
    code: int = import_module("tools.experiment.__main__").main(argv)
    return code
