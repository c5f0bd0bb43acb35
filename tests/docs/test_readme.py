"""The README is short, with commands that exist and figures of stored results."""

import json
import shlex
from statistics import fmean

import pytest

from tape_ds import encodings as positions
from tape_ds.methods import METHODS
from tests.docs import commands, pages

README = (pages.ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = pages.ROOT / "docs" / "results"
WORDS = 600
"""As ``wc -w`` counts them, commands included."""


def test_every_command_is_ours_or_known():
    """test_code_blocks.py parses ours."""
    blocks = [block for block in pages.blocks(pages.ROOT / "README.md") if block.info == ""]
    lines = "".join(block.text for block in blocks).replace("\\\n", " ").splitlines()
    commands_of_others = [
        line for line in lines if not commands.starts_ours(shlex.split(line, comments=True))
    ]
    assert len(lines) > 10
    assert {line.split()[0] for line in commands_of_others} <= {"git", "cd", "source"}


def stored(name):
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def test_it_is_short():
    assert len(README.split()) <= WORDS


def test_faults_are_those_stored():
    campaigns = stored("faults/faults.json")["figures"]["campaigns"]
    # nothing is broken there
    faults = [each for name, each in campaigns.items() if name not in ("fuzz", "launches")]
    tries, survived = (sum(each[key] for each in faults) for key in ("tries", "survived"))
    assert (
        f"[{survived} of {tries} injected faults](docs/results/faults.md) were survived"
        in " ".join(README.split())
    )


def test_it_counts_the_encodings_and_methods_that_there_are():
    encodings, methods = len(positions.available()), len(METHODS)
    text = " ".join(README.split())
    assert f"[{encodings} encodings](docs/encodings.md)" in text
    assert f"[{methods} methods](docs/extending.md#methods)" in text


def encodings():
    found = stored("compare_encodings/encodings.json")["figures"]["comparison"]["runs"]
    perplexity = {
        arm: fmean(
            each["figures"]["stdlib_perplexity_2048"] for each in found if each["arm"] == arm
        )
        for arm in ("tape", "rope", "alibi", "fox")
    }
    names = {"tape": "with TAPE", "rope": "with RoPE", "alibi": "with ALiBi", "fox": "with FoX"}
    return [f"{perplexity[encoding]:.1f} {said}" for encoding, said in names.items()]


def demo():
    figures = stored("extend_smollm2_16k/demo.json")["figures"]
    texts = {name: texts["typing.py"] for name, texts in figures["loss_by_position"].items()}
    last = {name: each["nll"][-1] for name, each in texts.items()}
    found = {
        each["variant"]: each["correct"] for each in figures["passkey"] if each["length"] > 8192
    }
    start, trained, off = (
        "yarn x2, untrained",
        "tape+lora, trained",
        "tape+lora, trained, updates off",
    )
    return [
        f"a loss of {last['untouched']:.2f}, with YaRN {last[start]:.2f}, trained {last[trained]:.2f}",
        f"from {texts[start]['mean']:.3f} to {texts[trained]['mean']:.3f}",
        f"With TAPE's updates off it is {texts[off]['mean']:.3f}, so they do not help here",
        {
            (0, 1, 1): "is found with YaRN and by the trained model, not by the untouched one",
        }[found["untouched"], found[start], found[trained]],
    ]


def updates():
    claims = stored("extend_smollm2_16k/updates_off.json")["figures"]["comparison"]["claims"]
    (tape,) = (each for each in claims if each["arm"] == "tape")
    low, high = tape["interval"]
    return [
        f"its updates [add {tape['found']['mean']:.3f}](docs/",
        f"(95 %: {low:.3f} to {high:.3f};",
    ]


@pytest.mark.parametrize("figures", [encodings, demo, updates], ids=lambda each: each.__name__)
def test_figures_are_those_stored(figures):
    text = " ".join(README.split())
    assert [said for said in figures() if said not in text] == []
