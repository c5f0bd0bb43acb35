"""The command ``tape-ds train-tokenizer`` as a script."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # this checkout's package, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tape_ds.cli.train_tokenizer import main

    sys.exit(main())
