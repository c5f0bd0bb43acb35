"""``python -m tools.visualise``: maps of positions and attention that hold what the models computed."""

import base64
import html
import io
import math
import re
import shutil

import numpy as np
import pytest
import torch
from matplotlib import colormaps, image

from evaluation import map_figures
from evaluation.pages.maps import Map, MapKind
from tape_ds import TapeForCausalLM, results
from tape_ds.scoring.inspection import inspect
from tests.export.conftest import base, run
from tests.model.helpers import tiny_model
from tests.tools.helpers import saved
from tools import visualise

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
    """Runs the command and gives its result, and the maps and tokens that its page was made of."""
    pages = []
    page = map_figures.page
    monkeypatch.setattr(map_figures, "page", lambda *given: pages.append(given) or page(*given))

    def run_(output, *arguments):
        assert visualise.main([*map(str, arguments), "--output", str(output)]) == 0
        kinds, tokens, *_ = pages[-1]
        return results.load(output / "visualise.json"), kinds, tokens

    return run_


def shown(page):
    """The pictures of a page by their words: PNG as [T, T, 4]."""
    found = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="([^"]+)"', page)
    return {words: image.imread(io.BytesIO(base64.b64decode(data))) for data, words in found}


def test_the_page_holds_what_two_models_computed(tmp_path, base, written):
    tape, rope = (folder_of(name, base, tmp_path) for name in ("tape", "rope"))
    output = tmp_path / "out"
    result, kinds, tokens = written(output, tape, "--against", f"plain={rope}", "--prompt", PROMPT)
    for name in ("positions", "attention", "difference"):
        assert (output / f"{name}.png").read_bytes().startswith(PNG)
    assert [kind.name for kind in kinds] == [
        *("positions: tape", "attention: tape", "positions: plain", "attention: plain"),
        "attention: tape minus plain",
    ]
    seen = {}
    model = TapeForCausalLM.from_pretrained(tape).eval()
    inspect(model, torch.tensor(IDS), [2], lambda view: seen.update(view=view))
    found = {(each.layer, each.head): each.values for each in kinds[1].maps}
    weights_HTT = seen["view"].weights_HTS
    assert np.allclose(found["layer 2", "head 3"], weights_HTT[2], atol=1e-6)
    assert np.allclose(found["layer 2", "mean"], weights_HTT.mean(dim=0), atol=1e-6)
    states = {(each.layer, each.head): each.values for each in kinds[0].maps}
    assert np.allclose(states["layer 2", "heads 3 to 4"], seen["view"].positions.matrix()[1], atol=1e-5)
    assert set(result.figures["attention_l1_between_models"]) == {"1", "2", "3"}
    assert tokens[:2] == ["w3", " w4"]
    drawn = shown((output / visualise.PAGE).read_text())
    assert len([words for words in drawn if "layer" in words]) == sum(len(kind.maps) for kind in kinds)
    attention = drawn["attention: tape, layer 2, head 3"]
    assert attention.shape == (20, 20, 4) and (attention[..., 3] == np.tri(20)).all()


def test_positions_that_are_the_same_everywhere_are_one_map(tmp_path, base, written):
    _, kinds, _ = written(tmp_path / "out", base, "--prompt", PROMPT)
    (only,) = kinds[0].maps
    assert (only.layer, only.head) == ("every layer", "all heads")


@pytest.mark.slow
def test_biases_are_shown_where_an_encoding_has_those(tmp_path, base, written):
    result, kinds, _ = written(tmp_path / "out", folder_of("alibi", base, tmp_path), "--prompt", PROMPT)
    assert result.figures["models"][0]["positions"] == kinds[0].unit == "score bias"


def test_an_encoding_without_positions_has_attention_alone(tmp_path, base, capsys, written):
    result, kinds, _ = written(tmp_path / "out", folder_of("nope", base, tmp_path), "--prompt", PROMPT)
    assert [kind.name for kind in kinds] == ["attention: nope"]
    assert not (tmp_path / "out" / "positions.png").exists()
    assert "nope: no map of positions: no layer turns" in capsys.readouterr().out
    assert result.figures["models"][0]["positions"].startswith("none: ")


def test_what_was_chosen_is_shown_and_no_more(tmp_path, base, written):
    (tmp_path / "text.txt").write_text(PROMPT)
    chosen = ["--text", tmp_path / "text.txt", "--tokens", "9", "--layers", "3", "1", "--heads", "4"]
    result, kinds, tokens = written(tmp_path / "out", base, *chosen)
    assert result.figures["tokens"] == len(tokens) == 9
    assert [(each.layer, each.head) for each in kinds[1].maps] == [
        (layer, head) for layer in ("layer 1", "layer 3") for head in ("mean", "head 4")
    ]


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
        (["--prompt", PROMPT * 400, "--tokens", "4k"], "--tokens"),
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
    assert {path.name for path in output.iterdir()} == {"attention.png", visualise.PAGE, "visualise.json"}


