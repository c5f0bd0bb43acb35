"""One workspace for all attempts of a test run, its workers' alike: prepared data and the uninterrupted runs are made
once."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Folder of the campaigns."""
    if worker_id == "master":
        return tmp_path_factory.mktemp("faults")
    shared = tmp_path_factory.getbasetemp().parent / "faults"
    shared.mkdir(exist_ok=True)
    return shared
