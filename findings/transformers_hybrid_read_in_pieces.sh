#!/usr/bin/env bash
# transformers 5.23.0: hybrids of attention and state-space layers (Jamba, Bamba, Nemotron-H) that read a text in two
# pieces, with a cache between them, as chunked prefill and follow-up questions about one text do.
#
# One would guess: the logits of the second piece are those of the text read whole, to rounding; or an error.
#
# What happens: Nemotron-H's are. Jamba's scan of several tokens begins without the state that the cache holds of the
# first piece (a single new token gets it, so that ordinary generation is right). Bamba counts positions from 0 again
# in every call that names none, also of a single token, though it has the cache: with position_ids it is right.
#
# Output seen (29 November 2026; largest difference of a logit in the second piece, relative to the largest logit):
#   nemotron_h: two pieces 3e-07, with position_ids 3e-07
#   jamba:      two pieces 6e-02, with position_ids 6e-02
#   bamba:      two pieces 5e-01, with position_ids 3e-07
#
# Exits with 0 while this is so. Needs only pip and a CPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install --quiet torch==2.13.0 transformers==5.23.0
cat > compare.py <<'P'
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, logging

logging.set_verbosity_error()
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
         "num_hidden_layers": 2, "vocab_size": 97, "pad_token_id": 0, "initializer_range": 0.3, "use_mamba_kernels": True}
OWN = {
    "nemotron_h": {"layer_types": ["linear_attention", "full_attention"], "head_dim": 16, "mamba_num_heads": 8,
                   "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "chunk_size": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_dt_rank": 4},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16,
              "mamba_n_groups": 2, "mamba_chunk_size": 16},
}


def difference(model, ids, named):
    """Of the second of two pieces, from the text read whole."""
    whole = model(ids, use_cache=False).logits
    cache = DynamicCache(config=model.config)
    positions = torch.arange(ids.shape[1])[None]
    for piece in (slice(0, 20), slice(20, 40)):
        given = {"position_ids": positions[:, piece]} if named else {}
        logits = model(ids[:, piece], past_key_values=cache, use_cache=True, **given).logits
    return float((logits - whole[:, 20:]).abs().max() / whole.abs().max())


found = {}
for family, own in OWN.items():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES, **own)).eval()
    ids = torch.randint(3, 97, (1, 40))
    with torch.no_grad():
        found[family] = [difference(model, ids, named) for named in (False, True)]
    print(f"{family + ':':<11} two pieces {found[family][0]:.0e}, with position_ids {found[family][1]:.0e}")
right, wrong = 1e-5, 1e-4
as_seen = max(found["nemotron_h"]) < right and min(found["jamba"]) > wrong
as_seen = as_seen and found["bamba"][0] > wrong and found["bamba"][1] < right
sys.exit(0 if as_seen else 1)
P
env/bin/python compare.py
