"""The command ``tape-ds plan`` as a script."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # this checkout's package, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tape_ds.cli.plan import main

    sys.exit(main())
