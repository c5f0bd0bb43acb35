"""What a recipe says about weights of targets, and which combinations are refused before anything starts."""

import pytest

from tests.config.helpers import problems_of, write
from tests.config.loads import chat, extension, generated, pretraining

OWN = {
    "target_weights",
    "exact_tail",
    "exact_extra",
    "exact_ratio",
    "longce_short",
    "longce_stride",
    "longce_most",
}
LONGCE = {"target_weights": "longce", "longce_short": 256, "longce_stride": 128}


def test_a_recipe_without_weights_stores_none_of_their_fields():
    """So a checkpoint from before there were weights is of the same run; and each kind stores its own alone."""
    assert not OWN & extension(["--recipe", write()]).as_dict().keys()
    stored = extension(["--recipe", write(target_weights="exact")]).as_dict()
    assert OWN & stored.keys() == {"target_weights", "exact_tail", "exact_extra", "exact_ratio"}
    stored = extension(["--recipe", write(**LONGCE)]).as_dict()
    assert OWN & stored.keys() == {"target_weights", "longce_short", "longce_stride", "longce_most"}
    assert (
        stored["longce_short"] == 256
        and stored["longce_stride"] == 128
        and stored["longce_most"] == 5.0
    )


def test_the_tail_is_a_quarter_of_the_window():
    recipe = extension(["--recipe", write(target_weights="exact")])
    assert recipe.weighting.tail(recipe.window) == 256
    assert (
        extension(
            ["--recipe", write(target_weights="exact", exact_tail="1k", window=4096)]
        ).weighting.tail(4096)
        == 1024
    )


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"exact_tail": 100}, "exact_tail", "target_weights = 'equal' does not read it"),
        (
            {"target_weights": "exact", "longce_most": 3.0},
            "longce_most",
            "remove it, or target_weights: longce",
        ),
        ({**LONGCE, "exact_extra": 2.0}, "exact_extra", "remove it, or target_weights: exact"),
        ({"target_weights": "exact", "exact_tail": 1024}, "exact_tail", "give 256 or less"),
        ({"target_weights": "longce"}, "longce_short", "longce_short: 256 and longce_stride: 64"),
        ({**LONGCE, "longce_stride": 768}, "longce_short", "every weight would be 1"),
        ({"target_weights": "exact", "method": "yarn"}, "target_weights", "nothing is trained"),
        (
            {"target_weights": "exact", "distill": True, "deepspeed": "zero2"},
            "target_weights",
            "distill weighs",
        ),
        (
            {"target_weights": "exact", "method": "longlora"},
            "target_weights",
            "attends within groups",
        ),
        (
            {**LONGCE, "torch_compile": True},
            "target_weights",
            "torch_compile does not take weights",
        ),
        (
            {**LONGCE, "position_options": {"random_shift": 9}},
            "target_weights",
            "positions are drawn at random",
        ),
        (
            {**LONGCE, "position_encoding": "randpe", "method": "full"},
            "target_weights",
            "positions are drawn",
        ),
        ({"target_weights": "exact", "exact_ratio": 1}, "exact_ratio", "give a number above 1"),
        ({"target_weights": "exakt"}, "target_weights", "equal, exact, longce"),
    ],
)
def test_what_cannot_work_is_refused(fields, field, words):
    found, message = problems_of("--recipe", write(**fields))
    assert words in str(found[field]), message


def test_weights_by_context_need_no_fixed_positions():
    """EXACT has no second forward whose draw could differ."""
    extension(["--recipe", write(target_weights="exact", position_options={"random_shift": 9})])


def test_every_launcher_takes_them(monkeypatch):
    for load, words in (
        (pretraining, ["--recipe", "tiny", "--target_weights", "exact"]),
        (
            chat,
            [
                "--recipe",
                "chat_tiny",
                "--target_weights",
                "longce",
                "--longce_short",
                "64",
                "--longce_stride",
                "32",
            ],
        ),
        (generated, ["--recipe", "addition_tiny", "--target_weights", "exact"]),
    ):
        assert load(words).weighting.target_weights == words[3]
