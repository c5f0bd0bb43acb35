"""The program ``tape-ds`` as ``python -m tape_ds``."""

import sys

from tape_ds.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
