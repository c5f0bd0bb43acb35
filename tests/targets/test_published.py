"""Sizes of published models."""

import pytest

from tape_ds.errors import UserError
from tape_ds.targets import published


def test_published_models_have_their_base_frequency():
    """A plan passed theta = 2e5 for a Llama 3, which the run refused."""
    for name, theta in {
        "meta-llama/Meta-Llama-3-8B": 5e5,
        "smollm2": 1e5,
        "meta-llama/Llama-2-7b-hf": 1e4,
    }.items():
        assert published.configuration(name).rope_parameters["rope_theta"] == theta
    with pytest.raises(UserError, match="model"):
        published.configuration("owner/unknown")
