#!/bin/bash
# transformers 5.23.0, peft 0.21.2: merged weights that are saved into the adapter's folder get the adapter a second time.
#
# One would guess: `merge_and_unload().save_pretrained(FOLDER)` writes a whole model, and `from_pretrained(FOLDER)` loads
# it, also where FOLDER is the one that the adapter had been saved in.
# What happens: `from_pretrained` finds the old adapter_config.json in FOLDER and puts the adapter onto the weights that it
# was merged into, without a word. The logits are another model's. Seen:
#     merged weights in a folder of their own: logits differ by 0 at most
#     the same weights in the adapter's folder: by 1.88, of 2.95
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q torch==2.13.0
"$here/venv/bin/pip" install -q transformers==5.23.0 peft==0.21.2
cd "$here"
HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 "$here/venv/bin/python" - <<'PYTHON'
import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
base = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.1))
targets = ["q_proj", "v_proj"]
adapted = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", target_modules=targets, init_lora_weights=False))
adapted.save_pretrained("adapter")
merged = adapted.merge_and_unload().eval()
merged.save_pretrained("alone")
merged.save_pretrained("adapter")

ids = torch.arange(50)[None]
with torch.no_grad():
    expected = merged(ids).logits
    alone = (AutoModelForCausalLM.from_pretrained("alone").eval()(ids).logits - expected).abs().max().item()
    beside = (AutoModelForCausalLM.from_pretrained("adapter").eval()(ids).logits - expected).abs().max().item()
print(f"merged weights in a folder of their own: logits differ by {alone:.3g} at most")
print(f"the same weights in the adapter's folder: by {beside:.3g}, of {expected.abs().max():.3g}")
if alone > 1e-5:
    sys.exit("changed: the merged weights alone are not the merged model")
if beside < 1e-2:
    sys.exit("changed: the adapter is no longer put on a second time")
PYTHON
