"""The command ``tape-ds generated`` as a script: ``deepspeed launchers/train_generated.py --recipe addition_6``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # this checkout's package, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tape_ds.cli.train import main

    sys.exit(main("train_generated"))
