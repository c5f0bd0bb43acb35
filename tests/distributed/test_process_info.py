"""What each launcher's variables say of a process."""

import pytest

from tape_ds.distributed import process_info

DEEPSPEED = {
    "RANK": "9",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "LOCAL_SIZE": "8",
    "CROSS_RANK": "1",
}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
}


@pytest.mark.parametrize(
    ("given", "rank", "on_node", "node", "alone", "leads"),
    [
        (DEEPSPEED, 9, 8, 1, False, False),
        (TORCHRUN, 3, 2, 1, False, False),
        ({**DEEPSPEED, "LOCAL_SIZE": "16"}, 9, 16, 1, True, False),
        ({"RANK": "0", "WORLD_SIZE": "2"}, 0, None, None, False, True),
        ({}, 0, None, None, True, True),
    ],
)
def test_a_place_is_what_the_launcher_says(given, rank, on_node, node, alone, leads):
    found = process_info.current(given)
    assert (found.rank, found.on_node, found.node) == (rank, on_node, node)
    assert (found.is_single_node, found.leads_node) == (alone, leads)
