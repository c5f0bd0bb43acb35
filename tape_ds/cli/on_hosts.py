"""Start a run on several machines, with this environment and the arguments as they were typed.

    tape-ds on-hosts deepspeed --hostfile hosts launchers/extend_llama.py --recipe llama2_7b_8k
    tape-ds keep-alive tape-ds on-hosts deepspeed --hostfile hosts launchers/pretrain_c4.py

Its options come before the command. All variables that training reads, credentials of W&B and the hub among them, reach
every machine without appearing in a command line or a log; see docs/multi_node.md. Exit codes: 2 a mistake, nothing was
started; else the command's.
"""

import argparse

from tape_ds.distributed import forwarding
from tape_ds.errors import command


@command
def main(argv: list[str] | None = None) -> int:
    """Read the command, give the machines this environment, start it."""
    parser = argparse.ArgumentParser(
        prog="tape-ds on-hosts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--forward", default="", help="names of further variables to forward, as A,B")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the deepspeed command")
    options = parser.parse_args(argv)
    typed = options.command[options.command[:1] == ["--"] :]
    return forwarding.start(typed, [name.strip() for name in options.forward.split(",") if name.strip()])
