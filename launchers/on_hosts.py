"""Start a run on several machines, with this environment and the arguments as they were typed.

    python launchers/on_hosts.py deepspeed --hostfile hosts launchers/extend_llama.py --recipe llama2_7b_8k
    python launchers/keep_alive.py python launchers/on_hosts.py deepspeed --hostfile hosts launchers/pretrain_c4.py

Its own options stand before the command. W&B's, the hub's and all other variables that training reads reach every
machine, and no command line and no log; see docs/multi_node.md. Exit codes: 2 something to mend, nothing started; else
the command's own.
"""

import argparse
import sys

from tape_ds.distributed import forwarding
from tape_ds.errors import command


@command
def main(argv: list[str] | None = None) -> int:
    """Read the command, give the machines this environment, start it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forward", default="", help="names of further variables that the machines get, as A,B")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="as you would type it without on_hosts.py")
    options = parser.parse_args(argv)
    typed = options.command[options.command[:1] == ["--"] :]
    return forwarding.start(typed, [name.strip() for name in options.forward.split(",") if name.strip()])


if __name__ == "__main__":
    sys.exit(main())
