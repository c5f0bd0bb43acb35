#!/usr/bin/env bash
# lmdeploy 0.18.0: the ramp of YaRN in TurboMind, the engine that LMDeploy takes by itself for a Llama, Qwen2 or Qwen3.
#
# One would guess: of a folder with YaRN from 32,768 to 131,072 tokens (factor 4), TurboMind computes the frequencies that
# transformers computes: those that turn more than 32 times in original_max_position_embeddings stay, those that turn
# less than once are divided by 4, and a ramp joins them.
#
# What happens: its reader of config.json finds the length before scaling, and hands its C++ code the length after it
# (copy_rope_config gets a third argument, and passes over the field of the same name that parse_rope_param has filled
# in). C++ knows one length, from which it computes the ramp: "32 turns in 131,072 tokens". So 23 of 64 frequencies are
# other ones, by up to a factor of 2.24, and the model computes other log-probabilities for short and for long texts,
# without a word. LMDeploy's other engine (--backend pytorch) takes the length before scaling. Sources of 0.13 hand
# that one to C++ too; it is so since 0.14.
#
# The GPU is not needed: LMDeploy's own two functions run here, and the names of the fields of C++ are read from its
# library; the ramp below is YaRN's, as in transformers and in src/turbomind/models/attention_weight.cc (read in 0.16).
#
# Output seen (28 November 2026):
#   read from config.json: max_position_embeddings 32768
#   given to C++: max_position_embeddings 131072
#   fields of C++: ['max_position_embeddings', 'yarn_attention_factor', 'yarn_beta_fast', 'yarn_beta_slow']
#   the ramp, meant: [23, 40], computed: [30, 47]
#   frequencies that differ by more than 1 %: 23 of 64, by a factor of 2.24 at most
#
# Exits with 0 while this is so. Needs only pip and a CPU.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check numpy==2.4.6
venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-compile lmdeploy==0.18.0
cat > try.py <<'PYTHON'
import ast
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

package = next(Path("venv").glob("lib/python3*/site-packages/lmdeploy/turbomind"))
# functions and constants alone: the module imports the library for GPUs
tree = ast.parse((package / "models" / "utils.py").read_text())
wanted = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.Assign))]
lmdeploy = {"math": math, "SimpleNamespace": SimpleNamespace}
future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
exec(compile(ast.fix_missing_locations(ast.Module([future, *wanted], [])), "utils.py", "exec"), lmdeploy)

BEFORE = 32768
config = SimpleNamespace(
    max_position_embeddings=4 * BEFORE,
    rope_parameters={
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": BEFORE,
    },
)
given = SimpleNamespace()
read, length = lmdeploy["parse_rope_param"](config, 128)
lmdeploy["copy_rope_config"](given, read, length)
library = next(package.glob("_turbomind*.so")).read_bytes()
fields = sorted({each.decode() for each in re.findall(rb"yarn_[a-z_]+|(?<![a-z_])max_position_embeddings", library)})
print(f"read from config.json: max_position_embeddings {read.max_position_embeddings}")
print(f"given to C++: max_position_embeddings {given.max_position_embeddings}")
print(f"fields of C++: {fields}")


def frequencies(tokens):
    def turned(times):
        return 128 * math.log(tokens / (times * 2 * math.pi)) / (2 * math.log(given.base))

    low = max(math.floor(turned(given.yarn_beta_fast)), 0)
    high = min(math.ceil(turned(given.yarn_beta_slow)), 127)
    ramp = np.clip((np.arange(64) - low) / (high - low), 0, 1)
    return given.base ** (-np.arange(0, 128, 2) / 128) * (1 - ramp * (1 - 1 / given.factor)), low, high


meant, *bounds = frequencies(BEFORE)
computed, *other_bounds = frequencies(given.max_position_embeddings)
apart = np.maximum(meant / computed, computed / meant)
print(f"the ramp, meant: {bounds}, computed: {other_bounds}")
print(f"frequencies that differ by more than 1 %: {(apart > 1.01).sum()} of 64, by a factor of {apart.max():.2f} at most")
known = ["max_position_embeddings", "yarn_attention_factor", "yarn_beta_fast", "yarn_beta_slow"]
if read.max_position_embeddings != BEFORE or given.max_position_embeddings != 4 * BEFORE or fields != known:
    sys.exit("changed")
PYTHON
venv/bin/python try.py
