"""What two ranks trained under ZeRO-3, by every method: saved whole, loaded and merged, it computes the same."""

import pytest
import torch

from tape_ds import TapeConfig, methods
from tape_ds.checkpoint import merging
from tape_ds.checkpoint.trained import load_trained
from tape_ds.models import convert
from tests.integration.conftest import asked, forked
from tests.integration.workers.methods import TIED, name_of, probe


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory):
    """One launch for the whole module."""
    folder = tmp_path_factory.mktemp("methods")
    names = asked(request, "method", "tying")
    ended = forked(
        "tests/integration/workers/methods.py", "--folder", str(folder), "--only", *names
    )
    assert ended.code == 0, ended.output[-4000:]
    return folder


@torch.no_grad()
def logits(model):
    return model.eval()(probe()).logits


@pytest.mark.parametrize("tying", TIED)
@pytest.mark.parametrize("method", methods.trained())
def test_merged_computes_what_two_ranks_trained(folder, method, tying):
    """Largest logits are about 6: fp32 rounding over two layers, and the order of an engine's sums."""
    trained = folder / name_of(method, tying)
    at_the_end = torch.load(trained / "logits.pt")
    untrained = convert.load(folder / tying, TapeConfig.from_pretrained(trained))
    assert not torch.allclose(logits(untrained), at_the_end, atol=1e-2), (
        "three steps leave their mark"
    )
    torch.testing.assert_close(logits(load_trained(trained)), at_the_end, atol=2e-5, rtol=0)
    torch.testing.assert_close(logits(merging.merge(trained)), at_the_end, atol=2e-5, rtol=0)
