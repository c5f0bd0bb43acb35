"""Loss by position of a model as it is, with its updates off, and with adapters on it."""

import pytest

from tape_ds.methods.prepare import prepare_model
from tape_ds.results import WITHOUT_UPDATES
from tape_ds.training.held_out import EvalDocument, score_variants
from tests.methods.test_methods import settings
from tests.models.helpers import tiny_model, tokens

VARIANTS = {"off": WITHOUT_UPDATES, "on": None}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 1.0,
    "original_max_position_embeddings": 32,
}


def scores(model, ids):
    found = score_variants(model, [EvalDocument("text", ids)], VARIANTS, 32)
    return {variant: found[variant]["text"].nll for variant in VARIANTS}


@pytest.mark.parametrize(
    "encoding, angles", [("tape abacus", {}), ("tape", {"rope_parameters": YARN})]
)
def test_adapters_that_add_nothing_change_no_score(encoding, angles):
    """Both variants need the encoding's own weights, which peft keeps elsewhere in the model."""
    model, ids = tiny_model("gqa", encoding, **angles), tokens(1, 64)
    expected = scores(model, ids)
    adapted = prepare_model("tape+lora", model, settings()).model
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            weight.data.zero_()
    assert scores(adapted, ids) == expected and expected["on"] != expected["off"]


def test_updates_off_is_scaled_to_the_text_as_the_model_is():
    """YaRN of factor 1 reaches the length of the text: with updates that do nothing the two are one."""
    model = tiny_model("gqa", "tape", rope_parameters=YARN)
    for name, weight in model.named_parameters():
        if name.endswith(("attend.weight", "expand.weight")):
            weight.data.zero_()
    found = scores(model, tokens(1, 64))
    assert found["on"] == pytest.approx(found["off"], abs=1e-6)
