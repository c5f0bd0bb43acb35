"""Windows by convention, against what the published loops read and score, written out position by position."""

import itertools

import pytest

from tape_ds.scoring.windows import Window, all_tokens, blocks, new_tokens

SIZES = [
    (tokens, length, stride, begin)
    for tokens, length, begin in itertools.product((1, 8, 9, 23), (3, 8), (False, True))
    for stride in range(1, length, 3)
]


def scored(windows):
    return [position for window in windows for position in range(window.first, window.end)]


@pytest.mark.parametrize(("tokens", "length", "stride", "begin"), SIZES)
def test_new_tokens_scores_each_token_once_with_all_the_context_there_is(
    tokens, length, stride, begin
):
    found = new_tokens(tokens, length, stride, begin)
    assert scored(found) == list(range(0 if begin else 1, tokens))
    for before, window in itertools.pairwise(found):
        assert window.start - before.start == stride and window.first == before.end
    for window in found:
        assert window.end - window.start == min(length - begin, tokens - window.start)
    assert all(window.end < tokens for window in found[:-1])


@pytest.mark.parametrize(
    ("tokens", "starts"),
    [(8, []), (9, [0]), (10, [0]), (11, [0]), (12, [0, 3]), (17, [0, 3, 6]), (18, [0, 3, 6, 9])],
)
def test_all_tokens_stops_where_the_published_loop_does(tokens, starts):
    """``range(0, tokens - length, stride)`` leaves out a text of exactly a window, and a window that would end it."""
    found = all_tokens(tokens, 8, 3)
    assert [(window.start, window.end, window.first) for window in found] == [
        (s, s + 8, s + 1) for s in starts
    ]


@pytest.mark.parametrize(("tokens", "count"), [(7, 0), (8, 1), (9, 1), (15, 1), (16, 2), (25, 3)])
def test_blocks_are_disjoint_and_whole(tokens, count):
    assert blocks(tokens, 8) == [Window(8 * at, 8 * at + 8, 8 * at + 1) for at in range(count)]


def test_a_token_before_each_window_takes_its_room_and_gives_a_target():
    assert blocks(14, 8, begin=True) == [Window(0, 7, 0), Window(7, 14, 7)]
    assert all_tokens(9, 8, 1, begin=True) == [Window(0, 7, 0), Window(1, 8, 1)]
    assert new_tokens(9, 8, 3, begin=True) == [Window(0, 7, 0), Window(3, 9, 7)]


@pytest.mark.parametrize(("stride", "begin"), [(0, False), (8, True)])
@pytest.mark.parametrize("convention", [all_tokens, new_tokens])
def test_strides_that_leave_tokens_out_are_refused(convention, stride, begin):
    with pytest.raises(ValueError, match=f"stride = {stride}"):
        convention(20, 8, stride, begin)
    with pytest.raises(ValueError, match="a window needs 2 tokens"):
        convention(20, 1, 1, False)
