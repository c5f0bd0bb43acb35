"""The planner against the tensors of real runs: two ranks, DeepSpeed's engine, every live byte counted.

A must: within 6 % at the peak of a step, whatever the stage, length, policy, encoding, and what is trained; and what
stays between steps to 1 %.
"""

import json

import pytest

from tape_ds.planning import memory
from tests.integration.conftest import forked
from tests.planning.cases import CASES, QUICK

WITHIN = 0.06
MODULE = "tests/planning/workers/tensor_bytes.py"


def run(folder, cases):
    output = folder / "bytes.json"
    ended = forked(MODULE, "--output", str(output), "--cases", *[case.name for case in cases])
    assert ended.code == 0, ended.output[-4000:]
    return json.loads(output.read_text())


@pytest.fixture(scope="module")
def few(request, tmp_path_factory):
    """What is asked for of the quick ones."""
    asked = [
        item.callspec.params["case"]
        for item in request.session.items
        if item.path == request.node.path
    ]
    return run(tmp_path_factory.mktemp("few"), [case for case in QUICK if case in asked])


@pytest.fixture(scope="module")
def rest(tmp_path_factory):
    """A job for all others, and one for those in pieces: an engine keeps their groups while its process lives."""
    others = [case for case in CASES if case not in QUICK]
    whole, pieces = ([case for case in others if (case.tensor > 1) == cut] for cut in (False, True))
    return run(tmp_path_factory.mktemp("rest"), whole) | run(
        tmp_path_factory.mktemp("pieces"), pieces
    )


def between_steps(asked):
    """What a job holds when nothing is going on: weights, masters, moments, and ZeRO-3's own buffers."""
    first = memory.estimate(asked, reserve=False).moments[0]
    found = first.weights + first.optimizer
    if asked.layout.zero == 3:
        found += first.buckets + asked.trained_parameters * asked.element / asked.layout.shards()
    return found


def compare(case, counted):
    predicted = memory.estimate(case.job(), reserve=False).peak.total
    assert predicted == pytest.approx(counted[case.name]["peak"], rel=WITHIN)
    assert between_steps(case.job()) == pytest.approx(counted[case.name]["idle"], rel=0.01)


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_bytes_of_a_step(case, few):
    compare(case, few)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in CASES if case not in QUICK], ids=lambda case: case.name
)
def test_bytes_of_more_steps(case, rest):
    compare(case, rest)
