"""A seeded part of every campaign, through the functions that ``make faults`` uses for all of them."""

import pytest

from tests.faults.campaigns import ALL

SEED = 0
TENTH = [(name, number) for name, campaign in ALL.items() for number in campaign.sample(SEED)]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "number"), TENTH, ids=[f"{name}-{number}" for name, number in TENTH]
)
def test_a_fault_is_survived(name, number, workspace):
    outcome = ALL[name].attempt(number, SEED, workspace)
    assert outcome.survived, f"{outcome.what}\n{outcome.detail}\nagain: {outcome.again}"
