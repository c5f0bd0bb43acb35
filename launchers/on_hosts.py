"""The command ``tape-ds on-hosts`` as a script: ``python launchers/on_hosts.py deepspeed --hostfile hosts ...``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout's package, whatever is installed
    from tape_ds.cli.on_hosts import main

    sys.exit(main())
