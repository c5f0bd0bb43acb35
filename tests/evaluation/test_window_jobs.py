"""How windows are dealt into jobs, and the figures of their results."""

import numpy as np

from tape_ds.scoring.window_jobs import ScoredText, Scoring, figures, plan

BLOCKS = Scoring("blocks", 256, None, False, False, None)


def text(name, size, stream=False):
    return ScoredText(name, np.arange(size, dtype=np.int32), stream)


def test_golden_figures():
    """Worked by hand: blocks of 4 of documents of 9, 4 and 3 tokens; 9 targets with 18 nats, 6 of them foreseen."""
    texts = {"s": [text("a", 9), text("b", 4), text("c", 3)]}
    jobs = plan(texts, [4], BLOCKS)
    (key,) = jobs
    assert not jobs[key].spans
    found = figures(texts, [4], BLOCKS, jobs, {key: [[5.0, 1], [7.0, 2], [6.0, 3]]})
    (entry,) = found["perplexity"]
    assert (entry["nll"], entry["accuracy"], entry["targets"], entry["windows"]) == (2.0, 6 / 9, 9, 3)
    assert entry["documents"] == 2 and entry["standard_error"] == 0.0
    assert entry["left_out"] == {"documents": 1, "names": ["c"], "tokens": 4}
    assert entry["shorter"] == {"documents": 0, "names": []} and found["documents"] == {"s": 3}
