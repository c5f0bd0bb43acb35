"""The generator is greedy whatever a checkpoint's own settings say, stops at an end, and batches without a trace."""

from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig

from tape_ds.scoring.generation import continue_prompts, ends_of
from tests.models.helpers import tiny_model

NEW = 10
PROMPTS = [[5, 9, 30, 11, 7, 44, 8, 21, 33], [17, 50], [40, 3, 12, 12, 60]]


@pytest.fixture(scope="module", params=["tape", "rope", "alibi", "rope dynamic"])
def model(request):
    torch.manual_seed(0)
    return tiny_model(encoding=request.param)


@torch.no_grad()
def by_full_passes(model, prompt, ends=()):
    """The definition: the most likely token of a full pass, again and again."""
    new = []
    while len(new) < NEW:
        token = model(torch.tensor([prompt + new]), use_cache=False).logits[0, -1].argmax().item()
        if token in ends:
            break
        new.append(token)
    return new


def greedy(model, prompts, **settings):
    return continue_prompts(model, prompts, **({"new_tokens": NEW, "ends": []} | settings))


def test_a_batch_gives_each_prompt_its_own(model):
    """With dynamic angles a decoded text is not that of full passes, so a prompt alone is the measure there."""
    alone = [greedy(model, [prompt])[0] for prompt in PROMPTS]
    assert greedy(model, PROMPTS) == alone
    with pytest.raises(ValueError, match="none may be empty"):
        greedy(model, [[]])
    if model.model.encoding.cache_exact:
        assert alone == [by_full_passes(model, prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("encoding", ["tape", "alibi"])
def test_pieces_change_nothing(encoding, monkeypatch):
    monkeypatch.setattr("tape_ds.scoring.generation.CHUNK", 4)
    model = tiny_model(encoding=encoding)
    assert greedy(model, PROMPTS) == [by_full_passes(model, prompt) for prompt in PROMPTS]


def test_an_end_stops_its_own_sequence():
    model = tiny_model()
    whole = greedy(model, PROMPTS)
    end = next(token for token in whole[0][2:] if token not in whole[0][:2])
    found = greedy(model, PROMPTS, ends=[end, 2])
    assert found == [by_full_passes(model, prompt, ends=(end, 2)) for prompt in PROMPTS]
    assert found[0] == whole[0][: whole[0].index(end)] and len(found[0]) >= 2


def test_a_checkpoint_s_own_settings_do_not_count():
    model = tiny_model()
    expected = greedy(model, PROMPTS)
    own = GenerationConfig(
        do_sample=True,
        temperature=5.0,
        top_k=7,
        repetition_penalty=3.0,
        num_beams=2,
        min_new_tokens=3,
        eos_token_id=2,
    )
    model.generation_config = own
    assert greedy(model, PROMPTS) == expected
    assert model.generation_config is own


def test_ends_are_the_tokenizer_s_and_the_checkpoint_s():
    model, tokenizer = tiny_model(), SimpleNamespace(eos_token_id=2)
    model.generation_config.eos_token_id = [7, 2]
    assert ends_of(model, tokenizer) == [2, 7]
    model.generation_config.eos_token_id = 9
    assert ends_of(model, tokenizer) == [2, 9]
    assert ends_of(model, SimpleNamespace(eos_token_id=None)) == [9]