def test_a_model_that_is_not_finite_leaves_nothing_half_written(tmp_path, base, capsys):
    folder = folder_of("tape", base, tmp_path)
    model = TapeForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[0, 0] = math.nan
    model.save_pretrained(folder)
    assert visualise.main([str(folder), "--prompt", PROMPT, "--output", str(tmp_path / "out")]) == 2
    assert "not finite" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_page_says_which_layers_it_leaves_out(tmp_path, base, written):
    written(tmp_path / "some", base, "--prompt", PROMPT, "--layers", "2", "1", "2")
    assert "Looked at: layers 1, 2 of " in (tmp_path / "some" / visualise.PAGE).read_text()
    written(tmp_path / "all", base, "--prompt", PROMPT)
    assert "Looked at" not in (tmp_path / "all" / visualise.PAGE).read_text()


@pytest.mark.slow
def test_the_distance_of_two_models_is_not_rounded(tmp_path, base, written):
    """Weights are kept in fp32: in half of it a model and itself one bit apart would look alike."""
    one, other = (folder_of(name, base, tmp_path) for name in ("tape", "rope"))
    model = TapeForCausalLM.from_pretrained(one)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.mul_(1 + 1e-5)
    model.save_pretrained(other)
    shutil.copy(one / "config.json", other / "config.json")
    result, *_ = written(tmp_path / "out", one, "--against", other, "--prompt", PROMPT)
    assert 0 < result.figures["attention_l1_between_models"]["1"] < 1e-4


def test_a_file_is_no_folder_for_results_and_that_is_said_before_work(tmp_path, base, capsys):
    (tmp_path / "taken").write_text("mine")
    assert visualise.main([str(base), "--prompt", PROMPT, "--output", str(tmp_path / "taken")]) == 2
    assert " --output = " in capsys.readouterr().err


HOSTILE = ["</script><script>alert(1)</script>", "<!--", "&lt;", '"', "\n", "\u202e", "\ud7ff"]


def hostile_page():
    """A page of tokens and names that would be code if anything took them for that."""
    values_TT = np.tri(len(HOSTILE)) / np.arange(1, len(HOSTILE) + 1)[:, None]
    kinds = [
        MapKind(f"attention: {HOSTILE[0]}", "weight", [Map("layer 1", "mean", values_TT)], rooted=True),
        MapKind("difference", "weight", [Map("layer 1", "mean", -values_TT)], signed=True, rooted=True),
    ]
    return map_figures.page(kinds, HOSTILE, HOSTILE[0], HOSTILE[0])


def test_tokens_and_names_are_never_code():
    page = hostile_page()
    assert "<script" not in page and "<!--" not in page
    tokens = re.findall(r'<span title="\d+">(.*?)</span>', page, re.S)
    assert [html.unescape(token) for token in tokens] == HOSTILE
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page)[1]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_a_picture_has_the_colour_of_each_number():
    """Roots of 0, 0.25 and 1 lie at the beginning, the middle and the end of the colours."""
    one = Map("layer 1", "mean", np.array([[1.0, 9.0], [0.25, 0.0]]))
    kind = MapKind("attention", "", [one], rooted=True)
    (pixels,) = shown(f'<img src="{map_figures.picture(one, kind)}" alt="it">').values()
    colours = colormaps[map_figures.EVEN]
    for place, share in {(0, 0): 1.0, (1, 0): 0.5, (1, 1): 0.0}.items():
        assert pixels[place] == pytest.approx(colours(share), abs=0.02)
    assert pixels[0, 1, 3] == 0, "the key is behind the query"


@pytest.mark.parametrize(("values", "limits"), [([0.0, 0.5], (0.0, 0.5)), ([0.25, 0.25], (0.0, 0.25))])
def test_colours_of_rooted_numbers_begin_at_zero(values, limits):
    one = Map("layer 1", "mean", np.array([[values[0], 9.0], [values[1], values[0]]]))
    assert MapKind("attention", "", [one], rooted=True).limits() == limits


def test_colours_of_differences_are_even_around_zero():
    one = Map("layer 1", "mean", np.array([[0.0, 9.0], [-0.5, 0.25]]))
    low, high = MapKind("difference", "", [one], signed=True).limits()
    assert -low == high == pytest.approx(0.5, abs=0.01)
