"""JSON of other people's folders: read, or refused with what to do about it."""

import os

import pytest

from tape_ds.errors import UserError
from tape_ds.models.files import json_file


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ('\ufeff{"a": 1}', "byte order mark"),
        ('{\n  // sizes\n  "a": 1\n}', "take the comments out"),
        ('{"a": 1,}', "take out the comma"),
        ('{"a": [1, ]}', "take out the comma"),
        # an address is no comment
        (
            '{"a": ["b//c"}',
            "take it from where the model was published",
        ),
        ('{"a": }', "take it from where the model was published"),
        ("[1]", "take it from where the model was published"),
        ("{", "take it from where the model was published"),
    ],
)
def test_a_text_that_is_no_json_is_named_with_its_remedy(tmp_path, text, remedy):
    """ "repair the folder" was all that was said of a byte order mark and of comments."""
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        json_file.read(tmp_path / "config.json", "model", "a/model")
    (problem,) = caught.value.problems
    assert (problem.field, problem.value) == ("model", "a/model")
    assert problem.wrong.startswith("config.json is not readable") and remedy in problem.remedy


def test_a_remedy_works_when_followed(tmp_path):
    file = tmp_path / "config.json"
    file.write_text('\ufeff{\n  # of the model\n  "a": [1, 2,]\n}', encoding="utf-8")
    repairs = {
        "byte order mark": lambda text: text.removeprefix("\ufeff"),
        "comments": lambda text: text.replace("  # of the model\n", ""),
        "comma": lambda text: text.replace(",]", "]"),
    }
    for word, repair in repairs.items():
        with pytest.raises(UserError, match=word):
            json_file.read(file, "model", "x")
        file.write_text(repair(file.read_text(encoding="utf-8")), encoding="utf-8")
    assert json_file.read(file, "model", "x") == {"a": [1, 2]}


def test_nan_is_refused_and_infinity_is_not(tmp_path):
    """``rms_norm_eps: NaN`` gave a perplexity of NaN, which was stored. Mamba has an infinite limit."""
    file = tmp_path / "config.json"
    file.write_text('{"limit": [0.0, Infinity]}')
    assert json_file.read(file, "model", "x") == {"limit": [0.0, float("inf")]}
    file.write_text('{"rms_norm_eps": NaN, "rope": {"factors": [1.0, NaN]}}')
    with pytest.raises(
        UserError, match=r"has NaN, which is no number, as rms_norm_eps, rope\.factors"
    ):
        json_file.read(file, "model", "x")


def test_a_pipe_is_no_file(tmp_path):
    """Reading one waits without an end for who writes into it."""
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(UserError, match="is a pipe or a device"):
        json_file.read(tmp_path / "config.json", "model", "x")
    with pytest.raises(UserError, match="is not there"):
        json_file.read(tmp_path / "other.json", "model", "x")
