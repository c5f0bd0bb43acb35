"""Collect what a machine without a network lacks for the campaign: wheels, and kernels compiled for its GPU.

    python3.12 -m benchmarks collect --out .carried

Run it with the Python, Triton and machine type of that machine: Triton's cache serves no other compiler. No GPU is
needed. ``python -m benchmarks campaign --carried .carried`` puts both in place there.
"""

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks import launches
from benchmarks.machine import triton_key
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, UserError, check_folder, raise_if_any
from tape_ds.installation import ROOT
from tape_ds.kernels.launch import AUTOTUNE
from tape_ds.storage import size
from tools.compile_gate import cache
from tools.compile_gate.calls import OPERATORS

# Needs of a launcher beyond an image with torch, transformers, accelerate and peft
WHEELS = ["deepspeed", "hjson", "msgpack", "ninja", "py-cpuinfo", "einops", "liger-kernel"]
WHEELS += ["datasets", "dill", "multiprocess", "xxhash", "gguf"]
# Folders of unpacked wheels and of Triton's cache, and the file that names its compiler
SITE, CACHE, KEY = "site", "triton", "triton_key.txt"
LIMIT = 40 << 20  # bytes: what is carried shares its limit with the checkout
# The compile gate's calls of the models that the campaign runs
CALLED = r"^H=32 G=(32|8) K=128|^H=12 G=12 K=64|^H=8 G=(1|8) K=(128|64)"


def main(argv: list[str]) -> int:
    parser = Parser(prog="python -m benchmarks collect", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / ".carried", help="folder to fill; default: %(default)s")
    parser.add_argument("--capability", type=int, default=90, help="of the GPU; default: %(default)s")
    parser.add_argument("--only", choices=("wheels", "kernels"), help="one of the two")
    options = parser.parse_args(argv)
    raise_if_any(check_folder("--out", options.out))
    if options.only != "kernels":  # a package of nothing but source is built, without its compiled parts
        pins = dict(re.findall(r"^([\w-]+)(==[\w.]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
        names = [name + pins.get(name, "") for name in WHEELS]
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(options.out), *names]
        if subprocess.run(pip, env=os.environ | {"DS_BUILD_OPS": "0"}).returncode != 0:
            remedy = "see pip's messages; --only kernels leaves them out"
            raise UserError(Problem("wheels", " ".join(names), "pip could not get them", remedy))
    if options.only != "wheels":
        cache.fill(options.out / CACHE, (__name__, "tools.compile_gate.kernel_tests"), options.capability)
        (options.out / KEY).write_text(f"{triton_key()}\n")
    held = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    print(f"{options.out}: {size(held)}, of which {len(list(options.out.glob('*.whl')))} wheels")
    if held > LIMIT:
        raise UserError(Problem("out", str(options.out), f"holds {size(held)}", f"{size(LIMIT)} is the most"))
    return 0


def unpack(folder: Path, work: Path) -> dict[str, Any]:
    """Put wheels and cache where the campaign's stages find them; return what was done."""
    found, key, output = sorted(map(str, folder.glob("*.whl"))), folder / KEY, ""
    if found:
        quiet = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--upgrade"]
        pip = [sys.executable, "-m", "pip", "install", *quiet]
        output = subprocess.run([*pip, "--target", str(work / SITE), *found], capture_output=True, text=True).stderr
    return {
        "wheels": [Path(each).name for each in found],
        "pip": output[-500:],
        "kernels": cache.unpack(folder / CACHE, work / CACHE),
        "same_triton": key.exists() and key.read_text().strip() == triton_key(),
    }


def calls(dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what the campaign launches, for the compile gate: of each table the default launch, and what is swept."""

    def by_default(call: Callable[[], object]) -> None:
        with mock.patch.dict(os.environ, {AUTOTUNE: "0"}):
            call()

    for operator, made in OPERATORS.items():
        for name, call in made(dtype):
            if re.search(CALLED, name) and "deterministic" not in name:
                yield f"{operator} {name}", functools.partial(by_default, call)
    yield from launches.calls(dtype, sound=True)
