"""Every encoding under the engine: made in shards, trained in shards, and what ZeRO-1 makes of it whole."""

import json

import pytest

from tests.integration.conftest import asked, forked
from tests.integration.workers.encodings import ENCODINGS
from tests.models.helpers import WITHOUT_GRADIENT


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory) -> dict:
    """What two ranks made of every encoding that is asked for, by stage."""
    folder = tmp_path_factory.mktemp("encodings")
    worker = "tests/integration/workers/encodings.py"
    ended = forked(worker, "--folder", str(folder), "--only", *asked(request, "encoding"))
    assert ended.code == 0, ended.output[-4000:]
    return json.loads((folder / "outcomes.json").read_text())


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_sharded_encoding_is_the_whole_one(encoding, outcomes):
    """Same initial values, same losses to 1e-4, and every parameter moves, with recomputation and without."""
    whole, sharded = outcomes[encoding]["1"], outcomes[encoding]["3"]
    assert sharded["start"] == whole["start"]
    assert sharded["losses"] == pytest.approx(whole["losses"], abs=1e-4)
    assert whole["losses"][1] != whole["losses"][0]
    assert {
        name for name in whole["still"] + sharded["still"] if not name.endswith(WITHOUT_GRADIENT)
    } == set()
