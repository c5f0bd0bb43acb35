"""The command ``tape-ds pretrain`` as a script: ``deepspeed launchers/pretrain_c4.py --recipe c4_155m_tape``."""

import sys
from pathlib import Path


def main() -> int:
    """Train."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout's package, whatever is installed
    from tape_ds.cli.train import main as train

    return train("pretrain_c4")


if __name__ == "__main__":
    sys.exit(main())
