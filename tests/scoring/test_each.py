"""What scorers hand out."""

from tape_ds.scoring.each import in_turn


def test_in_turn_keeps_the_order():
    done = []
    assert in_turn(lambda job: done.append(job) or job * 2, [3, 1, 2]) == [6, 2, 4] and done == [3, 1, 2]
    assert in_turn(len, []) == []
