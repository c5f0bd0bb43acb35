"""A plugin of pytest for the campaign: the tests that show most first, and a line for each failure at once.

BENCHMARK_ROWS=rows.jsonl python -m pytest -p benchmarks.kernel_tests tests/kernels
"""

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import table

# Forward and backward of each kernel in short, then what is easily wrong: tails, documents, padding full of NaN
FIRST = (
    r"test_tape_attention.*::test_(output_and_gradients|documents|half_precision|tensor_cores)\b",
    r"test_position_mix.*::test_(triton|large_on_a_gpu)\b",
    r"test_rotate.*::test_(triton|large_on_a_gpu)\b",
    r"test_decode_attention.*::test_(output|every_head_size|tensor_cores)\b",
    r"test_tape_attention.*::test_(padding|keys_that|blocks_of|strided|a_state)",
    r"test_position_mix.*::test_triton_",
)
EACH = 6  # cases of one test before the next has its turn


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen: Counter[str] = Counter()
    places = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        seen[name] += 1
        place = next((at for at, each in enumerate(FIRST) if re.search(each, name)), len(FIRST))
        places[item] = (seen[name] > EACH, place)
    items.sort(key=places.__getitem__)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    rows = os.environ.get("BENCHMARK_ROWS")
    if rows and (report.failed or (report.when == "call" and report.duration > 5)):
        line = {"test": report.nodeid, "when": report.when, "outcome": report.outcome, "seconds": report.duration}
        table.append(line | {"why": report.longreprtext[-2000:]}, Path(rows))
