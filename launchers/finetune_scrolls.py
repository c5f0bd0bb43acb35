"""``tape-ds finetune`` for SCROLLS: ``deepspeed launchers/finetune_scrolls.py --recipe scrolls/qasper``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # this checkout's package, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tape_ds.cli.train import main

    sys.exit(main("finetune_scrolls"))
