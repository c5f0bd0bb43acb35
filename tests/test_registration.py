"""``tape_ds.register()`` lets transformers' auto classes load our model types, and ``import tape_ds`` stays light."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOADED = """
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
import tape_ds
tape_ds.register()
sizes = {"num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 9}
config = AutoConfig.for_model("tape", **sizes)
assert type(config) is tape_ds.TapeConfig
assert type(AutoModel.from_config(config)) is tape_ds.TapeModel
assert type(AutoModelForCausalLM.from_config(config)) is tape_ds.TapeForCausalLM
config = AutoConfig.for_model("tape_gptj", n_embd=16, n_head=2, n_layer=1, rotary_dim=4, vocab_size=9)
assert type(config) is tape_ds.ScaledGPTJConfig
assert type(AutoModel.from_config(config)) is tape_ds.ScaledGPTJModel
assert type(AutoModelForCausalLM.from_config(config)) is tape_ds.ScaledGPTJForCausalLM
"""


def test_auto_classes_know_our_types_and_the_package_imports_no_library():
    first = "import tape_ds, sys; assert not {'torch', 'transformers'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", first + LOADED], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
