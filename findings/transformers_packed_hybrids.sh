#!/bin/bash
# transformers 5.23.0: documents that position_ids separate in attention share the state of a hybrid's other layers.
#
# DataCollatorWithFlattening packs texts into one row with position_ids that begin again at each. One would guess: a model
# of transformers that keeps the texts apart in its attention by these ids, as a Llama does, keeps them apart altogether,
# or says that it cannot. With seq_idx it does say so ("can't keep packed sequences apart without `causal_conv1d`").
# What happens with position_ids, which the collator gives by default: attention begins again at each text, and recurrent
# layers and short convolutions go on, so the second text is computed with the first one's state. Nothing is said but that
# the fallback without kernels "is correct but much slower". Seen, without those packages:
#   llama: the second text differs by 0.0e+00 of the largest logit
#   qwen3_next: the second text differs by 9.2e-01 of the largest logit
#   qwen3_5_text: the second text differs by 6.8e-01 of the largest logit
#   bamba: the second text differs by 9.0e-01 of the largest logit
#   falcon_h1: the second text differs by 7.9e-02 of the largest logit
#   lfm2: the second text differs by 5.0e-01 of the largest logit
# Exit code 1 if that changes.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q torch==2.13.0
"$here/venv/bin/pip" install -q transformers==5.23.0
cd "$here"
HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 "$here/venv/bin/python" - <<'PYTHON'
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DataCollatorWithFlattening

SIZES = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.1, "pad_token_id": 0,
}
STATE = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
MIXED = {"layer_types": ["linear_attention", "full_attention"]}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_chunk_size": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
FAMILIES = {
    "llama": {},
    "qwen3_next": STATE | MIXED | EXPERTS,
    "qwen3_5_text": STATE | MIXED,
    "bamba": MAMBA | {"attn_layer_indices": [1]},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 128},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
}

first = list(range(3, 43))
second = list(range(50, 90))
packed = DataCollatorWithFlattening()([{"input_ids": first}, {"input_ids": second}])
assert packed["position_ids"].flatten().tolist() == 2 * list(range(40)) and "attention_mask" not in packed
wrong = []
for family, fields in FAMILIES.items():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES, **fields)).eval()
    with torch.no_grad():
        alone = model(torch.tensor([second]), use_cache=False).logits[0]
        both = model(packed["input_ids"], position_ids=packed["position_ids"], use_cache=False).logits[0, 40:]
    differs = float((both - alone).abs().max() / alone.abs().max())
    print(f"{family}: the second text differs by {differs:.1e} of the largest logit")
    if (differs > 1e-4) != (family != "llama"):
        wrong.append(family)
if wrong:
    sys.exit(f"changed: {', '.join(wrong)}")
PYTHON
