"""What every test shares: one thread, no network, hardware marks and Triton's mode decided in one place."""

import gc
import os
import signal
import sys

# Before any library reads them. One thread: two workers share two cores, and sums come out in one order.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("MPLBACKEND", "agg")

import pytest
import torch

from tests import thinned

torch.set_num_threads(1)
# A shell's background job ignores SIGINT, and nohup SIGHUP; tests of signals need what a terminal gives.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Kernel tests run on the GPU where there is one, else in Triton's interpreter. Triton asks when it decorates a kernel,
# its own included, so this comes before anything of it is imported; torch by itself imports none of it.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


FIRST = (
    "tests/integration/",
    "tests/faults/",
    "tests/planning/test_against_tensors.py",
    "tests/fake_cuda/",
    "tests/data/",
    "tests/training/",
    "tests/kernels/",
    "tests/resilience/",
    "tests/test_",
)
"""Long files, and folders with such: begun first, so that no worker has one of them left when the others are done."""


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is marked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most cases of long grids to ``-m slow``; skip tests marked ``gpu`` on a machine without a CUDA device."""
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))
    thinned.thin(items)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """Leave all modules out of garbage collection: a trainer collects several times, which took half a second each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_graphs_of_others() -> None:
    """Forget what earlier tests compiled: torch counts graphs by line of code, and gives up on one with eight."""
    if compiler := sys.modules.get("torch._dynamo"):
        compiler.reset()


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test starts from the same random state, whatever ran before it."""
    torch.manual_seed(0)
