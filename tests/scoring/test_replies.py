"""Greedy replies: those of transformers' ``generate``, whatever the decoder, and the same after a shared text."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
)
from transformers import Lfm2Config as LfmConfig

from tape_ds.scoring.replies import (
    replies_about,
    replies_sharing,
    reply,
    shared_beginning,
    why_unshared,
)
from tests.models.helpers import VOCABULARY, tiny_model, tokens

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS = {
    "llama yarn": LlamaConfig(**SIZES, rope_parameters=YARN),
    "gemma2": Gemma2Config(
        **SIZES, sliding_window=16, attn_logit_softcapping=2.0, final_logit_softcapping=5.0
    ),
    "gemma3": Gemma3TextConfig(**SIZES, sliding_window=16),
    "mistral window": MistralConfig(**SIZES, sliding_window=16),
    "gpt_neox": GPTNeoXConfig(**SIZES),
}
NEW_TOKENS = 12


def model_of(name):
    if name in ("tape", "alibi"):
        return tiny_model(encoding=name)
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation="eager").eval()


def generated(model, ids, ends=()):
    options = {
        "max_new_tokens": NEW_TOKENS,
        "do_sample": False,
        "eos_token_id": list(ends) or None,
        "pad_token_id": 0,
    }
    model.generation_config.eos_token_id = None
    ids_1T = torch.tensor([ids])
    return model.generate(ids_1T, attention_mask=torch.ones_like(ids_1T), **options)[
        0, len(ids) :
    ].tolist()


def text(seed, length=60):
    torch.manual_seed(seed)
    return tokens(1, length)[0].tolist()


@pytest.mark.parametrize("name", [*CONFIGS, "tape"])
def test_a_reply_is_what_generate_gives(name):
    model = model_of(name)
    ids = text(2)
    expected = generated(model, ids)
    assert reply(model, ids, new_tokens=NEW_TOKENS, chunk=25) == expected
    ends = [expected[4]]
    cut = generated(model, ids, ends)
    assert reply(model, ids, new_tokens=NEW_TOKENS, ends=ends, chunk=25) == cut
    assert len(cut) == expected.index(ends[0]) + 1


@pytest.mark.parametrize("name", [*CONFIGS, "tape", "alibi"])
def test_a_shared_text_gives_each_question_the_reply_that_it_gets_alone(name):
    """Caches of sliding windows cannot be cut back: all questions about a text ended with a traceback for Gemma 2."""
    model = model_of(name)
    shared = text(3)
    questions = [text(seed, length=7 + seed) for seed in (4, 5, 6)]
    found = list(replies_about(model, shared, questions, new_tokens=NEW_TOKENS, chunk=25))
    assert found == [
        reply(model, shared + question, new_tokens=NEW_TOKENS, chunk=25) for question in questions
    ]


@pytest.mark.parametrize("name", ["llama yarn", "gemma2", "tape"])
def test_prompts_with_one_beginning_get_the_replies_that_they_get_alone(name):
    """One prompt is the beginning of another, and one is there twice."""
    model = model_of(name)
    shared = text(3)
    prompts = [shared + text(seed, length=6 + seed) for seed in (4, 5)]
    prompts += [prompts[0][:-2], prompts[1]]
    assert why_unshared(model.config) is None and shared_beginning(prompts) == len(shared)
    found = replies_sharing(model, prompts, new_tokens=NEW_TOKENS, chunk=25)
    assert found == [reply(model, ids, new_tokens=NEW_TOKENS, chunk=25) for ids in prompts]


def test_prompts_without_a_common_beginning_are_read_one_by_one():
    model = model_of("llama yarn")
    prompts = [[5, *text(1, 20)], [6, *text(1, 20)]]
    assert shared_beginning(prompts) == 0
    found = replies_sharing(model, prompts, new_tokens=3)
    assert found == [reply(model, ids, new_tokens=3) for ids in prompts]


def test_a_shared_beginning_leaves_each_prompt_a_token():
    assert shared_beginning([[1, 2, 3], [1, 2, 4]]) == 2
    assert shared_beginning([[1, 2, 3], [1, 2]]) == 1
    assert shared_beginning([[1, 2, 3], [1, 2, 3]]) == 2


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            LlamaConfig(
                **SIZES, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
            ),
            "dynamic",
        ),
        (
            Phi3Config(
                **SIZES,
                original_max_position_embeddings=32,
                rope_parameters={
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0] * 4,
                    "long_factor": [2.0] * 4,
                    "original_max_position_embeddings": 32,
                },
            ),
            "longrope",
        ),
        (LfmConfig(**SIZES, layer_types=["conv", "full_attention"] * 2), "LinearAttentionLayer"),
    ],
)
def test_models_that_read_a_text_otherwise_with_its_question_are_named(config, reason):
    assert reason in why_unshared(config)


def test_a_reply_without_a_cache_is_the_same():
    model = model_of("gemma2")
    assert reply(model, text(7), new_tokens=5, use_cache=False) == reply(
        model, text(7), new_tokens=5
    )
