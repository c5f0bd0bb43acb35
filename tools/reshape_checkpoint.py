"""Write a checkpoint for another number of processes, or another ZeRO stage.

    python tools/reshape_checkpoint.py runs/demo/checkpoint-8 --processes 4
    python tools/reshape_checkpoint.py runs/demo/checkpoint-8 --stage 3

The new one is ``RUN/reshaped/checkpoint-N``; the old one is verified first, and never touched. Weights and optimizer
states are the same to the last bit, and the run resumes as from any checkpoint, with the command that is printed.
Under tensor parallelism --processes stays a multiple of the tensor_parallel_size, which cannot be changed.
"""

import argparse
import sys
from pathlib import Path

from tape_ds.arguments import Parser
from tape_ds.errors import Problem, UserError, command


@command
def main(argv: list[str] | None = None) -> int:
    """Verify, write, say how to go on."""
    options = parse(argv)
    if options.processes is None and options.stage is None:
        remedy = "give --processes, --stage or both"
        raise UserError(Problem("checkpoint", options.checkpoint, "nothing says what it is to become", remedy))
    from tape_ds import checkpoint
    from tape_ds.checkpoint import reshaping

    source = Path(options.checkpoint)
    output = source.absolute().parent / "reshaped" if options.output is None else Path(options.output)
    folder = reshaping.reshape(source, output, options.processes, options.stage)
    made = checkpoint.read(folder)
    print(f"{folder}: step {made.step}, for {made.processes} processes at ZeRO stage {made.stage}")
    print(f"go on with it: --resume_from_checkpoint {folder}")
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(description=__doc__)
    parser.add_argument("checkpoint", help="a run's folder checkpoint-N")
    parser.add_argument("--processes", type=int, help="of the job that is to go on; default: as many as before")
    parser.add_argument("--stage", type=int, choices=[1, 2, 3], help="its ZeRO stage; default: as before")
    parser.add_argument("--output", help="folder around the new checkpoint; default: RUN/reshaped")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
