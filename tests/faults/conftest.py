"""One workspace for all attempts of a test run: prepared data and the uninterrupted runs are made once."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the campaigns."""
    return tmp_path_factory.mktemp("faults")
