"""A prompt is read once for all of its answers, and these are what they would be if it were read for each."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import GenerationConfig, MistralConfig, MistralForCausalLM

from tape_ds.serving.generation import continue_prompt
from tape_ds.serving.prompt_scores import score_prompt
from tape_ds.serving.read_prompt import ReadPrompt
from tape_ds.serving.served import Served
from tape_ds.serving.settings import AnswerSettings
from tests.models.helpers import tiny_model
from tests.serving.conftest import VOCABULARY, spelling_llama
from tests.serving.tokenizers_of_kinds import spelling

IDS = torch.randint(3, 60, (24,), generator=torch.Generator().manual_seed(3)).tolist()
ASKED = {
    "greedy": AnswerSettings(temperature=0.0, top_p=1.0, max_tokens=5, likeliest=2),
    "drawn": AnswerSettings(temperature=1.0, top_p=0.9, max_tokens=5, seed=5),
    "penalties": AnswerSettings(
        temperature=0.8,
        top_p=1.0,
        max_tokens=5,
        seed=9,
        likeliest=0,
        repetition_penalty=1.3,
        presence_penalty=1.0,
        frequency_penalty=0.5,
    ),
    "one token": AnswerSettings(temperature=1.0, top_p=1.0, max_tokens=1, seed=2, likeliest=1),
}


def windowed():
    """Its layers keep the last 8 tokens: a cache of theirs cannot be cut back."""
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = MistralConfig(
        **sizes,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        sliding_window=8,
        initializer_range=0.3,
    )
    return MistralForCausalLM(config)


def without_a_common_cache():
    model = windowed()
    model._supports_default_dynamic_cache = lambda: False
    return model


MODELS = {
    "llama": spelling_llama,
    "windowed": windowed,
    "tape": tiny_model,
    "other cache": without_a_common_cache,
}


@pytest.fixture(scope="module", params=MODELS)
def served(request):
    torch.manual_seed(1)
    model = MODELS[request.param]().eval()
    model.generation_config = GenerationConfig()
    return Served(model, spelling(), request.param, 128)


def answers(prompt, settings, count):
    """Draw some answers, each with the next seed; return the tokens of each."""
    drawn = []
    for number in range(count):
        answer = []
        drawn.append(answer)
        own = settings if settings.seed is None else replace(settings, seed=settings.seed + number)
        continue_prompt(prompt, own, partial(_take, answer), lambda: None)
    return drawn


def _take(answer, token):
    """Keep a token; say whether four are enough."""
    answer.append(token)
    return len(answer) == 4


@pytest.mark.parametrize(
    ("name", "is_echoed"),
    [
        ("greedy", True),
        ("drawn", False),
        ("drawn", True),
        ("penalties", False),
        ("one token", True),
    ],
)
def test_answers_to_a_prompt_that_was_read_once_are_the_same(served, name, is_echoed):
    settings = ASKED[name]
    expected = []
    for number in range(3):
        own = settings if settings.seed is None else replace(settings, seed=settings.seed + number)
        expected += answers(ReadPrompt(served, IDS, 1), own, 1)

    read = []
    hook = served.model.get_input_embeddings().register_forward_hook(
        lambda *call: read.append(call[1][0].numel())
    )
    prompt = ReadPrompt(served, IDS, 3)
    if is_echoed:
        score_prompt(prompt, 2, lambda: None, with_cache=settings.max_tokens > 1)
    found = answers(prompt, settings, 3)
    hook.remove()

    for one, other in zip(found, expected, strict=True):
        assert [each.token for each in one] == [each.token for each in other]
        for each, same in zip(one, other, strict=True):
            assert each.logprob == pytest.approx(same.logprob, abs=1e-4)
            assert [token for token, _ in each.likeliest] == [token for token, _ in same.likeliest]
    if name == "drawn":
        assert found[0] != found[1]
    if served.name != "other cache":
        assert read.count(len(IDS)) == 1 and max(read) == len(IDS)
