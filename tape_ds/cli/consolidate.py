"""Write a checkpoint's weights as one folder, in fp32 where the engine trained in 16 bits.

    tape-ds consolidate runs/demo/checkpoint-8 OUT [--dtype bfloat16]

OUT is a folder of trained weights like ``trained`` of a run: ``tape-ds merge``, ``tape-ds export`` and ``tape-ds
evaluate`` take it, and a model trained whole loads with ``from_pretrained``. It has whole parameters, for any number of
processes, ZeRO stage and tensor_parallel_size of the run. Every byte of the checkpoint is verified first. No GPU is
needed, only the memory of the largest weight.
"""

import os
import sys
from pathlib import Path

from tape_ds.arguments import Parser
from tape_ds.errors import Problem, UserError, command, raise_if_any


@command
def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="tape-ds consolidate", description=__doc__)
    parser.add_argument("checkpoint", help="a run's folder checkpoint-N")
    parser.add_argument("out", help="a new folder")
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "float16"],
        help="of the weights; default: float32 from an engine, else as they were saved",
    )
    parser.add_argument(
        "--unsealed",
        action="store_true",
        help="accept a folder without a manifest, as other programs save it",
    )
    options = parser.parse_args(argv)
    source = Path(options.checkpoint)
    out = Path(options.out)
    # seconds: not for --help
    import torch

    from tape_ds import checkpoint
    from tape_ds.checkpoint import consolidation

    # a damaged checkpoint is refused in any case; without a manifest none is known to be whole
    unsealed = os.path.isdir(source) and not os.path.lexists(source / checkpoint.MANIFEST)
    if unsealed:
        wrong = "it has no manifest: whether its files are whole and of one checkpoint is unknown"
        if not options.unsealed:
            remedy = f"{consolidation.alternatives(source)}; or --unsealed, for a folder of another program"
            raise UserError(Problem("checkpoint", str(source), wrong, remedy))
        print(f"warning: {source}: {wrong}. Nothing in them is executed", file=sys.stderr)
    raise_if_any(consolidation.check_out(out, source))
    if not unsealed:
        consolidation.verify(source)
    dtype = None if options.dtype is None else getattr(torch, options.dtype)
    done = consolidation.consolidate(source, out, dtype)
    count = sum(form.numel() for form in done.forms.values())
    dtypes = ", ".join(
        sorted({str(form.dtype).removeprefix("torch.") for form in done.forms.values()})
    )
    print(
        f"{done.file}: {len(done.forms)} tensors, {count / 1e6:,.2f} M parameters, {dtypes or 'none'}; {done.origin}"
    )
    return 0
