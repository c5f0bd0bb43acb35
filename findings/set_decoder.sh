#!/bin/bash
# transformers 5.23.0: set_decoder of a causal LM (LlamaForCausalLM here) sets nothing, and says nothing.
#
# One would guess that after model.set_decoder(other), model.get_decoder() is other: the setter's docstring says that it
# mirrors the lookup of get_decoder. But the setter hands the decoder on to its base model, which has no part of the
# names that it looks for, is its own base model, and so returns without a word. Who moves the text model of a model with
# pictures into a causal LM in this way saves random weights. It works by model.model = other, or by load_state_dict.
#
# Output seen:
#   get_decoder() is the new one: False
#   weights are the new one's: False
# Exit code 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0
"$folder/venv/bin/pip" install -q transformers==5.23.0
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

config = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2
)
model = LlamaForCausalLM(config)
other = LlamaModel(config)
model.set_decoder(other)
is_other = model.get_decoder() is other
same_weights = torch.equal(model.model.layers[0].mlp.up_proj.weight, other.layers[0].mlp.up_proj.weight)
print("get_decoder() is the new one:", is_other)
print("weights are the new one's:", same_weights)
sys.exit(1 if is_other or same_weights else 0)
PYTHON
