"""Labels are read as the sizes that they name."""

import pytest

from benchmarks import shapes


@pytest.mark.parametrize(
    "label, sizes",
    [
        (
            "B1 H32 G8 T8192 K128",
            {"batch": 1, "heads": 32, "groups": 8, "tokens": 8192, "width": 128},
        ),
        (
            "dK dQ, B1 H4 G4 T64 K8",
            {"name": "dK dQ", "batch": 1, "heads": 4, "groups": 4, "tokens": 64, "width": 8},
        ),
        (
            "B2 H9 G3 T1 S8192 K64",
            {"batch": 2, "heads": 9, "groups": 3, "tokens": 1, "keys": 8192, "width": 64},
        ),
        (
            "B8 H12 G12 I48 T9 K64",
            {"batch": 8, "heads": 12, "groups": 12, "rank": 48, "tokens": 9, "width": 64},
        ),
        (
            "7B L2 B1 T1024 N5",
            {"name": "7B", "layers": 2, "batch": 1, "tokens": 1024, "documents": 5},
        ),
    ],
)
def test_labels_are_read(label, sizes):
    assert {name: size for name, size in shapes.read_shape(label)._asdict().items() if size} == {
        "label": label,
        **sizes,
    }
