"""Record a machine's versions and ceilings, and check that it has the parts that kernels and training need.

    python -m benchmarks.machine --device cuda --out runs/campaign/campaign_1.jsonl

Versions, a C compiler and Python.h, a sum over one rank of NCCL, a Triton kernel, and a second's bytes copied and
multiply-adds of a matrix product, both on random numbers: zeros run faster than data do.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from benchmarks import table
from benchmarks.benchmark_case import Setting
from benchmarks.measure import Runner, clock, interleaved
from tape_ds import results
from tape_ds.arguments import Parser
from tape_ds.kernels import jit
from tape_ds.kernels.rotate import rotate

COPIED_BYTES = {"cuda": 1 << 32, "cpu": 1 << 20}
PRODUCT_ROWS = {"cuda": 8192, "cpu": 256}


def main() -> int:
    """Measure and store; exit code 1 where something is missing."""
    parser = Parser(prog="python -m benchmarks.machine", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--out", type=Path, required=True, help="file of lines that one is added to")
    options = parser.parse_args()
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    found: dict[str, Any] = {**table.provenance(Setting(device, dtype)), "hardware": results.hardware()}
    found["compiler"] = jit.no_compiler() or "found, with Python.h"
    failed = list(filter(None, [jit.no_compiler()]))

    def seconds(run: Callable[[], object]) -> float:
        samples = interleaved({"": Runner(run, None, dict, 0)}, 10, clock(device, head_start=True), warm_up=1)[""]
        return 1e-3 * sorted(sample.forward for sample in samples)[5]

    def sum_over_one_rank() -> float:
        began = time.perf_counter()
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
        summed = torch.ones(1, device=device)
        distributed.all_reduce(summed)
        distributed.destroy_process_group()
        assert summed.item() == 1.0
        return time.perf_counter() - began

    def first_kernel() -> float:
        """Include Triton's compiler, and the C compiler for its launcher."""
        began = time.perf_counter()
        start = torch.tensor([1.0, 0.0], device=device).repeat_interleave(32).expand(1, 1, 16, 64)  # cosines, sines
        x = torch.randn(1, 16, 1, 64, device=device).to(dtype).transpose(1, 2)
        assert torch.equal(rotate(x, start.contiguous()), x), "a rotation by nothing changed its tensor"
        return time.perf_counter() - began

    def copied() -> float:
        source = torch.randint(256, (COPIED_BYTES[device.type],), dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return 2 * len(source) / seconds(lambda: target.copy_(source))

    def multiplied() -> float:
        rows = PRODUCT_ROWS[device.type]
        left, right = (torch.randn(rows, rows, device=device).to(dtype) for _ in range(2))
        return 2 * rows**3 / seconds(lambda: left @ right)

    checks: dict[str, Callable[[], float]] = {
        "sum_over_one_rank_seconds": sum_over_one_rank,
        "first_kernel_seconds": first_kernel,
        "copy_bytes_per_second": copied,
        "product_flop_per_second": multiplied,
    }
    for name, check in checks.items():
        try:
            found[name] = check()
        except Exception as error:  # any error is part of the record, and the other checks still run
            failed.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    table.append({"machine": found, "failed": failed}, options.out)
    print("\n".join(f"{name}: {value}" for name, value in found.items()))
    print("; ".join(failed) or f"{found['device']}: complete")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
