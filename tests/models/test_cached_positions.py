"""Integers kept in a cache as digits in columns of the keys: exact in every dtype."""

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tape_ds.attention import backends
from tape_ds.models.cached_positions import LARGEST, attach, columns, recall
from tests.models.helpers import ENCODINGS, tiny_model, tokens

POSITIONS = [0, 1, 255, 256, 257, 65_535, 65_536, 131_071, 1_000_003, LARGEST]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("rows", [1, 2])
def test_what_is_attached_is_recalled(dtype, rows):
    """bf16 itself cannot tell 257 from 256; three digits below 256 are exact in any dtype."""
    keys = torch.randn(2, 3, 5, 8).to(dtype)
    positions = torch.tensor(POSITIONS).view(1, 5, 2).repeat(rows, 1, 1)
    if rows == 2:
        positions[1] = positions[1].flip(0)
    wide = attach(keys, positions)
    assert wide.dtype == dtype and wide.shape == (2, 3, 5, 8 + columns(2))
    assert torch.equal(wide[..., :8], keys)
    cache = DynamicCache()
    cache.update(wide, keys, 0)
    recalled = recall(cache, 5, 2, 8)
    assert torch.equal(recalled, positions.expand(2, -1, -1))
    assert torch.equal(recall(cache, 3, 2, 8), positions.expand(2, -1, -1)[:, :3])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_rows_begin_where_fused_kernels_ask(encoding, monkeypatch):
    """At multiples of 16 bytes, in a prompt, in its continuation and in a step of decoding: on an H200, torch found no
    kernel for keys in rows of 140."""
    model, ids, seen = tiny_model(encoding=encoding, head_dim=16).bfloat16(), tokens(1, 60), []
    plain = backends.run

    def recorded(name, call):
        seen.extend([call.q, call.k, *call.values])
        return plain(name, call)

    monkeypatch.setattr(backends, "run", recorded)
    past = DynamicCache()
    with torch.no_grad():
        for piece in ids.split([30, 29, 1], dim=1):
            model(piece, past_key_values=past)
    strides = {
        stride
        for x in seen
        for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True)
        if size > 1
    }
    assert strides and [stride for stride in strides if stride * 2 % 16] == []


def test_a_position_too_large_is_refused():
    """It would come back as another one."""
    keys = torch.randn(1, 1, 1, 4)
    with pytest.raises(ValueError, match=f"up to {LARGEST} for this encoding, not {LARGEST + 1}"):
        attach(keys, torch.tensor([[[LARGEST + 1]]]))
    model, past = tiny_model(encoding="alibi"), DynamicCache()
    with pytest.raises(ValueError, match="a cache keeps positions up to"):
        model(tokens(1, 2), position_ids=torch.tensor([[3, LARGEST + 1]]), past_key_values=past)


class Rounding(DynamicLayer):
    """A cache layer that keeps its keys elsewhere, in another form, as quantised ones do."""

    def update(self, key_states, value_states, *arguments, **options):
        keys, values = super().update(key_states, value_states)
        self.elsewhere, self.keys = keys, torch.tensor([])
        return keys, values

    def get_seq_length(self):
        return self.elsewhere.shape[2] if self.is_initialized else 0


@pytest.mark.parametrize("encoding", ["alibi", "bipe_rope", "rope dynamic"])
def test_a_cache_that_changes_keys_is_refused(encoding):
    """Rounded digits would be other positions, and the logits wrong without a sign."""
    model, ids = tiny_model(encoding=encoding), tokens(1, 6)
    past = DynamicCache()
    past.layers, past.layer_class_to_replicate = [], Rounding
    model(ids[:, :5], past_key_values=past)
    with pytest.raises(ValueError, match="Rounding does not keep keys as they are"):
        model(ids[:, 5:], past_key_values=past)


@pytest.mark.gpu
@pytest.mark.parametrize("encoding", ["alibi", "bipe_rope", "rope dynamic"])
def test_positions_come_back_from_an_offloaded_cache(encoding):
    """The first layer's keys return on a stream of their own: read too early, they are whatever was there before."""
    model, ids = tiny_model(encoding=encoding).cuda(), tokens(2, 9).cuda()
    settings = {"max_new_tokens": 40, "min_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(ids, **settings)
    assert torch.equal(model.generate(ids, cache_implementation="offloaded", **settings), plain)
