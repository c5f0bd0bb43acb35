"""The estimate against sums done by hand."""

import pytest

from tape_ds import TapeConfig
from tape_ds.training import memory


def estimate(stage, checkpointing=True, ranks=4):
    """Llama2-7B with 17 M trained position parameters."""
    return memory.estimate(
        TapeConfig(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=11008),
        parameters=6_755_000_000,
        trained=17_000_000,
        tokens=8192,
        ranks=ranks,
        stage=stage,
        element_bytes=2,
        checkpointing=checkpointing,
    )


def test_zero_shards_one_thing_after_another():
    assert estimate(0).weights == estimate(2).weights == 13.51e9 and estimate(3).weights == 13.51e9 / 4
    assert estimate(1).gradients == 34e6 and estimate(2).gradients == 34e6 / 4
    assert estimate(0).optimizer == 204e6 and estimate(1).optimizer == 204e6 / 4


def test_a_checkpointed_block_keeps_its_hidden_and_position_state():
    """Twice a Llama's 67 MB a layer at 8,192 tokens, as large again for the state; times 32 layers."""
    blocks = 32 * 8192 * (4096 + 4096) * 2
    one_inside = estimate(3).activations - blocks
    assert one_inside > 0
    assert estimate(3, checkpointing=False).activations == pytest.approx(blocks + 32 * one_inside)


def test_only_tape_carries_a_state():
    """A rope model under LoRA was charged for position states that it does not have."""
    sizes = {"parameters": 1, "trained": 1, "tokens": 1, "ranks": 1, "stage": 0, "element_bytes": 1}
    columns = [
        memory.estimate(TapeConfig(position_encoding=name), **sizes, checkpointing=True).activations
        for name in ("rope", "tape")
    ]
    assert columns[1] - columns[0] == (32 + 6) * 4096


def test_total_is_the_sum():
    each = estimate(3)
    assert each.total == each.weights + each.gradients + each.optimizer + each.activations + each.logits


def test_logits_are_those_of_one_chunk():
    """1,024 tokens of 32,000 entries: in bf16, their gradient too, and fp32 logarithms."""
    assert estimate(3).logits == 1024 * 32_000 * (2 + 2 + 4)
