"""Toy sizes for every group, and no compiler: each would take longer than all else."""

import pytest
import torch

from benchmarks import toys as sizes
from benchmarks.groups import GROUPS

MODEL = sizes.TOYS["cpu"]["step"]


@pytest.fixture
def toys(monkeypatch):
    """The groups with one toy shape each; compiled implementations refuse."""
    monkeypatch.setattr(torch, "compile", torch.compile)
    sizes.without_compiler()
    for name, group in sizes.groups().items():
        monkeypatch.setitem(GROUPS, name, group)
    return sizes.TOYS["cpu"]
