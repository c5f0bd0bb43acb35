"""``python -m tools.experiments.visualise``: maps of positions and attention that hold what the models computed."""

import math
import shutil

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib.image import imread

from tape_ds import TapeForCausalLM, results
from tape_ds.scoring.inspection import inspect
from tests.export.conftest import base, run
from tests.models.helpers import tiny_model
from tests.tools.helpers import saved
from tools.experiments import visualise
from tools.experiments.visualise import MapKind

__all__ = ["base", "run"]
PNG = b"\x89PNG\r\n\x1a\n"
IDS = [*range(3, 10), *range(30, 43)]
PROMPT = " ".join(f"w{each}" for each in IDS)
"""Twenty words, none that begins like a special one (w1, w2)."""


def folder_of(name, base, tmp_path):
    """A model folder of an encoding, with the tokenizer of ``base``."""
    return saved(tiny_model(encoding=name), base, tmp_path / name)


@pytest.fixture
def written(monkeypatch):
    """Runs the command and gives its result, and the maps that it drew by the names of their files."""
    drawn = {}
    draw = visualise.draw
    monkeypatch.setattr(visualise, "draw", lambda kind, path: drawn.update({path.name: kind}) or draw(kind, path))

    def run_(output, *arguments):
        drawn.clear()
        assert visualise.main([*map(str, arguments), "--output", str(output)]) == 0
        assert {path.name for path in output.iterdir()} == {*drawn, "visualise.json"}
        return results.load(output / "visualise.json"), dict(drawn)

    return run_


def test_pictures_show_what_two_models_computed(tmp_path, base, written):
    tape, rope = (folder_of(name, base, tmp_path) for name in ("tape", "rope"))
    output = tmp_path / "out"
    arguments = ["--against", f"plain={rope}", "--prompt", PROMPT, "--heads", 1, 3]
    result, drawn = written(output, tape, *arguments)
    assert {file: kind.name for file, kind in drawn.items()} == {
        "positions.png": "positions: tape",
        "attention.png": "attention: tape",
        "difference.png": "attention: tape minus plain",
    }
    assert all((output / file).read_bytes().startswith(PNG) for file in drawn)
    seen = {}
    model = TapeForCausalLM.from_pretrained(tape).eval()
    inspect(model, torch.tensor(IDS), [2], lambda view: seen.update(view=view))
    attention, weights_HTT = drawn["attention.png"].maps, seen["view"].weights_HTS
    assert np.allclose(attention["layer 2", "head 3"], weights_HTT[2], atol=1e-6)
    assert np.allclose(attention["layer 2", "mean"], weights_HTT.mean(dim=0), atol=1e-6)
    states = drawn["positions.png"].maps
    assert np.allclose(states["layer 2", "heads 3 to 4"], seen["view"].positions.matrix()[1], atol=1e-5)
    assert set(result.figures["attention_l1_between_models"]) == {"1", "2", "3"}


def test_positions_that_all_heads_share_are_one_map_a_layer(tmp_path, base, written):
    _, drawn = written(tmp_path / "out", base, "--prompt", PROMPT)
    assert list(drawn["positions.png"].maps) == [(f"layer {number}", "all heads") for number in (1, 2, 3)]


@pytest.mark.slow
def test_biases_are_shown_where_an_encoding_has_those(tmp_path, base, written):
    result, drawn = written(tmp_path / "out", folder_of("alibi", base, tmp_path), "--prompt", PROMPT)
    assert result.figures["models"][0]["positions"] == drawn["positions.png"].unit == "score bias"


def test_an_encoding_without_positions_has_attention_alone(tmp_path, base, capsys, written):
    result, drawn = written(tmp_path / "out", folder_of("nope", base, tmp_path), "--prompt", PROMPT)
    assert [kind.name for kind in drawn.values()] == ["attention: nope"]
    assert "nope: no map of positions: no layer rotates" in capsys.readouterr().out
    assert result.figures["models"][0]["positions"].startswith("none: ")


