"""The command ``tape-ds pretrain`` as a script: ``deepspeed launchers/pretrain_c4.py --recipe c4_155m_tape``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # this checkout's package, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tape_ds.cli.train import main

    sys.exit(main("pretrain_c4"))
