"""A ``config.json`` for each trait of the table."""

import copy

_UNNAMED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
_YARN = {**_UNNAMED, "beta_fast": 32, "beta_slow": 1}
_ONE = [1.0, 1.0]
_SCALED = {
    "unscaled": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": _YARN,
    "yarn_exact_ramp": {**_YARN, "truncate": False},
    "llama3": {**_UNNAMED, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": {**_UNNAMED, "rope_type": "longrope", "short_factor": _ONE, "long_factor": _ONE},
    "yarn_attention": {**_YARN, "attention_factor": 1.0},
    "yarn_attention_twice": {
        **_YARN,
        "attention_factor": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "yarn_other_attention": {**_YARN, "attn_factor": 0.8},
    "yarn_betas": {**_YARN, "beta_fast": 8, "beta_slow": 1},
    "yarn_betas_unnamed": _UNNAMED,
    "yarn_length_unnamed": {"rope_type": "yarn", "factor": 4.0},
    "yarn_beyond_factor": {**_YARN, "factor": 2.0},
    "rope_parameters_only": _YARN,
    "older_keys_only": _YARN,
}
TRAITS = tuple(_SCALED)


def config_with(trait, family="llama"):
    """A ``config.json`` in both spellings that has the trait, and no other that it can be without."""
    scaled = copy.deepcopy(_SCALED[trait])
    config = {"model_type": family, "max_position_embeddings": 1024}
    if trait != "older_keys_only":
        config["rope_parameters"] = {**scaled, "rope_theta": 5e5}
    if trait != "rope_parameters_only":
        config |= {
            "rope_theta": 5e5,
            "rope_scaling": None if trait == "unscaled" else copy.deepcopy(scaled),
        }
    return config
