"""The ranks that the tests of this room share."""

from collections.abc import Iterator

import pytest

from tests.distributed.group import Group


@pytest.fixture(scope="session")
def group() -> Iterator[Group]:
    """One group for the session; it starts with its first case."""
    living = Group()
    yield living
    living.end()
