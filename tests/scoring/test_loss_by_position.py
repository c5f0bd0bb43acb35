"""Loss by position against the whole logits, computed at once."""

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tape_ds.scoring.losses import score_spans as score
from tape_ds.scoring.span_losses import SpanLosses

VOCABULARY = 101


def tiny_llama(**changes):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        **changes,
    )
    return LlamaForCausalLM(config)


def document(length, seed=0):
    return torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def direct(model, ids_1T, span):
    """Means and counts per span from the full logits."""
    was_training = model.training
    logits_TV = model.eval()(ids_1T).logits[0].double()
    model.train(was_training)
    losses = nn.functional.cross_entropy(logits_TV[:-1], ids_1T[0, 1:], reduction="none")
    spans = {}
    for target, loss in enumerate(losses.tolist(), 1):
        spans.setdefault(target // span, []).append(loss)
    return (
        [sum(part) / len(part) for part in spans.values()],
        [len(part) for part in spans.values()],
        losses.mean(),
    )


@pytest.mark.parametrize(
    ("length", "span", "chunk"),
    [(128, 32, 16), (131, 32, 7), (129, 32, 128), (50, 64, 1), (2, 2, 5)],
)
def test_equals_the_full_logits(length, span, chunk):
    model, ids_1T = tiny_llama(), document(length)
    found = score(model, ids_1T, span, chunk)
    nll, counts, mean = direct(model, ids_1T, span)
    assert found.starts == tuple(range(0, length, span))
    assert list(found.counts) == counts
    assert sum(found.counts) == length - 1
    torch.testing.assert_close(torch.tensor(found.nll), torch.tensor(nll), atol=1e-5, rtol=0)
    assert found.mean == pytest.approx(float(mean), abs=1e-5)


def test_logits_are_bounded_and_no_grad_is_kept():
    model = tiny_llama()
    shapes, graphs = [], []

    def note(module, inputs, output):
        shapes.append(output.shape)
        graphs.append(output.grad_fn)

    model.lm_head.register_forward_hook(note)
    score(model, document(100), 32, chunk=16)
    assert max(shape.numel() for shape in shapes) == 16 * VOCABULARY
    assert graphs == [None] * (7 + 2), (
        "and two of one token, by which the head is found to give the logits"
    )


def test_modes_are_restored_one_by_one():
    model = tiny_llama(attention_dropout=0.5)
    model.train()
    model.model.layers[1].eval()
    before = [module.training for module in model.modules()]
    ids_1T = document(40)
    assert score(model, ids_1T, 8) == score(model, ids_1T, 8), "dropout must be off"
    assert [module.training for module in model.modules()] == before
    assert any(before)
    assert not all(before)


def test_peft_model_is_scored_with_its_adapter():
    model, ids_1T = tiny_llama(), document(70)
    plain = score(model, ids_1T, 16)
    adapted = get_peft_model(
        model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    found = score(adapted, ids_1T, 16, chunk=9)
    assert found.nll == pytest.approx(direct(adapted, ids_1T, 16)[0], abs=1e-5)
    assert found.nll != pytest.approx(plain.nll, abs=1e-3)
    wrapper = nn.Module()
    wrapper.module = adapted
    assert score(wrapper, ids_1T, 16, chunk=9) == found


def test_refusals():
    model = tiny_llama()
    prompts = get_peft_model(
        tiny_llama(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    )
    for scored, ids, wrong in (
        (model, document(9).repeat(2, 1), "shape"),
        (model, document(9) + VOCABULARY, "vocabulary of 101"),
        (model.model, document(9), "not a causal LM"),
        (prompts, document(9), "learned prompts"),
    ):
        with pytest.raises(ValueError, match=wrong):
            score(scored, ids, 4)
    with pytest.raises(ValueError, match="span must be 2 or more"):
        score(model, document(9), 1)
    model.config.auto_map, model.config.final_logit_softcapping = (
        {"AutoModelForCausalLM": "code.Model"},
        30.0,
    )
    with pytest.raises(ValueError, match="its own code changes the logits of its head"):
        score(model, document(9), 4)


@pytest.mark.parametrize(
    "family, changes",
    [
        ("gemma2", {"final_logit_softcapping": 1.5, "head_dim": 16}),
        ("granite", {"logits_scaling": 3.0}),
        ("cohere", {"logit_scale": 0.2}),
    ],
)
def test_a_family_that_changes_its_head_s_output_is_scored_as_it_computes(family, changes):
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    sizes |= {
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "pad_token_id": 0,
        "initializer_range": 0.5,
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(family, **sizes, **changes)
    ).eval()
    ids = document(20)
    with torch.no_grad():
        expected = nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:])
    assert score(model, ids, 20, chunk=7).mean == pytest.approx(float(expected), abs=1e-5)


def test_golden_merge_and_means():
    """Worked by hand; the shorter document has no third span and a short second one."""
    long = SpanLosses(4, (0, 4, 8), (3.0, 2.0, 1.0), (3, 4, 4))
    short = SpanLosses(4, (0, 4), (6.0, 4.0), (3, 1))
    both = SpanLosses.merge([short, long])
    assert both == SpanLosses(4, (0, 4, 8), (4.5, 2.4, 1.0), (6, 5, 4))
    assert both.mean == pytest.approx((27 + 12 + 4) / 15)
    assert long.mean_between(4) == 1.5
    assert long.mean_between(0, 8) == pytest.approx(17 / 7)
    assert long.mean_between(8, 9) == 1.0
    with pytest.raises(ValueError, match="no span starts"):
        long.mean_between(9)
    with pytest.raises(ValueError, match="share one span"):
        SpanLosses.merge([long, SpanLosses(8, (0,), (1.0,), (7,))])
    with pytest.raises(ValueError, match="share one span"):
        SpanLosses.merge([])
