"""What a model's generation_config says is the default of requests, or is named as not done."""

import pytest
import torch
from transformers import GenerationConfig

from tape_ds.serving.settings import AnswerSettings, Defaults, of_model


def test_a_config_that_says_nothing_leaves_openais_defaults():
    for config in (
        GenerationConfig(),
        GenerationConfig(eos_token_id=[1, 2], pad_token_id=0, max_length=99),
    ):
        assert of_model(config) == (Defaults(), []) and Defaults().temperature == 1
        assert Defaults().changed == {}


def test_what_it_says_is_the_default():
    said = {
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
        "repetition_penalty": 1.05,
        "max_new_tokens": 99,
    }
    found, problems = of_model(GenerationConfig(do_sample=True, eos_token_id=2, **said))
    assert found == Defaults(**said) and problems == [] and found.changed == said


@pytest.mark.parametrize(
    "said", [{"num_beams": 4}, {"no_repeat_ngram_size": 3}, {"suppress_tokens": [5]}]
)
def test_what_is_not_done_is_named(said):
    (name,) = said
    _, (problem,) = of_model(GenerationConfig(**said))
    assert (
        problem.field == f"generation_config.json: {name}" and "--defaults openai" in problem.remedy
    )


def test_what_asks_for_nothing_is_taken():
    neutral = GenerationConfig(
        num_beams=1, no_repeat_ngram_size=0, length_penalty=1.0, early_stopping=False
    )
    assert of_model(neutral) == (Defaults(), [])


def test_the_order_of_generate():
    """The processors of a request give the distribution that transformers' own settings give."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = AnswerSettings(0.7, 0.8, 1, top_k=20, min_p=0.02, repetition_penalty=1.3)
    same = GenerationConfig(
        do_sample=True,
        temperature=0.7,
        top_p=0.8,
        top_k=20,
        min_p=0.02,
        repetition_penalty=1.3,
        eos_token_id=1,
    )
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes))
    ids = torch.tensor([[3, 4, 3]])
    plain = {
        "return_dict_in_generate": True,
        "output_scores": True,
        "max_new_tokens": 1,
        "pad_token_id": 0,
    }
    theirs = model.generate(ids, generation_config=same, **plain).scores[0]
    logits = model(ids).logits[:, -1].float()
    mine = settings.processors(3)(ids, logits)
    assert torch.equal(mine.isinf(), theirs.isinf()) and torch.allclose(mine, theirs, atol=1e-6)
