"""Sizes that are refused without torch are those that ``TapeConfig`` refuses, all problems at once."""

import pytest
from huggingface_hub.errors import StrictDataclassError

from tape_ds import TapeConfig
from tape_ds.errors import UserError
from tape_ds.models import sizes

FIELDS = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "changes, fields",
    [
        ({}, []),
        ({"initializer_range": 1}, []),
        ({"hidden_size": 30}, ["hidden_size"]),
        ({"hidden_size": 0}, ["hidden_size"]),
        ({"vocab_size": 61.0}, ["vocab_size"]),
        ({"num_hidden_layers": True}, ["num_hidden_layers"]),
        ({"num_key_value_heads": 3, "head_dim": 7}, ["head_dim", "num_key_value_heads"]),
        ({"num_key_value_heads": 8}, ["num_key_value_heads"]),
        ({"initializer_range": 1.5}, ["initializer_range"]),
        ({"state_dtype": "half", "attention_backend": "flash3"}, ["state_dtype", "attention_backend"]),
        ({"position_encoding": "tap"}, ["position_encoding"]),
        ({"position_options": {"rank": 0}}, ["position_options.rank"]),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, ["rope_parameters.factor"]),
    ],
)
def test_both_refuse_the_same(changes, fields):
    assert [problem.field for problem in sizes.problems(sizes.Fields(**FIELDS | changes))] == fields
    given = FIELDS | changes | {"initializer_range": float(changes.get("initializer_range", 0.02))}
    try:
        TapeConfig(**given)
    except (UserError, StrictDataclassError, TypeError):
        assert fields
    else:
        assert not fields
