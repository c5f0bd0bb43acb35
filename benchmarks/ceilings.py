"""What a machine can do at best: bytes copied and multiply-adds of a matrix product, a second, and what it is made of.

    python -m benchmarks.ceilings --device cuda --out benchmarks/results

Both on random numbers: zeros run faster than data do.
"""

import time
from collections.abc import Callable
from pathlib import Path

import torch
import triton

from benchmarks import table
from tape_ds import results
from tape_ds.arguments import Parser

COPIED = {"cuda": 1 << 32, "cpu": 1 << 20}
"""Bytes."""
ROWS = {"cuda": 8192, "cpu": 256}
"""Of each of the square matrices."""


def main() -> None:
    """Measure and store."""
    parser = Parser(prog="python -m benchmarks.ceilings", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    options, _ = parser.parse_known_args()
    started = results.collect(command=["benchmarks.ceilings", "--device", options.device])
    device = torch.device(options.device)
    rows, dtype = ROWS[device.type], torch.bfloat16 if device.type == "cuda" else torch.float32
    source = torch.randint(256, (COPIED[device.type],), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    left, right = (torch.randn(rows, rows, device=device).to(dtype) for _ in range(2))
    found: dict[str, float | int | str | None] = {
        "copy_bytes_per_second": 2 * len(source) / seconds(lambda: target.copy_(source), device),
        "product_flop_per_second": 2 * rows**3 / seconds(lambda: left @ right, device),
        "product_dtype": str(dtype).removeprefix("torch."),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {name: getattr(properties, name) for name in ("multi_processor_count", "L2_cache_size")}
        found |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    path = results.save(started.finish(found), options.out / f"{table.stem('ceilings', device)}.json")
    print("\n".join(f"{name}: {value}" for name, value in found.items()), path, sep="\n")


def seconds(function: Callable[[], object], device: torch.device) -> float:
    """Return the median of a GPU's runs, each after its second-level cache is emptied; one run on a CPU."""
    if device.type == "cuda":
        return 1e-3 * triton.testing.do_bench(function, return_mode="median")
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
