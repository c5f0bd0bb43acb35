"""The heat map as a table, as CSV and as a picture."""

from matplotlib import image

from tape_ds.scoring import heat_maps


def cell(length, depth, correct, trials=4, ids=0, tokens=None):
    return {
        "length": length,
        "depth": depth,
        "trials": trials,
        "correct": correct,
        "correct_ids": ids,
        "mean_tokens": tokens or length - 10.0,
    }


CELLS = [cell(1024, 0.0, 4, ids=3), cell(1024, 1.0, 1, ids=1), cell(16384, 0.0, 0), cell(16384, 1.0, 2, ids=2)]


def test_the_table():
    lines = heat_maps.passkey_table(CELLS).splitlines()
    assert lines[0] == "| depth | 1k | 16k |"
    assert lines[2:5] == ["| 0% | 4/4 | 0/4 |", "| 100% | 1/4 | 2/4 |", "| all | 5/8 | 2/8 |"]
    assert lines[5] == "| all, by token ids | 4/8 | 2/8 |"


def test_depths_that_round_to_one_percentage_are_two_rows(tmp_path):
    near = [cell(1024, 0.5, 4), cell(1024, 0.5001, 3)]
    assert heat_maps.passkey_table(near).splitlines()[2:4] == ["| 50% | 4/4 |", "| 50% | 3/4 |"]
    heat_maps.draw_passkeys(near, tmp_path / "a.png", title="near", native_length=None)


def test_a_missing_cell_is_a_gap_not_a_zero(tmp_path):
    lines = heat_maps.passkey_table(CELLS[:3]).splitlines()
    assert lines[3] == "| 100% | 1/4 | - |"
    assert lines[4] == "| all | 5/8 | 0/4 |"
    heat_maps.draw_passkeys(CELLS[:3], tmp_path / "a.png", title="gap", native_length=None)


def pixels(path):
    return image.imread(path)[..., :3].reshape(-1, 3)


def near(found, colour):
    return int((abs(found - colour).max(axis=1) < 0.02).sum())


def test_the_picture_shows_all_none_and_the_native_length(tmp_path):
    yellow, blue, orange = (0.996, 0.909, 0.217), (0.0, 0.135, 0.305), (0.835, 0.369, 0.0)
    path = heat_maps.draw_passkeys(CELLS, tmp_path / "a.png", title="one", native_length=8192)
    found = pixels(path)
    assert near(found, yellow) > 2000 and near(found, blue) > 2000 and near(found, orange) > 100
    inside = pixels(heat_maps.draw_passkeys(CELLS, tmp_path / "b.png", title="one", native_length=16384))
    assert near(inside, orange) == 0, "no length is beyond"
    none = [{**each, "correct": 0} for each in CELLS]
    blank = pixels(heat_maps.draw_passkeys(none, tmp_path / "c.png", title="one", native_length=None))
    assert near(blank, yellow) < near(found, yellow) / 2, "the colour bar alone"
