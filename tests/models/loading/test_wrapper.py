"""A model of transformers with a decoder inside computes of text what the decoder computes alone, or is left out."""

import copy

import pytest
import torch
from huggingface_hub.errors import StrictDataclassClassValidationError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from tape_ds.models.loading import wrapper
from tests.models import tiny_decoders

# its forward asks on which device its pictures' part is, which here has no memory; SmolVLM is the same code
NOT_IN_PARTS = ("idefics3",)
CHANGES_LOGITS = {"final_logit_softcapping": 2.0, "logit_scale": 0.5, "logits_scaling": 4.0}
DAILY = ("gemma3", "cohere2_vision")


def _names():
    for name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        if wrapper.TEXT in CONFIG_MAPPING[name].sub_configs and name not in NOT_IN_PARTS:
            yield pytest.param(name, marks=() if name in DAILY else pytest.mark.slow)


def _built(name, changed):
    """A model whose pictures' part has no memory, and its configuration; None where defaults make none."""
    kind = CONFIG_MAPPING[name]
    try:
        whole = kind()
        decoder = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(whole.text_config), None)
        if decoder is None:
            return None
        family = whole.text_config.model_type
        known = {*type(whole.text_config).__dataclass_fields__}
        text = tiny_decoders.tiny_config(family)
        if changed:
            fields = {field: value for field, value in CHANGES_LOGITS.items() if field in known}
            if not fields:
                return None
            text = tiny_decoders.tiny_config(family, **fields)
        whole = kind(text_config=text.to_dict())
        whole.text_config = copy.deepcopy(text)
        with torch.device("meta"):
            model = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[kind](whole).eval()
    except (ImportError, ValueError, AttributeError, KeyError, TypeError):
        return None
    except StrictDataclassClassValidationError:
        return None
    return model, whole, decoder


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("name", list(_names()))
def test_text_is_computed_as_by_the_decoder_alone(name, changed):
    """``changed``: its decoder caps or multiplies logits, which some wrappers do not."""
    built = _built(name, changed)
    if built is None:
        pytest.skip("transformers makes none of its defaults here, or has no such decoder alone")
    model, whole, decoder = built
    text = wrapper.text_config(copy.deepcopy(whole))
    if text is None:
        return
    alone = decoder(text).eval()
    inner = alone.get_decoder()
    inside = model.get_decoder()
    inside.load_state_dict(inner.state_dict(), assign=True)
    for path, buffer in inner.named_buffers():
        module, _, attribute = path.rpartition(".")
        setattr(inside.get_submodule(module), attribute, buffer)
    model.get_output_embeddings().weight = alone.get_output_embeddings().weight
    ids = torch.randint(5, 90, (2, 17))
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, alone(ids).logits)
