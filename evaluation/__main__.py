"""The command ``tape-ds evaluate`` as a module: ``python -m evaluation passkey MODEL``."""

import sys

from tape_ds.cli.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
