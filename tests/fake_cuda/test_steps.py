"""Steps on a GPU that is not there: no operand on another device or of another dtype, and no wait that is not listed in
:mod:`tests.fake_cuda.waits`.

Every day a case of each kind; all encodings, backends, rows and ways to recompute with the mark ``slow``.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.fake_cuda import device
from tests.fake_cuda.cases import Case, Outcome
from tests.fake_cuda.waits import FOREIGN, allowed
from tests.models.helpers import ENCODINGS

Ask = Callable[[Case], Outcome]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Compute a case in the process that has the device."""
    if (reason := device.why_not()) is not None:
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.fake_cuda.device"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=device.environment(), cwd=device.ROOT, **pipes) as worker:

        def answer(case: Case) -> Outcome:
            worker.stdin.write(json.dumps(case._asdict()) + "\n")
            worker.stdin.flush()
            return Outcome(**json.loads(worker.stdout.readline()))

        yield answer
        worker.stdin.close()


def check(ask: Ask, case: Case) -> None:
    found = ask(case)
    assert not found.error, f"{case}: {found.error}"
    waits = {place for place in found.waits if not place.startswith(FOREIGN)}
    assert waits == allowed(case), f"{case}: {found.waits}"


@pytest.mark.parametrize(
    ("encoding", "rows"),
    [("rope", "dense"), ("tape", "packed"), ("alibi", "packed"), ("fox", "packed")],
)
def test_a_training_step_waits_for_the_loss_alone(ask, encoding, rows):
    case = Case("training", encoding, rows=rows, recompute=1)
    assert allowed(case) == {"tape_ds/kernels/linear_cross_entropy.py:blank_chunks"}
    check(ask, case)


DAILY = [
    *(
        Case("training", name, rows="packed")
        for name in ("t5", "fire", "bipe_rope", "randpe", "tape from alibi")
    ),
    Case("training", "alibi abacus", rows="packed"),
    Case("training", "cope", "sdpa", "packed"),
    Case("training", "tape", "triton", "packed", "selective"),
    Case("training", "rope", "sdpa", "packed"),
    Case("training", "tape", rows="padded"),
    Case("training", "xpos", rows="packed", dtype="float16"),
    Case("training", "tape", rows="packed", dtype="float32", autocast=True),
    Case("optimization", "tape", rows="packed"),
    Case("optimization", "rope", rows="padded"),
    Case("foreign", "gemma2", rows="packed"),
    Case("foreign", "gpt_oss", rows="packed"),
    Case("prompt", "tape", rows="padded"),
    *(Case("decoding", name) for name in ("tape", "alibi", "bipe_rope")),
    Case("decoding", "tape", rows="padded"),
]


@pytest.mark.parametrize("case", DAILY, ids=str)
def test_one_of_each_kind(ask, case):
    check(ask, case)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding(ask, encoding):
    usual = "sdpa" if encoding == "cope" else "auto"
    for backend in {usual, "sdpa"}:
        for rows in ("dense", "packed", "padded"):
            check(ask, Case("training", encoding, backend, rows))
        for recompute in (1, "selective"):
            check(ask, Case("training", encoding, backend, "packed", recompute))
    check(ask, Case("optimization", encoding, usual, "packed"))
    check(ask, Case("training", encoding, usual, "packed", 1, "float16"))
    check(ask, Case("training", encoding, usual, "packed", 1, "float32", autocast=True))
    for rows in ("dense", "padded"):
        check(ask, Case("prompt", encoding, usual, rows))
        check(ask, Case("decoding", encoding, usual, rows))


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["dense", "packed", "padded"])
@pytest.mark.parametrize(
    "name", ["llama", "qwen3", "mistral", "phi3", "olmo2", "gemma2", "gemma3_text", "gpt_oss"]
)
def test_classes_of_transformers(ask, name, rows):
    check(ask, Case("foreign", name, rows=rows))


@pytest.mark.parametrize(
    ("mistake", "words"),
    [("two devices", "on the same device"), ("two dtypes", "mm of torch.bfloat16, torch.float32")],
)
def test_operands_that_do_not_fit_are_an_error(ask, mistake, words):
    assert words in ask(Case("mistake", mistake)).error
