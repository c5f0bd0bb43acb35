#!/usr/bin/env bash
# sglang 0.5.23: LongRoPE (Phi-3 and every model type with rope_type longrope) at its edge, and in a batch.
#
# One would guess: up to original_max_position_embeddings (4,096 for Phi-3) a text is rotated by the short factors, beyond
# by the long ones, each text by its own length, and each position by its own angle; so does transformers.
#
# What happens: SGLang keeps the rows of both tables in one, short ones first, and adds 4,096 to all positions of a batch
# if any of them is above 4,096. Two things follow:
# - position 4,096 alone is not above 4,096. Its row is the first of the long table: the 4,097th token of a text is
#   rotated as if it were the first one. Every text that is generated past this length meets it once.
# - "any" is asked of the whole batch: a text of 100 tokens is rotated by the long factors while a long text is in the
#   same batch, and by the short ones otherwise. The same request gets other log-probabilities, as others come and go.
#
# SGLang's own class runs here, taken out of its file, since the modules around it import kernels for GPUs.
#
# Output seen (28 November 2026):
#   position 4095 has the angle of position 0: False
#   position 4096 has the angle of position 0: True
#   position 4097 has the angle of position 0: False
#   100 tokens alone, and in a batch with 5000: cosines and sines differ by up to 1.99
#   100 tokens alone, and in a batch with 4000: cosines and sines differ by up to 0.00
#
# Exits with 0 while this is so. Needs only pip and a CPU.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
venv/bin/pip install --quiet --disable-pip-version-check numpy==2.4.6
venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-compile sglang==0.5.23
cat > try.py <<'PYTHON'
import ast
import math
import sys
from pathlib import Path

import torch
from torch import nn

package = next(Path("venv").glob("lib/python3*/site-packages/sglang/srt/layers/rotary_embedding"))
sglang = {"math": math, "torch": torch, "nn": nn}
for file, name in (("utils.py", "rotate_neox"), ("rope_variant.py", "Phi3LongRoPEScaledRotaryEmbedding")):
    tree = ast.parse((package / file).read_text())
    wanted = [node for node in tree.body if getattr(node, "name", None) == name]
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    exec(compile(ast.fix_missing_locations(ast.Module([future, *wanted], [])), file, "exec"), sglang)

BEFORE = 4096
HALF = 48
long_factor = [1.0 + 63.0 * index / (HALF - 1) for index in range(HALF)]
rotary = sglang["Phi3LongRoPEScaledRotaryEmbedding"](
    head_size=2 * HALF, rotary_dim=2 * HALF, max_position_embeddings=8192, original_max_position_embeddings=BEFORE,
    base=10000, is_neox_style=True, dtype=torch.float32, short_factor=[1.0] * HALF, long_factor=long_factor,
    short_mscale=1.0, long_mscale=1.0,
)


def angles(positions):
    """Cosines and sines: what becomes of a query with ones in its first half."""
    query = torch.cat([torch.ones(len(positions), HALF), torch.zeros(len(positions), HALF)], -1)
    return rotary(torch.tensor(positions), query.clone(), query.clone())[0]


first = angles([0])
same = [torch.equal(angles([position]), first) for position in (BEFORE - 1, BEFORE, BEFORE + 1)]
for position, answer in zip((BEFORE - 1, BEFORE, BEFORE + 1), same):
    print(f"position {position} has the angle of position 0: {answer}")
alone = angles([*range(100)])
apart = []
for others in (5000, 4000):
    together = angles([*range(100), *range(others)])[:100]
    apart.append((together - alone).abs().max().item())
    print(f"100 tokens alone, and in a batch with {others}: cosines and sines differ by up to {apart[-1]:.2f}")
if same != [False, True, False] or apart[0] < 0.5 or apart[1] != 0:
    sys.exit("changed")
PYTHON
venv/bin/python try.py
