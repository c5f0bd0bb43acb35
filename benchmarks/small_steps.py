"""CPU time of a small Llama's training step, for several encodings, beside transformers' Llama and an earlier version.

    python -m benchmarks steps --earlier CHECKOUT

A small model's step is bound by what is done for each operator, not by its arithmetic. Forward and backward, one
sequence, fp32, one thread. The models of one version take turns in one process, with transformers' Llama of the same
sizes among them, and the versions' processes take turns too; a ratio is of one process, and the page has the median of
all. The last shape is of the size of real models, where nothing may get slower. Compiled models are compiled by block,
transformers' own layer by layer, and are compared with each other.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.checkout import check_checkout, run_python
from benchmarks.choose import RESULTS
from benchmarks.stored_page import versions_of, write_page
from tape_ds import results
from tape_ds.arguments import Parser, below_one
from tape_ds.errors import Problem, check_folder, raise_if_any
from tape_ds.installation import ROOT
from tape_ds.markdown_table import markdown_table

OURS = "this version"
EARLIER = "earlier"
PEER = "transformers"
ENCODINGS = ("rope", "tape", "fox", "alibi")
COMPILED = ", compiled"
"""Behind the name of a model that is compiled."""
COMPILED_ENCODINGS = ("rope", "tape")


class SmallShape(NamedTuple):
    """A model, the tokens of its sequence, and how many steps are one sample."""

    label: str
    layers: int
    width: int
    heads: int
    vocabulary: int
    tokens: int
    steps: int

    @property
    def config(self) -> dict[str, int]:
        return {
            "hidden_size": self.width,
            "intermediate_size": 8 * self.width // 3 // 8 * 8,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": 2048,
        }


SHAPES = (
    SmallShape("4 x 128, T = 64", 4, 128, 4, 1024, 64, 40),
    SmallShape("4 x 128, T = 256", 4, 128, 4, 1024, 256, 20),
    SmallShape("155M, T = 1,024", 12, 768, 12, 32000, 1024, 1),
)
TOYS = (SmallShape("toy", 1, 16, 2, 32, 8, 1),)
_MEASURED = """
import json, sys, time
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.llama import TapeForCausalLM

config, tokens, steps, encodings, compiled = json.loads(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
ids = torch.randint(config["vocab_size"], (1, tokens))
models = {"transformers": LlamaForCausalLM(LlamaConfig(**config)).train()}
for name in encodings:
    models[name] = TapeForCausalLM(TapeConfig(**config, position_encoding=name)).train()
if compiled:
    from tape_ds.methods.compiled_blocks import compile_model
    peer = LlamaForCausalLM(LlamaConfig(**config)).train()
    for layer in peer.model.layers:
        layer.compile()
    models["transformers, compiled"] = peer
for name in compiled:
    model = TapeForCausalLM(TapeConfig(**config, position_encoding=name)).train()
    compile_model(model, backend=None, mode=None)
    models[name + ", compiled"] = model

def seconds(model, steps):
    began = time.process_time()
    for _ in range(steps):
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        model.zero_grad()
    return (time.process_time() - began) / steps

for model in models.values():
    seconds(model, min(5, steps))
turns = 4 if steps >= 4 else 1
found = dict.fromkeys(models, 0.0)
for _ in range(turns):
    for name, model in models.items():
        found[name] += seconds(model, steps // turns) / turns
print(json.dumps(found))
"""


def main(argv: list[str]) -> int:
    parser = Parser(prog="python -m benchmarks steps", description=__doc__)
    parser.add_argument(
        "--repeats", type=int, default=5, help="processes of each version; default: %(default)s"
    )
    parser.add_argument("--earlier", type=Path, help="a checkout to compare with")
    parser.add_argument(
        "--toys", action="store_true", help="one tiny shape: its times mean nothing"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="folder of the result; default: %(default)s"
    )
    options = parser.parse_args(argv)
    problems = below_one(options, "repeats") + check_folder("--out", options.out)
    problems += check_checkout(options.earlier)
    if options.toys and options.out.resolve() == RESULTS:
        wrong = "is the folder of results, and toys give none"
        problems.append(Problem("--out", str(options.out), wrong, "name another folder"))
    raise_if_any(problems)
    shapes = TOYS if options.toys else SHAPES
    # an earlier version may not have it, and a toy has nothing to gain
    compiled = () if options.toys else COMPILED_ENCODINGS
    config = {"repeats": options.repeats, "shapes": {shape.label: shape.config for shape in shapes}}
    started = results.collect(
        command=["python", "-m", "benchmarks", "steps", *argv], seed=0, config=config
    )
    versions = {OURS: ROOT}
    if options.earlier is not None:
        versions[EARLIER] = options.earlier.resolve()
    runs: dict[str, dict[str, list[dict[str, float]]]] = {}
    for shape in shapes:
        runs[shape.label] = {version: [] for version in versions}
        for _ in range(options.repeats):
            for version, root in versions.items():
                found = measured(shape, root, compiled if version == OURS else ())
                runs[shape.label][version].append(found)
                print(f"{shape.label}, {version}: {found}", flush=True)
    stored = started.finish({"runs": runs})
    write_page(stored, options.out / "small_steps_cpu.json", page(stored))
    return 0


def measured(shape: SmallShape, root: Path, compiled: Sequence[str]) -> dict[str, float]:
    """Return CPU seconds of a step by the version in ``root``, for each encoding and for transformers' Llama, and those
    of ``compiled`` encodings next to a compiled Llama."""
    asked = json.dumps([shape.config, shape.tokens, shape.steps, ENCODINGS, compiled])
    printed = run_python(root, ["-c", _MEASURED, asked], root)
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return found


def page(stored: results.Result) -> str:
    """Return the figures with what they were measured with."""
    rows = []
    for label, versions in stored.figures["runs"].items():
        for peer in (PEER, PEER + COMPILED):
            peer_runs = [run[peer] for runs in versions.values() for run in runs if peer in run]
            if peer_runs:
                milliseconds = 1000 * statistics.median(peer_runs)
                rows.append([label, peer, "", f"{milliseconds:.1f}", "1.00"])
        for name in (*ENCODINGS, *(name + COMPILED for name in COMPILED_ENCODINGS)):
            peer = PEER + COMPILED if name.endswith(COMPILED) else PEER
            for version, runs in versions.items():
                if name not in runs[0]:
                    continue
                milliseconds = 1000 * statistics.median(run[name] for run in runs)
                ratio = statistics.median(run[name] / run[peer] for run in runs)
                rows.append([label, name, version, f"{milliseconds:.1f}", f"{ratio:.2f}"])
    packages = versions_of(stored, "python", "torch", "transformers")
    lines = [
        "# Steps of a small Llama",
        f"Forward and backward of one sequence, fp32. One thread of {stored.hardware['cpu']}; CPU time (user and "
        f"system), medians of {stored.config['repeats']} processes of each version. A ratio is to transformers' Llama "
        "of the same sizes in the same process, compiled where the model is.",
        markdown_table(["model", "encoding", "by", "CPU ms", "/ transformers"], rows),
        f"Seed {stored.seed}, {stored.started}, commit {stored.commit}. {packages}.",
        f"    {' '.join(stored.command)}",
    ]
    return "\n\n".join(lines) + "\n"
