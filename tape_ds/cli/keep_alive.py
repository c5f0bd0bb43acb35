"""Keep a run alive: start its command, and start it again from its newest checkpoint until the run is done.

    tape-ds keep-alive tape-ds extend llama2_7b_8k
    tape-ds keep-alive --restarts 3 --backoff 30 deepspeed --hostfile hosts launchers/pretrain_c4.py

Its options come before the command. ``--resume auto`` is added where the command names no checkpoint to resume from.
On SIGTERM, SIGUSR1 or Ctrl-C all ranks commit a checkpoint and stop; see docs/staying_alive.md. Exit codes: 0 done, or
stopped with a committed checkpoint; 2 a mistake; 3 a guard stopped the run; 1, or the command's code: given up.
"""

import argparse

from tape_ds.errors import command, raise_if_any
from tape_ds.resilience import keep_alive
from tape_ds.resilience.stopping import StopRequest, tolerate_lost_terminal


@command
def main(argv: list[str] | None = None) -> int:
    # first: a signal during the checks below must not end the process without a word
    request = StopRequest()
    request.listen()
    tolerate_lost_terminal()
    defaults = keep_alive.Patience()
    parser = argparse.ArgumentParser(
        prog="tape-ds keep-alive",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    helps = {
        "restarts": "consecutive restarts without a newer committed checkpoint; default %(default)s",
        "backoff": "seconds before the first restart, doubled for each further one; default %(default)s",
        "grace": "seconds for ranks to commit before they are killed; default %(default)s",
    }
    for name, text in helps.items():
        default = getattr(defaults, name)
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the training command")
    options = parser.parse_args(argv)
    patience = keep_alive.Patience(
        restarts=options.restarts, backoff=options.backoff, grace=options.grace
    )
    raise_if_any(patience.problems())
    # "--" may come first: what follows it is the command, not options of this one
    kept = keep_alive.prepare(options.command[options.command[:1] == ["--"] :])
    return keep_alive.KeepAlive(
        kept, patience, request, lambda text: print(f"keep_alive: {text}", flush=True)
    ).run()
