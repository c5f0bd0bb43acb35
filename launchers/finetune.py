"""The command ``tape-ds finetune`` as a script: ``deepspeed launchers/finetune.py --recipe longalign_llama3_8b``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # this checkout's package, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tape_ds.cli.train import main

    sys.exit(main("finetune"))
