"""Compile every Triton kernel as models launch it, without a GPU; find register spills and excess shared memory.

    python -m tools.compile_kernels                                    every operator, sm_80, sm_90, bf16, fp16
    python -m tools.compile_kernels --once                             each launch of a table once: a quick look
    python -m tools.compile_kernels --kernels rotate --capability 90   one operator, one kind of GPU
    python -m tools.compile_kernels --kernels my.module                any module with ``calls(dtype)``
    python -m tools.compile_kernels --only "keys_kernel .*G=32 K=128"  kernels and calls that this matches

The operators run on meta tensors (``tools/compile_gate``): Triton specialises every launch of a table's row, and each
specialisation is compiled once. Its line has blocks, warps and stages, spills inside loops, and bytes of shared memory.

Exit code 1, with the failures repeated at the end: a spill in a loop, more shared memory than the GPU has, or a kernel
that does not compile. Triton's cache (TRITON_CACHE_DIR) makes a second run quicker.
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
    parser.add_argument(
        "--capability", type=int, nargs="+", choices=CAPABILITIES, default=list(CAPABILITIES)
    )
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument(
        "--kernels", nargs="+", metavar="NAME", help="operators or modules; default: all"
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="compile what this matches of 'kernel call'"
    )
    parser.add_argument(
        "--once", action="store_true", help="one call, in one dtype, for each launch and head size"
    )
    parser.add_argument("--workers", type=int, default=workers, help=f"processes, here {workers}")
    options = parser.parse_args(argv)
    from tools.compile_gate import gate  # seconds: not for --help

    return gate.run(options)


if __name__ == "__main__":
    sys.exit(main())
