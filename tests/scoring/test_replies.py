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
)

from tape_ds.scoring.replies import replies_about, reply
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
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
CONFIGS = {
    "llama yarn": LlamaConfig(**SIZES, rope_parameters=YARN),
    "gemma2": Gemma2Config(**SIZES, sliding_window=16, attn_logit_softcapping=2.0, final_logit_softcapping=5.0),
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
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": list(ends) or None, "pad_token_id": 0}
    model.generation_config.eos_token_id = None
    ids_1T = torch.tensor([ids])
    return model.generate(ids_1T, attention_mask=torch.ones_like(ids_1T), **options)[0, len(ids) :].tolist()


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
    assert found == [reply(model, shared + question, new_tokens=NEW_TOKENS, chunk=25) for question in questions]


def test_a_reply_without_a_cache_is_the_same():
    model = model_of("gemma2")
    assert reply(model, text(7), new_tokens=5, use_cache=False) == reply(model, text(7), new_tokens=5)
