"""Numbers in words."""

import pytest

from tape_ds import numbers


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (2000, "2,000 rows")]
)
def test_what_is_counted_has_its_plural(count, words):
    assert numbers.counted(count, "row") == words
