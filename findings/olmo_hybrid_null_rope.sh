#!/bin/bash
# transformers 5.23.0: "rope_parameters": null gives Olmo Hybrid positions in attention instead of none.
#
# OlmoHybridConfig has rope_parameters: None as its default, its attention skips RoPE where the model has no rotary
# module, and next to that module its code says: "Released ckpt don't use any ROPE and have it set to `None`". One would
# guess that null is attention without positions.
# What happens: the configuration fills null with a base of 10,000, as for any other family, and the model rotates, without
# a word. No positions are {"rope_theta": null}, which the published model has. Seen:
#   rope_parameters null: read as {'rope_theta': 10000.0, 'rope_type': 'default'}, positions in attention: True
#   rope_parameters {"rope_theta": null}: read as {'rope_theta': None, 'rope_type': 'default'}, positions in attention: False
#   rope_parameters {"rope_theta": 10000.0}: read as {'rope_theta': 10000.0, 'rope_type': 'default'}, positions in attention: True
#   null computes what a base of 10000 computes: True; from no positions it differs by 1.9
# Exit code 1 if that changes.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q torch==2.13.0
"$here/venv/bin/pip" install -q transformers==5.23.0
cd "$here"
HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 "$here/venv/bin/python" - <<'PYTHON'
import json
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {
    "model_type": "olmo_hybrid", "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "initializer_range": 0.1, "pad_token_id": 0, "eos_token_id": 1,
}
ids = torch.arange(3, 63)[None]
logits = {}
rotates = {}
for name, rope in {"null": None, "null base": {"rope_theta": None}, "base 10000": {"rope_theta": 10000.0}}.items():
    with open("config.json", "w") as file:
        json.dump({**SIZES, "rope_parameters": rope}, file)
    config = AutoConfig.from_pretrained(".")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    rotates[name] = model.model.rotary_emb is not None
    with torch.no_grad():
        logits[name] = model(ids, use_cache=False).logits
    print(f"rope_parameters {json.dumps(rope)}: read as {config.rope_parameters}, positions in attention: {rotates[name]}")
as_rope = torch.equal(logits["null"], logits["base 10000"])
differs = float((logits["null"] - logits["null base"]).abs().max())
print(f"null computes what a base of 10000 computes: {as_rope}; from no positions it differs by {differs:.2g}")
if rotates != {"null": True, "null base": False, "base 10000": True} or not as_rope or differs < 1e-3:
    sys.exit("changed")
PYTHON
