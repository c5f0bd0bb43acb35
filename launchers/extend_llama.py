"""The command ``tape-ds extend`` as a script: ``deepspeed launchers/extend_llama.py --recipe llama2_7b_8k``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # this checkout's package, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tape_ds.cli.train import main

    sys.exit(main("extend_llama"))
