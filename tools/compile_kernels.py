"""Compile every Triton kernel as models launch it, without a GPU, and refuse what would run slowly or not at all.

    python -m tools.compile_kernels                                    every operator, sm_80, sm_90, bf16, fp16
    python -m tools.compile_kernels --once                             each launch of a table once: a quick look
    python -m tools.compile_kernels --kernels rotate --capability 90   one operator, one kind of GPU
    python -m tools.compile_kernels --kernels my.module                any module with ``calls(dtype)``
    python -m tools.compile_kernels --only "keys_kernel .*G=32 K=128"  what this matches

The operators run on meta tensors (``tools/compile_gate``): every launch of a table's row is specialised by Triton, and
each specialisation is compiled once. Its line has blocks, warps and stages; registers of a thread; spills inside loops
+ outside; bytes of shared memory; tensor-core instructions of a warp (mma) and of four warps together (wgmma).

Failures, repeated at the end and in exit code 1: a spill in a loop, more shared memory than the GPU has, a matrix
product off the tensor cores, wgmma serialised by the assembler, a kernel that does not compile, and, unless an operator
is named, a kernel or a table's row that no call reaches.

Triton's cache (TRITON_CACHE_DIR) makes a second run quicker.
"""

import os
import sys

from tape_ds.arguments import Parser
from tape_ds.errors import command

CAPABILITIES = (80, 90)  # of the launch tables
DTYPES = ("bf16", "fp16")


@command
def main(argv: list[str] | None = None) -> int:
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
