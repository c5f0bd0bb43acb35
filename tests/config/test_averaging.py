"""``average_last``: refused where a run does not have, or keep, as many checkpoints."""

import pytest

from tests.config.helpers import problems_of, write
from tests.config.loads import extension

SAVES = {"max_steps": 6, "save_steps": 2}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({**SAVES, "average_last": 4}, "a run of 6 steps has 3 with save_steps = 2"),
        ({**SAVES, "average_last": 4}, "save_steps: 1, or average_last: null"),
        ({"max_steps": 4, "average_last": 2}, "a run of 4 steps has 1 with save_steps = 500"),
        ({"max_steps": 2, "average_last": 3}, "has 1 with save_steps = 500"),
        (
            {**SAVES, "average_last": 3, "save_total_limit": 2},
            "save_total_limit: 3, or average_last: null",
        ),
        ({**SAVES, "average_last": 3, "save_strategy": "no"}, "nothing is saved"),
        ({"average_last": 3, "method": "yarn"}, "nothing is trained"),
        ({**SAVES, "average_last": 1}, "give 2 or more, or null"),
    ],
)
def test_too_few_checkpoints_are_refused(fields, words):
    found, message = problems_of("--recipe", write(**fields))
    assert words in str(found["average_last"]), message


@pytest.mark.parametrize("every", [2, 3, 0.4])
def test_the_last_step_counts(every):
    """Three in six steps: 2, 4, 6; 3 and 6 alone are two; a share of 0.4 is every third step."""
    count = 3 if every == 2 else 2
    recipe = extension(
        ["--recipe", write(max_steps=6, save_steps=every, average_last=count, save_total_limit=3)]
    )
    assert recipe.averaging.average_last == count
    found, _ = problems_of("--recipe", write(max_steps=6, save_steps=every, average_last=count + 1))
    assert "average_last" in found
