"""The pictures: real PNG files, with labels and units, and nothing hidden that is not finite."""

import math

import pytest
from matplotlib.figure import Figure

from tape_ds.scoring.span_losses import SpanLosses
from tape_ds.training import plots

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def drawn(monkeypatch):
    """Keeps the figures that were saved, so that a test can ask what is on them."""
    figures = []
    save = Figure.savefig

    def keep(self, *arguments, **options):
        figures.append(self)
        return save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def legend(figure):
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def spans(*losses, width=2048, last=2048):
    starts = tuple(index * width for index in range(len(losses)))
    return SpanLosses(width, starts, losses, (width - 1, *[width] * (len(losses) - 2), last)[: len(losses)])


def test_loss_curve_draws_the_loss_and_its_mean(tmp_path, drawn):
    history = [{"step": step, "loss": 3 - step / 50, "epoch": 0.1} for step in range(1, 51)]
    history += [{"train_runtime": 3.0, "step": 50}]
    path = plots.loss_curve(history, tmp_path / "loss.png")
    assert path.read_bytes().startswith(PNG)
    assert legend(drawn[0]) == ["training", "training, mean of 8 entries"]
    training, mean = drawn[0].axes[0].lines
    assert len(training.get_xdata()) == 50
    assert mean.get_xdata()[0] == 8 and mean.get_ydata()[0] == pytest.approx(3 - 4.5 / 50)


def test_compared_losses_are_drawn_apart_from_their_median(tmp_path, drawn):
    """Three good models and one that fails past the native length, which must not flatten the others' half."""
    variants = {
        "untouched": spans(2.4, 1.9, 5.0, 6.0),
        "a": spans(2.3, 1.8, 1.7, 1.6),
        "b": spans(2.4, 1.9, 1.8, math.nan),
        "c": spans(2.5, 2.0, 1.9, 1.8),
    }
    path = plots.loss_by_position(variants, tmp_path / "p.png", native_length=4096)
    assert path.read_bytes().startswith(PNG)
    upper, lower = drawn[0].axes
    assert list(upper.lines[1].get_ydata()) == [2.3, 1.8, 1.7, 1.6]
    assert lower.lines[1].get_ydata() == pytest.approx([-0.1, -0.1, -0.15, -0.2])
    assert legend(drawn[0]) == ["untouched", "a", "b (1 spans not finite)", "c", "native length 4,096"]
    plots.loss_by_position(variants, tmp_path / "p.png", native_length=4096, reference="a")
    assert drawn[1].axes[1].lines[2].get_ydata()[:3] == pytest.approx([0.1, 0.1, 0.1])


def test_position_updates_are_drawn_by_layer(tmp_path, drawn):
    """A line for each measurement; a layer that reads no update yet leaves a gap."""
    lists = {"deviation": [0.0, 0.1, 0.2], "along_own": [None, 0.9, 0.8], "first_token": [0.3, 0.2, 0.1]}
    plots.position_updates([(4, lists), (8, lists)], tmp_path / "p.png")
    deviation, own, _ = drawn[0].axes
    assert [list(line.get_ydata()) for line in deviation.lines] == [[0.0, 0.1, 0.2]] * 2
    assert math.isnan(own.lines[0].get_ydata()[0])
