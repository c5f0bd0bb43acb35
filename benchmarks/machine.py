"""Record a machine's versions, and check that it has the parts that kernels and training need.

    python -m benchmarks.machine --device cuda --out runs/campaign/campaign_1.jsonl

Versions, a C compiler and Python.h, a sum over one rank of NCCL, and a Triton kernel.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from benchmarks import table
from benchmarks.benchmark_case import Setting
from tape_ds import results
from tape_ds.arguments import Parser
from tape_ds.kernels import jit
from tape_ds.kernels.rotate import rotate


def main() -> int:
    """Measure and store; exit code 1 where something is missing."""
    parser = Parser(prog="python -m benchmarks.machine", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument(
        "--out", type=Path, required=True, help="file of lines that one is added to"
    )
    options = parser.parse_args()
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    facts: dict[str, Any] = {
        **table.provenance(Setting(device, dtype)),
        "hardware": results.hardware(),
    }
    facts["compiler"] = jit.no_compiler() or "found, with Python.h"
    failed = list(filter(None, [jit.no_compiler()]))

    def sum_over_one_rank() -> None:
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
        summed = torch.ones(1, device=device)
        distributed.all_reduce(summed)
        distributed.destroy_process_group()
        assert summed.item() == 1.0

    def first_kernel() -> None:
        """Include Triton's compiler, and the C compiler for its launcher."""
        # cosines, sines
        start = torch.tensor([1.0, 0.0], device=device).repeat_interleave(32).expand(1, 1, 16, 64)
        x = torch.randn(1, 16, 1, 64, device=device).to(dtype).transpose(1, 2)
        assert torch.equal(rotate(x, start.contiguous()), x), (
            "a rotation by nothing changed its tensor"
        )

    for check in (sum_over_one_rank, first_kernel):
        name = f"{check.__name__}_seconds"
        began = time.perf_counter()
        try:
            check()
            facts[name] = time.perf_counter() - began
        except Exception as error:
            # any error is part of the record, and the other checks still run
            failed.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    table.append({"machine": facts, "failed": failed}, options.out)
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    print("; ".join(failed) or f"{facts['device']}: complete")
    if failed:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
