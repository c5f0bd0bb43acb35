"""Start a run on several machines: look at the hostfile and at every machine first, and give them this environment.

    python launchers/on_hosts.py deepspeed --hostfile hosts launchers/extend_llama.py --recipe llama2_7b_8k
    python launchers/keep_alive.py python launchers/on_hosts.py deepspeed --hostfile hosts launchers/pretrain_c4.py

Its own options stand before the command, which then starts as it is. W&B's, the hub's and all other variables that
training reads reach every machine, and no command line and no log; see docs/multi_node.md. Exit codes: 2 something to
mend, all of it in one message, nothing started; else the command's own.
"""

import argparse
import sys

from tape_ds.errors import Problem, command, raise_if_any
from tape_ds.training.cluster import starting


@command
def main(argv: list[str] | None = None) -> int:
    """Read the command, look at the machines, start it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--timeout", type=float, default=15, help="seconds for a machine to let ssh in; default %(default)g"
    )
    parser.add_argument("--forward", default="", help="names of further variables that the machines get, as A,B")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="as you would type it without on_hosts.py")
    options = parser.parse_args(argv)
    if not options.timeout > 0:
        raise_if_any([Problem("--timeout", options.timeout, "too small", "give more than 0 seconds")])
    typed = options.command[options.command[:1] == ["--"] :]
    forward = [name.strip() for name in options.forward.split(",") if name.strip()]
    return starting.prepare(starting.read(typed), forward, options.timeout, say).run()


def say(text: str) -> None:
    """Show a line."""
    print(f"on_hosts: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