def test_all_layers_and_heads_that_were_chosen_are_drawn(tmp_path, base, capsys, written):
    (tmp_path / "text.txt").write_text(PROMPT)
    chosen = ["--text", tmp_path / "text.txt", "--tokens", "9", "--layers", "3", "1", "3", "--heads", "4"]
    result, drawn = written(tmp_path / "out", base, *chosen)
    assert result.figures["tokens"] == 9
    panels = [("layer 1", "mean"), ("layer 1", "head 4"), ("layer 3", "mean"), ("layer 3", "head 4")]
    assert list(drawn["attention.png"].maps) == panels
    printed = capsys.readouterr().out
    assert "layers shown: 1, 3 of 3" in printed and "heads shown: 4 of 4" in printed


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--prompt", "w3"], "--prompt"),
        (["--text", "nowhere.txt"], "--text"),
        (["--prompt", PROMPT, "--heads", "5"], "--heads"),
        (["--prompt", "w3 \udcff w4"], "--prompt"),
        (["--prompt", PROMPT, "--device", "meta"], "--device"),
        (["--prompt", PROMPT, "--heads", "0"], "--heads"),
        (["--prompt", PROMPT, "--layers", "9"], "--layers"),
        (["--prompt", f"{PROMPT} " * 60, "--tokens", "4k"], "--tokens"),
        (["--prompt", PROMPT, "--against", "OTHER"], "--against"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(tmp_path, base, capsys, arguments, field):
    other = saved(tiny_model(heads="mqa"), base, tmp_path / "other")
    given = [str(other) if each == "OTHER" else each for each in arguments]
    assert visualise.main([str(base), *given, "--output", str(tmp_path / "out")]) == 2
    assert f" {field} = " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_pictures_of_an_earlier_model_do_not_stay(tmp_path, base, written):
    """They would be taken for this one's."""
    tape, nope = (folder_of(name, base, tmp_path) for name in ("tape", "nope"))
    output = tmp_path / "out"
    written(output, base, "--against", tape, "--prompt", PROMPT)
    assert {"positions.png", "difference.png"} <= {path.name for path in output.iterdir()}
    written(output, nope, "--prompt", PROMPT)


def test_a_model_that_is_not_finite_leaves_nothing_half_written(tmp_path, base, capsys):
    folder = folder_of("tape", base, tmp_path)
    model = TapeForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[0, 0] = math.nan
    model.save_pretrained(folder)
    assert visualise.main([str(folder), "--prompt", PROMPT, "--output", str(tmp_path / "out")]) == 2
    assert "not finite" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_distance_of_two_models_is_not_rounded(tmp_path, base, written):
    """Weights are kept in fp32: in half of it a model and itself one bit apart would look alike."""
    one, other = (folder_of(name, base, tmp_path) for name in ("tape", "rope"))
    model = TapeForCausalLM.from_pretrained(one)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.mul_(1 + 1e-5)
    model.save_pretrained(other)
    shutil.copy(one / "config.json", other / "config.json")
    result, _ = written(tmp_path / "out", one, "--against", other, "--prompt", PROMPT)
    assert 0 < result.figures["attention_l1_between_models"]["1"] < 1e-4


def test_a_file_is_no_folder_for_results_and_that_is_said_before_work(tmp_path, base, capsys):
    (tmp_path / "taken").write_text("mine")
    assert visualise.main([str(base), "--prompt", PROMPT, "--output", str(tmp_path / "taken")]) == 2
    assert " --output = " in capsys.readouterr().err


def test_a_picture_has_the_colour_of_each_number(tmp_path):
    """Roots of 0, 0.25 and 1 have the first, the middle and the last colour; nothing is where the key comes later."""
    kind = MapKind("attention", "", {("$x^", "$y"): np.array([[1.0, 9.0], [0.25, 0.0]])}, rooted=True)
    visualise.draw(kind, tmp_path / "map.png")
    pixels = imread(tmp_path / "map.png")[..., :3]

    def area(colour):
        return int((abs(pixels - colour).max(axis=-1) < 0.01).sum())

    first, middle, last = (area(colormaps[visualise.EVEN](share)[:3]) for share in (0.0, 0.5, 1.0))
    assert min(first, middle, last) > 3000 and max(first, middle, last) < 1.2 * min(first, middle, last)


@pytest.mark.parametrize(("values", "limits"), [([0.0, 0.5], (0.0, 0.5)), ([0.25, 0.25], (0.0, 0.25))])
def test_colours_of_rooted_numbers_begin_at_zero(values, limits):
    one = {("layer 1", "mean"): np.array([[values[0], 9.0], [values[1], values[0]]])}
    assert MapKind("attention", "", one, rooted=True).limits() == limits


def test_colours_of_differences_are_even_around_zero():
    one = {("layer 1", "mean"): np.array([[0.0, 9.0], [-0.5, 0.25]])}
    low, high = MapKind("difference", "", one, signed=True).limits()
    assert -low == high == pytest.approx(0.5, abs=0.01)
