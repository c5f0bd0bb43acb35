"""Compile every Triton kernel as models launch it, without a GPU, and refuse what would run slowly or not at all.

    python -m tools.compile_kernels                                    every operator, sm_80, sm_90, bf16, fp16
    python -m tools.compile_kernels --once                             each launch of a table once: a quick look
    python -m tools.compile_kernels --kernels rotate --capability 90   one operator, one kind of GPU
    python -m tools.compile_kernels --kernels my.module                any module with ``calls(dtype)``
    python -m tools.compile_kernels --only "keys_kernel .*G=32 K=128"  what this matches

The operators run on tensors without memory (``tools/compile_gate``): each launch, of every entry of a table's row, goes
through Triton's own binder, and each specialisation that comes out is compiled once. A row says what became of it:
blocks, warps, stages; registers of a thread; spills, in instructions inside loops + outside; bytes of shared memory;
tensor-core instructions of the kind that a warp issues (mma) and four warps together (wgmma).

It is a failure, listed again at the end and by exit code 1, if a loop spills, if a program needs more shared memory
than the GPU has, if a matrix product is left off the tensor cores, if the assembler made wgmma wait one by one, if it
does not compile, and, where no operator is named, if a kernel or a table's row is reached by no call.

Triton's cache (TRITON_CACHE_DIR) is used: a second run is quicker and reads the same.
"""

import os
import sys

from tape_ds.arguments import Parser
from tape_ds.errors import command

CAPABILITIES = (80, 90)
"""Those that launch tables have columns for."""
DTYPES = ("bf16", "fp16")


@command
def main(argv: list[str] | None = None) -> int:
    """Parse, then compile."""
    parser = Parser(description=__doc__)
    workers = min(8, os.cpu_count() or 1)
    parser.add_argument("--capability", type=int, nargs="+", choices=CAPABILITIES, default=list(CAPABILITIES))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--kernels", nargs="+", metavar="NAME", help="operators or modules; default: all")
    parser.add_argument("--only", default="", metavar="REGEX", help="compile what this matches of 'kernel call'")
    parser.add_argument("--once", action="store_true", help="one call, in one dtype, for each launch and head size")
    parser.add_argument("--workers", type=int, default=workers, help=f"processes, here {workers}")
    options = parser.parse_args(argv)
    from tools.compile_gate import gate

    return gate.run(options)


if __name__ == "__main__":
    sys.exit(main())
