"""Figures of a run as Markdown tables."""

from tape_ds import results
from tape_ds.export import card_results


def stored(**figures):
    return results.Result(command=[], started="2026-01-01").finish(figures)


def test_documents_are_merged_by_their_targets():
    """(2.0 * 63 + 4.0 * 21) / 84 = 2.5."""

    def losses(nll, count):
        return {"span": 64, "starts": [0], "nll": [nll], "counts": [count], "mean": nll}

    text = card_results.text(stored(loss_by_position={"x": {"a": losses(2.0, 63), "b": losses(4.0, 21)}}))
    assert "| x | 2.500 | 2.500 |" in text and "`a`, `b`" in text


def test_documents_are_named_without_the_folders_of_the_machine():
    """A second document of a name is called by its data spec, which may hold a path."""
    losses = {"span": 64, "starts": [0], "nll": [2.0], "counts": [63], "mean": 2.0}
    names = {"a.py": losses, "a.py (text:/home/jo/own/a.py)": losses}
    text = card_results.text(stored(loss_by_position={"x": names}))
    assert "on `a.py`, `a.py (text:a.py)`, held out" in text and "jo" not in text


def test_a_mapping_of_rows_is_a_table():
    """What a pretraining run stores of perplexity."""
    text = card_results.text(
        stored(perplexity={"256": {"length": 256, "nll": 5.25}, "512": {"length": 512, "nll": 5.5}})
    )
    assert "| length | nll |" in text and "| 512 | 5.5 |" in text
    assert card_results.measured(stored(perplexity={"256": {"length": 256}})) == ["perplexity by length"]


def test_answers_before_and_after():
    """What a fine-tuning run stores."""
    rows = [{"when": when, "nll": nll, "targets": 40} for when, nll in (("before", 5.5), ("after", 1.25))]
    text = card_results.text(stored(answer_loss=rows))
    assert "Loss on held-out answers" in text and "| after | 1.25 | 40 |" in text


def test_nested_entries_are_left_out():
    rows = [{"variant": name, "length": 4096, "replies": [{"key": 54321}], "correct": 1} for name in ("start", "made")]
    text = card_results.text(stored(passkey=rows))
    assert "| variant | length | correct |" in text and "54321" not in text
    assert "| start | 4,096 | 1 |\n| made | 4,096 | 1 |" in text


def test_nothing_scored_is_said():
    assert card_results.text(stored(loss_by_position={}, passkey=[])) == "None: the run scored nothing."
    assert card_results.measured(stored(passkey=[])) == card_results.measured(None) == []
